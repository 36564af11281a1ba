"""Advice on a run: wasted energy and its remedy, each with evidence and source.

Importing this package loads nothing.
"""
