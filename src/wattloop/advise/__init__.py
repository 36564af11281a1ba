"""What a run wasted and what to do about it, each advice with its evidence and its source.

Importing this package loads nothing.
"""
