"""Contracts and instruments that tests and benchmarks of meters share; nothing imports it."""
