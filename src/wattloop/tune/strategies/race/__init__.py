"""The race strategy: least energy to a target quality."""

from wattloop.tune.strategies.race.race import Race

__all__ = ["Race"]
