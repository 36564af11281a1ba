"""Runs, windows and samples as records.

- `journal`   the append-only file of a live run
"""
