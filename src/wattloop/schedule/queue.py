"""Jobs that wait, as columns, with the cost of every placement shape kept beside them.

What a policy needs each round is which job is best on the machines that are free. Costs of a
waiting job do not change, so they are computed once, when it is first looked at; a round then
costs a few passes over arrays, however many placements each job has.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.oracle.options import Options, Shape
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["Columns", "Queue"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FIRST_CAPACITY = 64


class Columns(NamedTuple):
    """Waiting jobs in no particular order: views, not to be kept beyond the round."""

    job: Ints
    kind: Ints
    user: Ints
    priority: Ints
    arrival_s: Floats
    deadline_s: Floats
    work: Floats


class _Kind(NamedTuple):
    """What is kept of a kind: its options, and where each shape begins among them."""

    options: Options
    idle_w: Floats
    begins: Ints
    shapes: Ints
    shape_of: Ints


class Queue:
    """Waiting jobs.

    Args:
        jobs: all jobs there will be.
        oracle: what is believed of their time and power.
        idle_w: of one GPU, by type index.
    """

    def __init__(self, jobs: JobTable, oracle: Oracle, idle_w: Sequence[float]) -> None:
        self._jobs = jobs
        self._oracle = oracle
        options = [oracle.options(kind) for kind in jobs.kinds]
        found = {shape for each in options for shape in each.shapes()}
        self.shapes: tuple[Shape, ...] = tuple(sorted(found))
        self._shape_number = {shape: number for number, shape in enumerate(self.shapes)}
        self._kinds = [self._kept(each, np.asarray(idle_w, dtype=float)) for each in options]
        self._waiting: dict[int, float] = {}
        self._unread: dict[int, float] = {}
        self._heads: list[int] = []
        self._row: dict[int, int] = {}
        self._columns = _empty_columns(FIRST_CAPACITY)
        self._costs: dict[Objective, Floats] = {}
        self._best: dict[tuple[Objective, int], list[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job: int) -> bool:
        return job in self._waiting

    def work(self, job: int) -> float:
        """Samples that a waiting job has still to train on."""
        return self._waiting[job]

    def add(self, job: int, work: float) -> None:
        """A job begins to wait, with so many samples to go."""
        self._waiting[job] = self._unread[job] = work
        heapq.heappush(self._heads, job)

    def remove(self, job: int) -> float:
        """A job waits no longer; the samples it had still to train on."""
        work = self._waiting.pop(job)
        if self._unread.pop(job, None) is not None:
            return work
        row, last = self._row.pop(job), len(self._row)
        if row != last:
            for column in self._columns:
                column[row] = column[last]
            for costs in self._costs.values():
                costs[:, row] = costs[:, last]
            self._row[int(self._columns.job[row])] = row
        return work

    def head(self) -> int | None:
        """The job that came first; None when nobody waits."""
        heads = self._heads
        while heads and heads[0] not in self._waiting:
            heapq.heappop(heads)
        return heads[0] if heads else None

    def in_order(self) -> list[int]:
        """All waiting jobs by arrival."""
        return sorted(self._waiting)

    def by_arrival(self) -> Iterator[int]:
        """Waiting jobs by arrival, one by one: the first few cost nothing, however many wait."""
        heads, last = self._heads, -1
        edge = [(heads[0], 0)] if heads else []
        while edge:
            job, place = heapq.heappop(edge)
            below = 2 * place + 1
            for child in range(below, min(below + 2, len(heads))):
                heapq.heappush(edge, (heads[child], child))
            # a job that was stopped and waits again may be in the heap twice
            if job != last and job in self._waiting:
                last = job
                yield job

    def columns(self) -> Columns:
        """All waiting jobs as arrays; rows match those of `cost`."""
        self._read()
        return Columns._make(column[: len(self._row)] for column in self._columns)

    def cost(self, objective: Objective) -> Floats:
        """Least cost of every waiting job on each shape, (shapes, jobs); infinite for none."""
        self._read()
        if objective not in self._costs:
            self._costs[objective] = np.full((len(self.shapes), self._capacity), np.inf)
            self._fill(objective, np.arange(len(self._row)))
        return self._costs[objective][:, : len(self._row)]

    def estimates(self, job: int) -> Estimates:
        """What is believed of one waiting job on each of its options."""
        return self.estimates_for(job, self._waiting[job])

    def estimates_for(self, job: int, work: float) -> Estimates:
        """What is believed of any job, with so many samples to go, on each of its options."""
        return self._estimates(int(self._jobs.kind[job]), [job], np.asarray([work]), one=True)

    def options(self, job: int) -> Options:
        """The placements of a job."""
        return self._kinds[int(self._jobs.kind[job])].options

    def shape_of(self, job: int) -> Ints:
        """The shape of each option of a job, as an index into `shapes`."""
        return self._kinds[int(self._jobs.kind[job])].shape_of

    def best_option(self, objective: Objective, job: int, shape: Shape) -> int:
        """The option of least cost within a shape; the first of equals."""
        kept = self._kinds[self._jobs.kind[job]]
        number = self._shape_number[shape]
        place = int(np.searchsorted(kept.shapes, number))
        begin = int(kept.begins[place])
        end = int(kept.begins[place + 1]) if place + 1 < len(kept.begins) else len(kept.options)
        if end == begin + 1:
            return begin
        return begin + int(np.argmin(objective.cost(self.estimates(job))[begin:end]))

    def options_by(self, objective: Objective, job: int) -> list[int]:
        """All options of a job, those of least cost first."""
        kind = int(self._jobs.kind[job])
        key = (objective, kind)
        if key in self._best:
            return self._best[key]
        order: list[int] = np.argsort(objective.cost(self.estimates(job)), kind="stable").tolist()
        if objective.keeps_order and self._oracle.factors(job, self._jobs.kinds[kind]) is None:
            self._best[key] = order
        return order

    @property
    def _capacity(self) -> int:
        return len(self._columns.job)

    def _kept(self, options: Options, idle_w: Floats) -> _Kind:
        numbers = np.array([self._shape_number[shape] for shape in options.shapes()], dtype=int)
        shapes, begins = np.unique(numbers, return_index=True)
        return _Kind(options, idle_w[options.type_index] * options.gpus, begins, shapes, numbers)

    def _read(self) -> None:
        """Give rows to jobs that came since the last look."""
        if not self._unread:
            return
        first, last = len(self._row), len(self._row) + len(self._unread)
        if last > self._capacity:
            self._grow(max(last, 2 * self._capacity))
        new = np.fromiter(self._unread, dtype=np.int64, count=last - first)
        rows = slice(first, last)
        table = self._jobs
        self._columns.job[rows] = new
        self._columns.kind[rows] = table.kind[new]
        self._columns.user[rows] = table.user[new]
        self._columns.priority[rows] = table.priority[new]
        self._columns.arrival_s[rows] = table.arrival_s[new]
        self._columns.deadline_s[rows] = table.deadline_s[new]
        self._columns.work[rows] = np.fromiter(self._unread.values(), float, last - first)
        for offset, job in enumerate(self._unread):
            self._row[job] = first + offset
        self._unread.clear()
        for objective in self._costs:
            self._fill(objective, np.arange(first, last))

    def _grow(self, capacity: int) -> None:
        used = len(self._row)
        grown = _empty_columns(capacity)
        for old, new in zip(self._columns, grown, strict=True):
            new[:used] = old[:used]
        self._columns = grown
        for objective, costs in self._costs.items():
            wider = np.full((len(self.shapes), capacity), np.inf)
            wider[:, :used] = costs[:, :used]
            self._costs[objective] = wider

    def _fill(self, objective: Objective, rows: Ints) -> None:
        costs, columns = self._costs[objective], self._columns
        kinds = columns.kind[rows]
        for kind in np.unique(kinds) if len(rows) > 1 else kinds[:1]:
            kept = self._kinds[kind]
            mine = rows[kinds == kind]
            costs[:, mine] = np.inf
            if len(kept.options):
                estimates = self._estimates(kind, columns.job[mine].tolist(), columns.work[mine])
                least = np.minimum.reduceat(objective.cost(estimates), kept.begins, axis=1)
                costs[np.ix_(kept.shapes, mine)] = least.T

    def _estimates(
        self, kind: int, jobs: Sequence[int], work: Floats, *, one: bool = False
    ) -> Estimates:
        kept = self._kinds[kind]
        time_s = work[:, None] * kept.options.sample_s
        power_w = np.broadcast_to(kept.options.power_w, time_s.shape)
        factors = self._oracle.factors_of(jobs, self._jobs.kinds[kind])
        if factors is not None:
            time_s, power_w = time_s * factors.time, power_w * factors.power
        if one:
            time_s, power_w = time_s[0], power_w[0]
        return Estimates(time_s, power_w, kept.idle_w, kept.options.gpus)


def _empty_columns(capacity: int) -> Columns:
    types = (np.int64,) * 4 + (np.float64,) * 3
    return Columns._make(np.empty(capacity, dtype=each) for each in types)
