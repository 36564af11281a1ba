"""Many jobs, column by column: a million of them fit, and a policy's whole queue is arrays."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.kind import JobKind

__all__ = ["JobTable", "uncapped"]


@dataclass(frozen=True)
class JobTable:
    """Jobs in order of arrival; a job's number is its row.

    Attributes:
        kinds: what `kind` points into.
        users: names, what `user` points into.
        arrival_s: when each is submitted, ascending, from the start of the simulation.
        kind: index into `kinds`.
        user: index into `users`.
        work: samples to train on in all.
        deadline_s: by when it must be done, on the same clock as arrival; infinite without one.
        priority: higher goes first where a policy heeds it.
        names: what the source called each job; empty when it did not.
        notes: what was assumed where the source was silent, in words.
    """

    kinds: tuple[JobKind, ...]
    users: tuple[str, ...]
    arrival_s: NDArray[np.float64]
    kind: NDArray[np.int64]
    user: NDArray[np.int64]
    work: NDArray[np.float64]
    deadline_s: NDArray[np.float64]
    priority: NDArray[np.int64]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        columns = (self.kind, self.user, self.work, self.deadline_s, self.priority)
        if any(len(column) != len(self.arrival_s) for column in columns):
            raise ConfigError("jobs: the columns of the table have different lengths")
        if len(self) and np.any(np.diff(self.arrival_s) < 0):
            raise ConfigError("jobs: arrivals are not in order of time")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def urgent(self) -> NDArray[np.bool_]:
        """Which jobs have a deadline."""
        return np.isfinite(self.deadline_s)


def uncapped(jobs: JobTable) -> JobTable:
    """The same jobs under the highest of their power limits only."""
    kinds = tuple(replace(kind, caps=(max(kind.caps),)) for kind in jobs.kinds)
    return jobs if kinds == jobs.kinds else replace(jobs, kinds=kinds)
