"""The SM2 strategy: Spend More to Save More (Geißler et al.)."""

from wattloop.tune.strategies.sm2.sm2 import Sm2

__all__ = ["Sm2"]
