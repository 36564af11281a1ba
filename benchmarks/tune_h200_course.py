"""One training or search of `tune_h200.py`, segment by segment, with its records."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wattloop.tune.executors.torch.epochs import EnergySource
from wattloop.tune.executors.torch.executor import TorchExecutor
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import Progress, Segment
from wattloop.tune.strategies.base import WAIT, Strategy

__all__ = ["Clock", "Course", "Runner"]


class Clock:
    """Limit on the duration of the benchmark."""

    def __init__(self, seconds: float | None) -> None:
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Return true if no new training may begin."""
        return time.monotonic() >= self._end_s


@dataclass
class Course:
    """One training or search from beginning to end.

    Attributes:
        kind, seed: which training.
        energy_j, uncertainty_j, time_s: of the whole, search included.
        best, quality: of the chosen configuration, and at its end.
        finished: True if it ended by the rule.
        segments: requests with their time and energy.
        points: (energy_j so far, candidate, epoch, quality) at the end of every kept epoch.
    """

    kind: str
    seed: int
    energy_j: float | None = None
    uncertainty_j: float = 0.0
    time_s: float = 0.0
    provenance: str = ""
    best: float | None = None
    quality: float | None = None
    epochs: float = 0.0
    finished: bool = False
    candidate: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    reached_j: float | None = None
    eval_energy_j: float = 0.0
    message: str = ""
    segments: list[dict[str, Any]] = field(default_factory=list)
    points: list[tuple[float | None, str, float, float | None]] = field(default_factory=list)
    moments: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the record for the JSON file, which has no infinities."""
        return dict(_finite(asdict(self)))

    @property
    def said(self) -> str:
        """Print one line of progress."""
        spent = "?" if self.energy_j is None else f"{self.energy_j / 3600:.2f} Wh"
        best = "none" if self.best is None else f"{self.best:.4f}"
        rate = "" if self.learning_rate is None else f" at {self.learning_rate:.3g}"
        return (
            f"{self.kind} seed {self.seed}: {spent}, {self.time_s:.0f} s, best {best} after "
            f"{self.epochs:g} epochs of {self.parameters.get('batch_size')}{rate}"
            f"{'' if self.finished else ' (UNFINISHED)'} {self.message}"
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Runner:
    """Runner of segments that records their time and energy."""

    def __init__(
        self,
        bench: TorchExecutor,
        energy: EnergySource,
        course: Course,
        goal: Quality,
        clock: Clock,
    ) -> None:
        self.bench, self.course, self.clock = bench, course, clock
        self.seen: dict[str, float] = {}
        self.last: dict[str, Progress] = {}
        self._energy, self._goal = energy, goal
        self._begin_s = energy.now_s()

    def run(self, segment: Segment) -> Progress:
        begin_s = self._energy.now_s()
        progress = self.bench.run(segment)
        before_j = self._energy.between(self._begin_s, begin_s).energy_j
        own_j = self.seen.get(segment.candidate, 0.0)
        for point in progress.curve:
            known = before_j is not None and point.energy_j is not None
            so_far_j = (before_j or 0.0) + (point.energy_j or 0.0) - own_j if known else None
            if segment.keep:
                self.course.points.append((so_far_j, segment.candidate, point.epoch, point.quality))
                if self.course.reached_j is None and self._goal.reached(point.quality):
                    self.course.reached_j = so_far_j
        self.seen[segment.candidate] = own_j + (progress.energy_j or 0.0)
        if segment.keep and segment.rates is None:
            self.last[segment.candidate] = progress
        self.course.eval_energy_j += progress.metrics.get("eval_energy_j", 0.0)
        self.course.segments.append(
            {
                "key": segment.key,
                "candidate": segment.candidate,
                "batch_size": segment.parameters.get("batch_size"),
                "rate": segment.learning_rate,
                "keep": segment.keep,
                "sweep": segment.rates is not None,
                "status": progress.status.value,
                "time_s": progress.time_s,
                "energy_j": progress.energy_j,
                "uncertainty_j": progress.uncertainty_j,
                "epochs": progress.epochs,
                "quality": progress.quality,
                "epoch_energy_j": progress.metrics.get("epoch_energy_j"),
                "epoch_uncertainty_j": progress.metrics.get("epoch_uncertainty_j"),
                "message": progress.message,
            }
        )
        return progress

    def search(self, strategy: Strategy) -> bool:
        """Run the search to its end; return true if it ended in time."""
        while (segment := strategy.ask()) is not None:
            if segment is WAIT:
                raise RuntimeError("the strategy waits for nothing")
            if self.clock.over:
                return False
            strategy.tell(segment, self.run(segment))
            alive = strategy.alive()
            for candidate in list(self.seen):
                if alive is not None and candidate not in alive:
                    self.bench.release(candidate)
        return True

    def chosen(self, candidate: str, parameters: Mapping[str, Any], rate: float | None) -> None:
        course, last = self.course, self.last.get(candidate)
        course.candidate, course.parameters, course.learning_rate = (
            candidate,
            dict(parameters),
            rate,
        )
        if last is not None:
            course.best, course.quality, course.epochs = last.best, last.quality, last.epochs
