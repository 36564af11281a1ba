"""Estimates of time and power: oracles, and estimates of submitted jobs."""
