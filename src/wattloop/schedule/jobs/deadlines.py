"""Urgent jobs: which they are, and by when they must be done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.draws import Draws
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["Deadlines", "best_runtime_s"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """deadline = arrival + factor x best runtime, for a share of the jobs (thesis 5.5.1).

    A larger share makes more jobs urgent and keeps those that were.
    """

    share: float
    factor: float

    def draw(self, draws: Draws, arrival_s: Floats, best_s: Floats) -> Floats:
        """Deadline of each job, infinite without one.

        Args:
            draws: of the workload.
            arrival_s: when each arrives.
            best_s: its runtime on its fastest placement; infinite when it can never run, and then
                no deadline means anything.
        """
        urgent = draws.uniform("deadlines", len(arrival_s)) < self.share
        return np.where(urgent, arrival_s + self.factor * best_s, np.inf)


def best_runtime_s(
    kinds: Sequence[JobKind], kind: NDArray[np.int64], work: Floats, oracle: Oracle
) -> Floats:
    """Runtime of each job on the fastest of all its placements, on an empty cluster."""
    fastest = np.full(len(kinds), np.inf)
    for number, each in enumerate(kinds):
        options = oracle.options(each)
        if len(options):
            fastest[number] = options.sample_s.min()
    return np.asarray(work * fastest[kind])
