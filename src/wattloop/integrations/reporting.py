"""Epochs and totals on their way to the loggers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wattloop.integrations.loggers import EnergyLogger
from wattloop.integrations.records import EpochRecord

if TYPE_CHECKING:
    from wattloop.integrations.hook import TrainingMeter

__all__ = ["EpochReporter"]


class EpochReporter:
    """Reports each epoch once, when its energy is final, in order.

    Called by the thread that trains: an MLflow run belongs to it.

    Args:
        loggers: where to report to at the moment.
    """

    def __init__(self, loggers: Callable[[], Sequence[EnergyLogger]]) -> None:
        self._loggers = loggers
        self._reported = 0

    def report(self, epochs: Sequence[EpochRecord], *, everything: bool = False) -> None:
        """Report epochs that are final and have not been reported yet, or all of them."""
        while self._reported < len(epochs):
            epoch = epochs[self._reported]
            if not (epoch.final or everything):
                return
            self._reported += 1
            for logger in self._loggers():
                logger.epoch(epoch)

    def report_total(self, meter: TrainingMeter) -> None:
        """The training is over."""
        for logger in self._loggers():
            logger.total(meter)
