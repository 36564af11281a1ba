"""What a scheduler believes of jobs of which it knows time limits only, as Slurm does."""

from collections.abc import Sequence

import numpy as np

from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.oracle.oracle import Factors, Oracle

__all__ = ["TimeLimits"]

TIE = 1e-6
"""Share by which faster placements are still believed faster: nodes are tried in that order."""


class TimeLimits(Oracle):
    """Every job takes its time limit, wherever it runs.

    Args:
        truth: time and power as they turn out.
        jobs: the jobs.
        limits_s: of each.
    """

    name = "time limits"

    def __init__(self, truth: Oracle, jobs: JobTable, limits_s: Sequence[float]) -> None:
        self._truth, self._work = truth, jobs.work
        self._limits_s = limits_s

    def options(self, kind: JobKind) -> Options:
        """As they are."""
        return self._truth.options(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """The limit over the true time, for each placement."""
        true_s = np.maximum(self._work[job] * self.options(kind).sample_s, 1e-9)
        believed_s = self._limits_s[job] * (1.0 + TIE * true_s)
        return Factors(believed_s / true_s, np.ones(len(true_s)))
