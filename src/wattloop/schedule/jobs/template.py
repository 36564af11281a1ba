"""What jobs of a workload are made from."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.kind import JobKind

__all__ = ["JobTemplate"]


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A kind of job, how much of it there is to do, and how often it comes.

    Attributes:
        kind: what is trained and how it may run.
        least_work, most_work: samples to train on; drawn evenly on a logarithmic scale between
            the two, or the one figure when both are equal. Nothing to do with traces, which
            have durations.
        weight: how often it comes, against the others.
        trace_gpus: GPU counts of a trace's jobs that may be this one, from, to.
        trace_s: durations of a trace's jobs that may be this one, from, to.
        called: names under which traces know this model, beside its own.
    """

    kind: JobKind
    least_work: float = math.nan
    most_work: float = math.nan
    weight: float = 1.0
    trace_gpus: tuple[float, float] = (0.0, math.inf)
    trace_s: tuple[float, float] = (0.0, math.inf)
    called: tuple[str, ...] = ()

    def work(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Samples of jobs, by one number from 0 to 1 each."""
        if self.least_work == self.most_work:
            return np.full(len(uniform), self.least_work)
        low, high = math.log(self.least_work), math.log(self.most_work)
        return np.asarray(np.exp(low + (high - low) * uniform))
