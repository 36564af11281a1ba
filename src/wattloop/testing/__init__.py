"""Contracts of meters, levers, stores, strategies and policies, and what they are tested on.

Contracts:

Machines:

Servers of a test's own (`lab`):
"""
