"""The trial of a function: what it is handed, and where it is paused."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from wattloop.tune.course import Course
from wattloop.tune.levers import GPUS
from wattloop.tune.pace import Pace
from wattloop.tune.segment import Segment, Value
from wattloop.tune.trial import Trial

__all__ = ["FunctionTrial"]

LOOK_EVERY_S = 0.05


class Pausing(Protocol):
    """What a trial needs of its training."""

    course: Course

    def step(self, units: float) -> None:
        """A step has ended."""

    def between_steps(self) -> None:
        """May pause."""

    def report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Numbers; may pause."""

    def end_epoch(self) -> None:
        """An epoch has ended; may pause."""


class FunctionTrial(Trial):
    """Hands over to the training whose function holds it.

    Args:
        training: that pauses.
        first: the segment that begins it.
        checkpoint: its folder.
        resumed: whether that holds files to go on from.
    """

    def __init__(
        self, training: "Pausing", first: Segment, checkpoint: Path, *, resumed: bool
    ) -> None:
        self.params = _params(first)
        self.seed = first.seed
        self.resumed = resumed
        self.epochs_done = training.course.epochs
        self.checkpoint = checkpoint
        self._training = training
        self._look_s = math.inf

    def begins(self, segment: Segment, pace: Pace) -> None:
        """A segment begins."""
        self.params = _params(segment)
        self._look_s = 0.0 if pace.watched else math.inf

    def step(self, units: float = 1.0) -> None:
        """Counted; may pause where the segment ends between two steps."""
        self._training.step(units)
        if self._look_s < math.inf:
            now_s = time.monotonic()
            if now_s >= self._look_s:
                self._look_s = now_s + LOOK_EVERY_S
                self._training.between_steps()

    def expect_steps(self, count: float) -> None:
        """Told to the search."""
        self._training.course.steps_each = count

    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        self._training.report(metrics, epoch)

    def _count_epochs(self) -> None:
        self._training.course.counted = True

    def _end_epoch(self) -> None:
        self._training.end_epoch()


def _params(segment: Segment) -> dict[str, Value]:
    """The configuration; the number of GPUs is for the function to keep."""
    count = segment.levers.get(GPUS)
    return {**segment.parameters, **({} if count is None else {GPUS: count})}
