"""Accounting: carbon, cost, efficiency and idle energy from the joules of a window."""
