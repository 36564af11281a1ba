"""Campaigns: policies x seeds on a scenario, run in processes, stored and compared.

This package imports nothing by itself, because a worker needs no database.
"""
