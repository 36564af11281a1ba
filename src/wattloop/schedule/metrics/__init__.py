"""Metrics of simulations, power curves, and comparison of policies."""

from wattloop.schedule.metrics.comparison import Difference, compare, spread
from wattloop.schedule.metrics.metrics import Metrics, metrics_of

__all__ = ["Difference", "Metrics", "compare", "metrics_of", "spread"]
