"""Upper bound of the deadlines that any schedule could meet, with knowledge of the future.

A job whose work is lost when it is stopped meets its deadline in one interval on one placement. So:
which urgent jobs can have an interval each, between arrival and deadline, so that GPUs of no type
are used twice? Time is cut into slots, and an interval counts only in slots that it fills from end
to end, wherever in its first slot it began; nodes and all jobs without a deadline are forgotten.
Whatever a schedule can do is then possible here, so the most that is possible is a bound.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle, Shape
from wattloop.schedule.jobs import JobTable

__all__ = ["most_kept"]

LEAST_SLOT_S = 6.0
MOST_SLOTS = 150
MOST_S = 5.0
"""How long one program is worked on."""
ROUNDING_S = 1e-6


def most_kept(jobs: JobTable, cluster: Cluster, truth: Oracle, end_s: float) -> tuple[int, int]:
    """Return the deadlines up to `end_s`, and the most of them that any schedule could meet."""
    due = np.flatnonzero(jobs.urgent & (jobs.deadline_s <= end_s))
    groups = _overlapping(jobs, due)
    return len(due), sum(_most_of(jobs, cluster, truth, group) for group in groups)


def _overlapping(jobs: JobTable, due: NDArray[np.int64]) -> list[list[int]]:
    """Return jobs in groups whose times do not overlap: each is a program of its own."""
    groups: list[list[int]] = []
    until_s = -np.inf
    for job in due.tolist():  # by arrival
        if jobs.arrival_s[job] >= until_s:
            groups.append([])
        groups[-1].append(job)
        until_s = max(until_s, float(jobs.deadline_s[job]))
    return groups


def _most_of(jobs: JobTable, cluster: Cluster, truth: Oracle, group: Sequence[int]) -> int:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    if _one_after_the_other(jobs, truth, group):
        return len(group)
    begin_s = float(jobs.arrival_s[group[0]])
    window_s = max(float(jobs.deadline_s[job]) for job in group) - begin_s
    slot_s = max(LEAST_SLOT_S, window_s / MOST_SLOTS)
    rows, column = _Rows(), 0
    for number, job in enumerate(group):
        for shape, time_s in _times_s(jobs, truth, job).items():
            first_s = float(jobs.arrival_s[job]) - begin_s
            last_s = float(jobs.deadline_s[job]) - begin_s - time_s
            if last_s < first_s - ROUNDING_S:
                continue
            filled = math.floor(time_s / slot_s) - 1
            for slot in range(math.floor(first_s / slot_s), math.floor(last_s / slot_s) + 1):
                rows.add(("once", number), 1, column, 1)
                for taken in range(slot + 1, slot + 1 + filled):
                    gpus = cluster.gpus_by_type[shape[0]]
                    rows.add(("gpus", taken, shape[0]), gpus, column, shape[1])
                column += 1
    if column == 0:
        return 0
    found = milp(
        c=-np.ones(column),
        constraints=LinearConstraint(
            coo_array((rows.values, (rows.at, rows.columns))).tocsr(), ub=np.array(rows.limits)
        ),
        bounds=Bounds(0, 1),
        integrality=np.ones(column),
        options={"time_limit": MOST_S},
    )
    # Stopped before the optimum, the solver still has a bound.
    most = -found.mip_dual_bound if found.mip_dual_bound is not None else len(group)
    return min(math.floor(most + 1e-6), len(group))


def _one_after_the_other(jobs: JobTable, truth: Oracle, group: Sequence[int]) -> bool:
    """Return true if all are met with a GPU type for each: then no program is needed."""
    for key in (jobs.arrival_s, jobs.deadline_s):
        free_s: dict[int, float] = {}
        for job in sorted(group, key=lambda job: float(key[job])):
            ends = []
            for (kind, _, _), time_s in _times_s(jobs, truth, job).items():
                begin_s = max(free_s.get(kind, 0.0), float(jobs.arrival_s[job]))
                ends.append((begin_s + time_s, kind))
            in_time = [end for end in ends if end[0] <= jobs.deadline_s[job] + ROUNDING_S]
            if not in_time:
                break
            # the slowest sufficient type: the next one may need the fastest
            end_s, kind = max(in_time) if key is jobs.deadline_s else min(in_time)
            free_s[kind] = end_s
        else:
            return True
    return False


def _times_s(jobs: JobTable, truth: Oracle, job: int) -> dict[Shape, float]:
    """Return a job's shortest time on each shape."""
    options = truth.options(jobs.kinds[int(jobs.kind[job])])
    found: dict[Shape, float] = {}
    for shape, sample_s in zip(options.shapes(), options.sample_s.tolist(), strict=True):
        found[shape] = min(found.get(shape, math.inf), sample_s * float(jobs.work[job]))
    return found


class _Rows:
    """Sums that stay below limits, entry by entry."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.limits: list[float] = []
        self._place: dict[tuple[object, ...], int] = {}

    def add(self, key: tuple[object, ...], limit: float, column: int, value: float) -> None:
        """Add one more term of the sum called `key`."""
        if key not in self._place:
            self._place[key] = len(self.limits)
            self.limits.append(limit)
        self.at.append(self._place[key])
        self.columns.append(column)
        self.values.append(value)
