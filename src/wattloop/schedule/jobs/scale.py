"""Selection and scaling of a trace: part of its jobs, other load, other sizes."""

import math
from dataclasses import dataclass, replace

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_duration
from wattloop.schedule.jobs.attributes import Draws
from wattloop.schedule.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Scaling:
    """Changes of a trace, applied in this order; the defaults change nothing.

    Attributes:
        begin_s, end_s: select jobs by arrival, from, to (not included); `begin_s` becomes time 0.
        head: select the first jobs.
        sample: select random jobs; a larger sample contains the smaller one. Fewer jobs in the
            same time are less load, which `speed` can compensate.
        speed: factor of the arrival rate.
        work: factor of each job's duration.
        gpus: factor of each job's GPUs, rounded, 1 at least.
    """

    begin_s: float = 0.0
    end_s: float = math.inf
    head: int | None = None
    sample: int | None = None
    speed: float = 1.0
    work: float = 1.0
    gpus: float = 1.0

    def __post_init__(self) -> None:
        for name in ("speed", "work", "gpus"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"trace: {name} must be above 0, not {getattr(self, name):g}")
        for name in ("head", "sample"):
            if (getattr(self, name) or 1) < 1 or getattr(self, name) == 0:
                raise ConfigError(f"trace: {name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.begin_s < self.end_s:
            raise ConfigError("trace: the part of it must end after it begins, at 0 or later")

    def of(self, trace: Trace, seed: int) -> Trace:
        """Return the scaled trace; `seed` is the seed of the sample.

        Raises:
            ConfigError: no job is left.
        """
        trace = self._part(trace)
        trace = self._fewer(trace, seed)
        return self._scaled(trace)

    def _part(self, trace: Trace) -> Trace:
        if self.begin_s == 0 and math.isinf(self.end_s):
            return trace
        first, last = np.searchsorted(trace.arrival_s, (self.begin_s, self.end_s))
        said = f"from {format_duration(self.begin_s)}" + (
            "" if math.isinf(self.end_s) else f" to {format_duration(self.end_s)}"
        )
        if first == last:
            end = format_duration(float(trace.arrival_s[-1]))
            raise ConfigError(f"{trace.source}: no job arrives {said}; the last comes at {end}")
        part = trace.take(np.arange(first, last), f"only jobs that arrive {said}")
        due_s = None if part.deadline_s is None else part.deadline_s - self.begin_s
        return replace(part, arrival_s=part.arrival_s - self.begin_s, deadline_s=due_s)

    def _fewer(self, trace: Trace, seed: int) -> Trace:
        if self.head is not None and self.head < len(trace):
            trace = trace.take(np.arange(self.head), f"only the first {self.head} jobs")
        if self.sample is not None and self.sample < len(trace):
            uniform = Draws(seed).uniform("sample", len(trace))
            rows = np.sort(np.argsort(uniform)[: self.sample])
            trace = trace.take(rows, f"only {self.sample} jobs, drawn with seed {seed}")
        return trace

    def _scaled(self, trace: Trace) -> Trace:
        if self.speed == self.work == self.gpus == 1.0:
            return trace
        said = [
            f"{name} x {factor:g}"
            for name, factor in (("arrivals", self.speed), ("work", self.work), ("GPUs", self.gpus))
            if factor != 1.0
        ]
        arrival_s = trace.arrival_s / self.speed
        due_s = trace.deadline_s
        if due_s is not None:  # the allowed time grows with the job
            due_s = arrival_s + (due_s - trace.arrival_s) * self.work
        return replace(
            trace,
            arrival_s=arrival_s,
            duration_s=trace.duration_s * self.work,
            samples=None if trace.samples is None else trace.samples * self.work,
            deadline_s=due_s,
            gpus=np.maximum(1, np.rint(trace.gpus * self.gpus)).astype(np.int64),
            notes=(*trace.notes, f"scaled: {', '.join(said)}"),
        )
