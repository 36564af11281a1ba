"""Runs, windows, steps and samples as records.

While a run lives:

The database:

Samples and curves:

Jobs and other machines:

Ways out:

Importing this package loads nothing: live runs need only `journal_writer`, not a database.
"""
