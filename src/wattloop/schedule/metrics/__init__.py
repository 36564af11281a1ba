"""Metrics of simulations, power curves, and comparison of policies."""

from wattloop.schedule.metrics.metrics import Difference, Metrics, compare, metrics_of, spread

__all__ = ["Difference", "Metrics", "compare", "metrics_of", "spread"]
