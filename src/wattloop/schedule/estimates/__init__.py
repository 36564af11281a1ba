"""Estimates of time and power: oracles, and estimates for submitted jobs."""
