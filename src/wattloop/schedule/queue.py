"""Waiting jobs as columns, with the cost of every placement shape cached.

In each round a policy needs the best job for the free machines. Costs of a waiting job do not
change, so they are computed once, on first use. A round then takes a few passes over arrays, for
any number of placements.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, Shape
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.objectives import Estimates, PlacementObjective

Floats = NDArray[np.float64]


class RankedOption(NamedTuple):
    """Best option of a shape; the cost is per sample for a whole kind."""

    shape: Shape
    option: int
    cost: float


class UnitCosts:
    """Costs of one sample: where cost = unit cost x work^degree, all jobs of a kind share them.

    Attributes:
        by_shape: cost of one sample, (shapes, kinds).
        ranked, best: the best option of each shape, for each kind.
    """

    def __init__(
        self,
        objective: PlacementObjective,
        estimates: Sequence[Estimates],
        shape_numbers: Sequence[Sequence[int]],
        shapes: Sequence[Shape],
    ) -> None:
        self.degree = objective.degree or 0
        self._unit = np.full((len(estimates), len(shapes)), np.inf)
        self.ranked: list[list[RankedOption]] = []
        self.best: list[dict[Shape, int]] = []
        for kind, (each, numbers) in enumerate(zip(estimates, shape_numbers, strict=True)):
            # A kind that fits no GPU has no estimates to speak of.
            costs: list[float] = objective.cost(each).tolist() if len(numbers) else []
            best: dict[int, int] = {}
            for option, number in enumerate(numbers):
                if number not in best or costs[option] < costs[best[number]]:
                    best[number] = option
            for number, option in best.items():
                self._unit[kind, number] = costs[option]
            placed = [RankedOption(shapes[n], option, costs[option]) for n, option in best.items()]
            self.ranked.append(sorted(placed, key=lambda found: found.cost))
            self.best.append({found.shape: found.option for found in placed})
        self.by_shape: Floats = np.ascontiguousarray(self._unit.T)

    def of(self, kinds: NDArray[np.int64], work: Floats) -> Floats:
        """Return the cost of jobs on each shape, (shapes, jobs)."""
        unit = self._unit[kinds].T
        with np.errstate(invalid="ignore"):  # infinite x no work left
            costs: Floats = unit * work**self.degree
        return np.where(np.isinf(unit), np.inf, costs) if not work.all() else costs

    def scale(self, work: float) -> float:
        """Return the factor of a unit cost for this work."""
        return float(work**self.degree)


class JobPlacements:
    """Placements of one job, least cost first, created lazily because the first one often fits."""

    def __init__(
        self,
        all_shapes: Sequence[Shape],
        shapes: NDArray[np.int64],
        begins: NDArray[np.int64],
        costs: Floats,
        least: Floats,
    ) -> None:
        self._all_shapes, self._shapes, self._begins = all_shapes, shapes, begins
        self._costs, self._least = costs, least

    def __iter__(self) -> Iterator[RankedOption]:
        begins, costs = self._begins, self._costs
        for place in np.argsort(self._least, kind="stable").tolist():
            begin = int(begins[place])
            end = int(begins[place + 1]) if place + 1 < len(begins) else len(costs)
            option = begin + int(np.argmin(costs[begin:end]))
            shape = self._all_shapes[int(self._shapes[place])]
            yield RankedOption(shape, option, float(self._least[place]))


Ints = NDArray[np.int64]


class KindOptions(NamedTuple):
    """Options of a kind, sorted by shape.

    Attributes:
        idle_w: idle power of the GPUs of each option.
        begins: index of the first option of each shape.
        shapes, shape_of: its shapes, and the shape of each option, as indices into all shapes.
    """

    options: PlacementOptions
    idle_w: Floats
    begins: Ints
    shapes: Ints
    shape_of: Ints


class PlacementEstimates:
    """Time and power of every job on every option.

    An option belongs to a kind. A job is its kind times its work, times its own errors if the
    oracle has some.

    Attributes:
        shapes: all shapes of placements of any kind.
        shape_number: index of each in `shapes`.
        is_exact: estimates of a job are those of its kind.
    """

    def __init__(self, jobs: JobTable, oracle: Oracle, idle_w: Sequence[float]) -> None:
        self._jobs, self._oracle = jobs, oracle
        options = [oracle.options(kind) for kind in jobs.kinds]
        found = {shape for each in options for shape in each.shapes()}
        self.shapes: tuple[Shape, ...] = tuple(sorted(found))
        self.shape_number = {shape: number for number, shape in enumerate(self.shapes)}
        self.kinds = [self._kind_options(each, np.asarray(idle_w, dtype=float)) for each in options]
        self.kind_of: list[int] = jobs.kind.tolist()
        # Without errors of their own, jobs of one kind differ by nothing but their work.
        self.is_exact = oracle.time_error == 0.0 == oracle.power_error and all(
            oracle.factors(0, kind) is None for kind in jobs.kinds
        )
        self._units: dict[str, UnitCosts | None] = {}

    def of(self, job: int, work: float) -> Estimates:
        """Return the estimates of one job with this remaining work on each of its options."""
        kind = self.kind_of[job]
        kept = self.kinds[kind]
        time_s, power_w = work * kept.options.sample_s, kept.options.power_w
        factors = self._oracle.factors(job, self._jobs.kinds[kind])
        if factors is not None:
            time_s, power_w = time_s * factors.time, power_w * factors.power
        return _estimates(kept, time_s, power_w)

    def of_many(self, kind: int, jobs: Sequence[int], work: Floats) -> Estimates:
        """Return the estimates of jobs of one kind, (jobs, options)."""
        kept = self.kinds[kind]
        time_s = work[:, None] * kept.options.sample_s
        power_w = np.broadcast_to(kept.options.power_w, time_s.shape)
        factors = self._oracle.factors_of(jobs, self._jobs.kinds[kind])
        if factors is not None:
            time_s, power_w = time_s * factors.time, power_w * factors.power
        return _estimates(kept, time_s, power_w)

    def unit_costs(self, objective: PlacementObjective) -> UnitCosts | None:
        """Return the costs of one sample; None if those of a job do not follow from them."""
        if objective.name not in self._units:
            found = None
            if self.is_exact and objective.degree is not None:
                kinds = self.kinds
                estimates = [_estimates(k, k.options.sample_s, k.options.power_w) for k in kinds]
                numbers = [k.shape_of.tolist() for k in kinds]
                found = UnitCosts(objective, estimates, numbers, self.shapes)
            self._units[objective.name] = found
        return self._units[objective.name]

    def _kind_options(self, options: PlacementOptions, idle_w: Floats) -> KindOptions:
        numbers = np.array([self.shape_number[shape] for shape in options.shapes()], dtype=int)
        shapes, begins = np.unique(numbers, return_index=True)
        of_gpus_w = idle_w[options.type_index] * options.gpus
        return KindOptions(options, of_gpus_w, begins, shapes, numbers)


def _estimates(kept: KindOptions, time_s: Floats, power_w: Floats) -> Estimates:
    return Estimates(time_s, power_w, kept.idle_w, kept.options.gpus, kept.options)


FIRST_CAPACITY = 64


class Columns(NamedTuple):
    """Waiting jobs in any order: views that are valid for one round."""

    job: Ints
    kind: Ints
    user: Ints
    priority: Ints
    arrival_s: Floats
    deadline_s: Floats
    work: Floats


class Rows:
    """Columns that grow by doubling; the last row fills the place of a removed one.

    Attributes:
        costs: objective -> cost of every waiting job on each shape, (shapes, capacity).
    """

    def __init__(self, jobs: JobTable, shapes: int) -> None:
        self._jobs, self._shapes = jobs, shapes
        self._row: dict[int, int] = {}
        self._columns = _empty_columns(FIRST_CAPACITY)
        self.costs: dict[str, Floats] = {}

    def __len__(self) -> int:
        return len(self._row)

    def columns(self) -> Columns:
        used = len(self._row)
        return Columns._make([column[:used] for column in self._columns])

    def new_costs(self) -> Floats:
        """Return a cost table for all rows without values."""
        return np.full((self._shapes, len(self._columns.job)), np.nan)

    def append(self, work: Mapping[int, float]) -> Ints:
        """Add jobs with their remaining samples; return their rows."""
        first, last = len(self._row), len(self._row) + len(work)
        if last > len(self._columns.job):
            self._grow(max(last, 2 * len(self._columns.job)))
        columns, table = self._columns, self._jobs
        if len(work) == 1:  # most often; slices and arrays would take five times as long
            ((job, samples),) = work.items()
            values = (job, table.kind[job], table.user[job], table.priority[job])
            times_s = (table.arrival_s[job], table.deadline_s[job])
            for column, value in zip(columns, (*values, *times_s, samples), strict=True):
                column[first] = value
            self._row[job] = first
            return np.array([first])
        rows, new = slice(first, last), np.fromiter(work, dtype=np.int64, count=len(work))
        columns.job[rows] = new
        columns.kind[rows] = table.kind[new]
        columns.user[rows] = table.user[new]
        columns.priority[rows] = table.priority[new]
        columns.arrival_s[rows] = table.arrival_s[new]
        columns.deadline_s[rows] = table.deadline_s[new]
        columns.work[rows] = np.fromiter(work.values(), dtype=float, count=len(work))
        self._row.update(zip(work, range(first, last), strict=True))
        return np.arange(first, last)

    def remove(self, job: int) -> None:
        row, last = self._row.pop(job), len(self._row)
        if row != last:
            for column in self._columns:
                column[row] = column[last]
            for costs in self.costs.values():
                costs[:, row] = costs[:, last]
            self._row[int(self._columns.job[row])] = row

    def _grow(self, capacity: int) -> None:
        used = len(self._row)
        grown = _empty_columns(capacity)
        for old, new in zip(self._columns, grown, strict=True):
            new[:used] = old[:used]
        self._columns = grown
        for objective, costs in self.costs.items():
            wider = self.new_costs()
            wider[:, :used] = costs[:, :used]
            self.costs[objective] = wider


def _empty_columns(capacity: int) -> Columns:
    types = (np.int64,) * 4 + (np.float64,) * 3
    return Columns._make(np.empty(capacity, dtype=each) for each in types)


class CostTable(NamedTuple):
    """Costs of waiting jobs by owner: a kind of jobs, or a single job.

    Attributes:
        costs: least cost of every owner on each shape, (shapes, owners); infinite for none.
        owner: owner of every waiting job; None where each is its own.
        scale: factor of the owner's cost for every waiting job; None for 1.
    """

    costs: Floats
    owner: Ints | None
    scale: Floats | None

    def of_jobs(self, costs: Floats) -> Floats:
        """Convert costs by owner to costs of every waiting job."""
        if self.owner is None:
            return costs
        found = costs[self.owner]
        if self.scale is None:
            return found
        with np.errstate(invalid="ignore"):  # infinite x no work left
            scaled: Floats = found * self.scale
        return scaled if self.scale.all() else np.where(np.isinf(found), np.inf, scaled)

    def rows(self, values: Ints) -> Ints:
        """Convert values by owner to values of every waiting job."""
        return values if self.owner is None else values[self.owner]


MOST_GONE = 256
"""Jobs that have left the queue since the heap of arrivals was built: it may hold all of them."""


class JobQueue:
    """Waiting jobs.

    Args:
        jobs: all jobs, including future ones.
        oracle: oracle of estimates.
        idle_w: idle power of one GPU, by type index.

    Attributes:
        shapes: all shapes of placements of any kind.
        waiting: job -> remaining samples.
        kind_of: kind of every job, by job number.
        is_exact: estimates of a job are those of its kind.
    """

    def __init__(self, jobs: JobTable, oracle: Oracle, idle_w: Sequence[float]) -> None:
        self._known = estimates = PlacementEstimates(jobs, oracle, idle_w)
        self._kinds, self.kind_of = estimates.kinds, estimates.kind_of
        self._shapes_of_kind: list[list[int]] = [each.shapes.tolist() for each in self._kinds]
        self.shapes, self.is_exact = estimates.shapes, estimates.is_exact
        self.waiting: dict[int, float] = {}
        self._unread: dict[int, float] = {}
        self._heads: list[int] = []
        self._gone = 0
        self._rows = Rows(jobs, len(self.shapes))
        self._behind: set[str] = set()
        self._orders: dict[str, dict[int, list[int]]] = {}
        self._asked: tuple[int, float, str] | None = None
        self._answer: Floats = np.empty(0)

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, job: int) -> bool:
        return job in self.waiting

    def work(self, job: int) -> float:
        """Return the remaining samples of a waiting job."""
        return self.waiting[job]

    def add(self, job: int, work: float) -> None:
        self.waiting[job] = self._unread[job] = work
        heapq.heappush(self._heads, job)

    def remove(self, job: int) -> float:
        """Remove a job; return its remaining samples."""
        work = self.waiting.pop(job)
        self._gone += 1
        if self._unread.pop(job, None) is not None:
            return work
        self._rows.remove(job)
        return work

    def head(self) -> int | None:
        """Return the job that arrived first; None if the queue is empty."""
        heads, waiting = self._heads, self.waiting
        while heads:
            if heads[0] in waiting:
                return heads[0]
            heapq.heappop(heads)
        return None

    def in_order(self) -> list[int]:
        """Return all waiting jobs by arrival."""
        return sorted(self.waiting)

    def by_arrival(self) -> Iterator[int]:
        """Yield waiting jobs by arrival; the first few are cheap for any length of the queue."""
        if self._gone > MOST_GONE:
            self._heads, self._gone = sorted(self.waiting), 0  # a sorted list is a heap
        heads, last = self._heads, -1
        edge = [(heads[0], 0)] if heads else []
        while edge:
            job, place = heapq.heappop(edge)
            below = 2 * place + 1
            for child in range(below, min(below + 2, len(heads))):
                heapq.heappush(edge, (heads[child], child))
            # a job that was stopped and waits again may be in the heap twice
            if job != last and job in self.waiting:
                last = job
                yield job

    def columns(self) -> Columns:
        """Return all waiting jobs as arrays; rows match those of `cost`."""
        self._read()
        return self._rows.columns()

    def cost(self, objective: PlacementObjective) -> Floats:
        """Return the least cost of every waiting job on each shape: (shapes, jobs)."""
        self._read()
        costs, name = self._rows.costs, objective.name
        if name not in costs:
            costs[name] = self._rows.new_costs()
            self._behind.add(name)
        found = costs[name][:, : len(self._rows)]
        if name in self._behind and len(found):
            self._fill(objective, np.flatnonzero(np.isnan(found[0])))
            self._behind.remove(name)
        return found

    def table(self, objective: PlacementObjective) -> "CostTable":
        """Return the same as `cost`, with one column per kind if its jobs differ only by work."""
        unit = self._known.unit_costs(objective)
        if unit is None:
            return CostTable(self.cost(objective), None, None)
        waiting = self.columns()
        scale = waiting.work**unit.degree if unit.degree else None
        return CostTable(unit.by_shape, waiting.kind, scale)

    def estimates(self, job: int) -> Estimates:
        """Return the estimates of a waiting job on each of its options."""
        return self.estimates_for(job, self.waiting[job])

    def estimates_for(self, job: int, work: float) -> Estimates:
        """Return the estimates of any job with this remaining work on each of its options."""
        return self._known.of(job, work)

    def options(self, job: int) -> PlacementOptions:
        return self._kinds[self.kind_of[job]].options

    def shape_of(self, job: int) -> Ints:
        """Return the shape of each option of a job, as an index into `shapes`."""
        return self._kinds[self.kind_of[job]].shape_of

    def shapes_of_kind(self, kind: int) -> list[int]:
        """Return the distinct shapes of a kind's options, as indices into `shapes`."""
        return self._shapes_of_kind[kind]

    def best_option(self, objective: PlacementObjective, job: int, shape: Shape) -> int:
        """Return the option of least cost within a shape; the first of equals."""
        unit = self._known.unit_costs(objective)
        if unit is not None:
            return unit.best[self.kind_of[job]][shape]
        kept = self._kinds[self.kind_of[job]]
        number = self._known.shape_number[shape]
        place = int(np.searchsorted(kept.shapes, number))
        begin = int(kept.begins[place])
        end = int(kept.begins[place + 1]) if place + 1 < len(kept.begins) else len(kept.options)
        if end == begin + 1:
            return begin
        return begin + int(np.argmin(self._own_costs(objective, job)[begin:end]))

    def options_by(self, objective: PlacementObjective, job: int) -> list[int]:
        """Return all options of a job, least cost first."""
        kind = self.kind_of[job]
        orders = self._orders.setdefault(objective.name, {})
        if kind in orders:
            return orders[kind]
        order: list[int] = np.argsort(self._own_costs(objective, job), kind="stable").tolist()
        if objective.keeps_order and self.is_exact:
            orders[kind] = order
        return order

    def placed_by(self, objective: PlacementObjective, job: int) -> Iterable[RankedOption] | None:
        """Return the best option of each shape, least cost first; None if a cost is NaN."""
        unit = self._known.unit_costs(objective)
        if unit is not None:
            return unit.ranked[self.kind_of[job]]
        kept = self._kinds[self.kind_of[job]]
        if not len(kept.options):
            return []
        costs = self._own_costs(objective, job)
        least = np.minimum.reduceat(costs, kept.begins)
        if np.isnan(least).any():
            return None
        return JobPlacements(self.shapes, kept.shapes, kept.begins, costs, least)

    def cost_of(self, objective: PlacementObjective, job: int, placed: RankedOption) -> float:
        """Return the cost of a placement for this job."""
        unit = self._known.unit_costs(objective)
        if unit is None or placed.cost == math.inf:
            return placed.cost
        return placed.cost * unit.scale(self.waiting[job])

    def _read(self) -> None:
        """Give rows to new jobs; their costs are computed on use."""
        if self._unread:
            new = self._rows.append(self._unread)
            self._unread.clear()
            for name, costs in self._rows.costs.items():
                costs[:1, new] = np.nan
                self._behind.add(name)

    def _fill(self, objective: PlacementObjective, rows: Ints) -> None:
        costs, columns = self._rows.costs[objective.name], self._rows.columns()
        kinds = columns.kind[rows]
        unit = self._known.unit_costs(objective)
        if unit is not None:
            costs[:, rows] = unit.of(kinds, columns.work[rows])
            return
        if len(rows) == 1:
            self._fill_one(objective, int(rows[0]), int(columns.job[rows[0]]))
            return
        for kind in np.unique(kinds):
            kept = self._kinds[kind]
            mine = rows[kinds == kind]
            costs[:, mine] = np.inf
            if len(kept.options):
                estimates = self._known.of_many(
                    kind, columns.job[mine].tolist(), columns.work[mine]
                )
                least = np.minimum.reduceat(objective.cost(estimates), kept.begins, axis=1)
                costs[np.ix_(kept.shapes, mine)] = least.T

    def _fill_one(self, objective: PlacementObjective, row: int, job: int) -> None:
        costs, kept = self._rows.costs[objective.name], self._kinds[self.kind_of[job]]
        costs[:, row] = np.inf
        if len(kept.options):
            own = self._own_costs(objective, job)
            costs[kept.shapes, row] = np.minimum.reduceat(own, kept.begins)

    def _own_costs(self, objective: PlacementObjective, job: int) -> Floats:
        """Return the cost of each option of a waiting job; the last result is cached.

        A job that arrives alone is ranked and started before the next one arrives.
        """
        asked = (job, self.waiting[job], objective.name)
        if self._asked != asked:
            self._asked, self._answer = asked, objective.cost(self.estimates(job))
        return self._answer
