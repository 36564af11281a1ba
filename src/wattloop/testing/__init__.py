"""Contract tests of meters, levers, stores, strategies and policies, and their test doubles.

Contracts:

Machines:

Servers of a test's own (`lab`):
"""
