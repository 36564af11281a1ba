"""Levers for users who are not root: a daemon that sets them by rules, one lease per connection.

The client's side:

The daemon's side:

`protocol` is what both sides know.
"""
