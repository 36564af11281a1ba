"""Training curve: epochs, quality and divergence from the reports of one training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import Status, Until

CLOSE = 1e-9
"""Tolerance for whole numbers: epochs are counted as floats."""
MOST_PART = 0.999
"""Largest share of an epoch that has not ended."""
PATIENCE = 2
"""A metric is missed after this many times the usual number of epochs between two of them."""
SILENT_EPOCHS = 5
"""Silence is longer than so many of the longest epochs, of which at least two were observed..."""
SILENT_S = 2.0
"""... and than the clean-up at the end of a quick training."""


class CurvePoint(NamedTuple):
    """The end of an epoch."""

    epoch: float
    quality: float | None
    at_s: float
    metrics: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class TrainingCurve:
    """Reports of one training.

    A training that marks the ends of its epochs (`end_epoch`) may report at any time. In any other
    an epoch ends with each report of the quality metric, and with the first report of a later epoch
    where the metric was left out.

    Attributes:
        quality: the metric of the last epoch, None when it did not report one; `best` of all.
        diverged: name of the metric that is not finite.
        counted: whether the training marks the ends of its epochs.
        steps, steps_each: of the epoch under way, and of a whole one as far as that is known.
        marks: ends of epochs since `begin`.
    """

    wanted: Quality
    epochs: float = 0.0
    quality: float | None = None
    best: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    diverged: str = ""
    counted: bool = False
    steps: float = 0.0
    steps_each: float | None = None
    marks: list[CurvePoint] = field(default_factory=list)
    _pending: float | None = None
    _open: float | None = None
    """Epoch, in the training's numbering, that has reported but not its quality."""
    _offset: float | None = None
    """Offset from the training's numbering to ours: 1 where its first epoch is 0."""
    _last_told: float | None = None
    _widest: float = 1.0
    _longest_s: float = 0.0
    _intervals: int = 0

    @property
    def seen(self) -> bool:
        return self.best is not None or self._pending is not None

    @property
    def missed(self) -> str:
        """Return a message about a metric that has disappeared; empty when it has not."""
        if self._last_told is None or self.epochs - self._last_told <= PATIENCE * self._widest:
            return ""
        return f"{self.wanted.metric} was not reported any more after epoch {self._last_told:g}"

    def silent(self, begin_s: float, end_s: float) -> str:
        """Return a message when a segment ended long after its last report; else empty."""
        if self._last_told is None or self._intervals < 2:
            return ""
        last_s = self.marks[-1].at_s if self.marks else begin_s
        if end_s - last_s <= max(SILENT_EPOCHS * self._longest_s, SILENT_S):
            return ""
        return (
            f"{self.wanted.metric} was not reported any more after epoch {self._last_told:g}, "
            "though it ran on for as long as several epochs take"
        )

    @property
    def epochs_now(self) -> float:
        """Return the epochs with the fraction of the current one, where its steps are known."""
        if not self.steps_each:
            return self.epochs
        return self.epochs + min(MOST_PART, self.steps / self.steps_each)

    def begin(self) -> None:
        self.marks = []

    def report(self, metrics: Mapping[str, float], epoch: float | None, at_s: float) -> bool:
        """Record metrics; return whether an epoch has ended or the training diverged."""
        ended = False
        if epoch is not None and not self.counted:
            ended = self._later(epoch, at_s)
        for name, value in metrics.items():
            self.metrics[name] = value
            counts = name in (self.wanted.metric, "loss") or name.endswith("_loss")
            if counts and not math.isfinite(value):
                self.diverged = f"{name} is {value}"
        if self.wanted.metric in metrics and not self.diverged:
            self._pending = metrics[self.wanted.metric]
            if not self.counted:
                number = self.epochs + 1.0
                if epoch is not None:
                    number = max(self.epochs, epoch + (self._offset or 0.0))
                self._end(number, at_s)
                ended = True
        return ended or bool(self.diverged)

    def end_epoch(self, at_s: float) -> None:
        self._end(math.floor(self.epochs + CLOSE) + 1.0, at_s)

    def finish(self, at_s: float) -> None:
        """Record the end of the training; its last epoch ends with it."""
        if self._pending is not None:
            self.end_epoch(at_s)

    def conclude(self, metrics: Mapping[str, float], at_s: float) -> None:
        """Count the last reports of an ended training as its last epoch."""
        self.finish(at_s)
        again = self.epochs > 0 and (
            self.counted or metrics.get(self.wanted.metric) == self.quality
        )
        if not again:
            self.report(metrics, None, at_s)
            if self.counted and self._pending is not None:
                self._end(1.0, at_s)
            return
        counted, self.counted = self.counted, True  # without an epoch number
        self.report(metrics, None, at_s)
        self.counted = counted
        if self._pending is not None:
            self._end(self.epochs, at_s)

    def verdict(self, until: Until, time_s: float, energy_j: float | None) -> Status | None:
        if self.diverged:
            return Status.DIVERGED
        if until.at_target and self.wanted.reached(self.quality):
            return Status.REACHED
        if until.epochs is not None and self.epochs >= until.epochs - CLOSE:
            return Status.PAUSED
        if until.time_s is not None and time_s >= until.time_s:
            return Status.PAUSED
        if until.energy_j is not None and energy_j is not None and energy_j >= until.energy_j:
            return Status.PAUSED
        return None

    def _later(self, epoch: float, at_s: float) -> bool:
        """Record the epoch that reports; return whether the one before ended without its metric."""
        if self._offset is None:
            self._offset = 1.0 if epoch in (0, self.epochs) else 0.0
        before, self._open = self._open, epoch
        if before is None or epoch <= before:
            return False
        self._end(before + self._offset, at_s)
        self._open = epoch
        return True

    def _end(self, number: float, at_s: float) -> None:
        if self.steps:
            self.steps_each, self.steps = self.steps, 0.0
        again = bool(self.marks) and number <= self.epochs + CLOSE
        self.epochs = max(self.epochs, number)
        self.quality, self._pending, self._open = self._pending, None, None
        if self.quality is not None:
            if self.best is None or self.wanted.better(self.quality, self.best):
                self.best = self.quality
            self._widest = max(self._widest, self.epochs - (self._last_told or 0.0))
            self._last_told = self.epochs
        if again:  # the same epoch reported again: its last value counts
            self.marks.pop()
        elif self.marks:
            self._longest_s = max(self._longest_s, at_s - self.marks[-1].at_s)
            self._intervals += 1
        self.marks.append(CurvePoint(self.epochs, self.quality, at_s, dict(self.metrics)))
