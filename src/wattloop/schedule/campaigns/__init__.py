"""Policies x seeds on a scenario: carried out over processes, kept, compared.

Nothing is imported here: a worker simulates and needs no database.
"""
