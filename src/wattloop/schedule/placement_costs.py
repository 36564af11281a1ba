"""Estimated time, power and cost of every placement of a job."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, Shape
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.objectives import Estimates, Objective

Floats = NDArray[np.float64]


class Placed(NamedTuple):
    """The best option within one shape; its cost is that of one sample where a kind is placed."""

    shape: Shape
    option: int
    cost: float


class UnitCosts:
    """Where cost = unit cost x work^degree, kinds are compared with each other once for all jobs.

    Args:
        objective: one that has a degree.
        estimates: of one sample, for each kind.
        shape_numbers: of each option, for each kind: index into `shapes`.
        shapes: of all kinds.

    Attributes:
        degree: the cost of a job is a power of its work.
        by_shape: cost of one sample, (shapes, kinds).
        ranked, best: the best option of each shape, for each kind.
    """

    def __init__(
        self,
        objective: Objective,
        estimates: Sequence[Estimates],
        shape_numbers: Sequence[Sequence[int]],
        shapes: Sequence[Shape],
    ) -> None:
        self.degree = objective.degree or 0
        self._unit = np.full((len(estimates), len(shapes)), np.inf)
        self.ranked: list[list[Placed]] = []
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
            placed = [Placed(shapes[n], option, costs[option]) for n, option in best.items()]
            self.ranked.append(sorted(placed, key=lambda found: found.cost))
            self.best.append({found.shape: found.option for found in placed})
        self.by_shape: Floats = np.ascontiguousarray(self._unit.T)

    def of(self, kinds: NDArray[np.int64], work: Floats) -> Floats:
        """Cost of jobs on each shape, (shapes, jobs)."""
        unit = self._unit[kinds].T
        with np.errstate(invalid="ignore"):  # infinite x no work left
            costs: Floats = unit * work**self.degree
        return np.where(np.isinf(unit), np.inf, costs) if not work.all() else costs

    def scale(self, work: float) -> float:
        """What a unit cost is multiplied by for so much work."""
        return float(work**self.degree)


class OwnPlaced:
    """Placements of one job, least cost first; made while one looks, as the first often fits.

    Args:
        all_shapes: of all kinds.
        shapes: of this job, as indices into `all_shapes`.
        begins: where the options of each of its shapes begin.
        costs: of each option.
        least: of each shape.
    """

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

    def __iter__(self) -> Iterator[Placed]:
        begins, costs = self._begins, self._costs
        for place in np.argsort(self._least, kind="stable").tolist():
            begin = int(begins[place])
            end = int(begins[place + 1]) if place + 1 < len(begins) else len(costs)
            option = begin + int(np.argmin(costs[begin:end]))
            shape = self._all_shapes[int(self._shapes[place])]
            yield Placed(shape, option, float(self._least[place]))


# What is believed of jobs on their placements: seconds and watts of every option.
#
# Options belong to kinds of jobs; a job is its kind times its work, and where the oracle has
# errors for each job, times those.

Ints = NDArray[np.int64]


class KindOptions(NamedTuple):
    """The options of a kind, which are sorted by shape.

    Attributes:
        options: the placements.
        idle_w: what the GPUs of each would draw with nothing to do.
        begins: where the options of each of its shapes begin.
        shapes: which shapes these are, as indices into `Beliefs.shapes`.
        shape_of: the shape of each option, likewise.
    """

    options: PlacementOptions
    idle_w: Floats
    begins: Ints
    shapes: Ints
    shape_of: Ints


class PlacementEstimates:
    """Time and power of every job on every option it has.

    Args:
        jobs: all jobs there will be.
        oracle: who is believed.
        idle_w: of one GPU, by type index.

    Attributes:
        shapes: every shape that a placement of any kind has.
        shape_number: the place of each in `shapes`.
        kinds: options of each kind.
        kind_of: kind of every job, by job number.
        is_exact: estimates of a job are those of its kind.
    """

    def __init__(self, jobs: JobTable, oracle: Oracle, idle_w: Sequence[float]) -> None:
        self._jobs, self._oracle = jobs, oracle
        options = [oracle.options(kind) for kind in jobs.kinds]
        found = {shape for each in options for shape in each.shapes()}
        self.shapes: tuple[Shape, ...] = tuple(sorted(found))
        self.shape_number = {shape: number for number, shape in enumerate(self.shapes)}
        self.kinds = [self._kept(each, np.asarray(idle_w, dtype=float)) for each in options]
        self.kind_of: list[int] = jobs.kind.tolist()
        # Without errors of their own, jobs of one kind differ by nothing but their work.
        self.is_exact = oracle.time_error == 0.0 == oracle.power_error and all(
            oracle.factors(0, kind) is None for kind in jobs.kinds
        )
        self._units: dict[str, UnitCosts | None] = {}

    def of(self, job: int, work: float) -> Estimates:
        """Of one job, with so many samples to go, on each of its options."""
        kind = self.kind_of[job]
        kept = self.kinds[kind]
        time_s, power_w = work * kept.options.sample_s, kept.options.power_w
        factors = self._oracle.factors(job, self._jobs.kinds[kind])
        if factors is not None:
            time_s, power_w = time_s * factors.time, power_w * factors.power
        return _estimates(kept, time_s, power_w)

    def of_many(self, kind: int, jobs: Sequence[int], work: Floats) -> Estimates:
        """Of jobs of one kind, (jobs, options)."""
        kept = self.kinds[kind]
        time_s = work[:, None] * kept.options.sample_s
        power_w = np.broadcast_to(kept.options.power_w, time_s.shape)
        factors = self._oracle.factors_of(jobs, self._jobs.kinds[kind])
        if factors is not None:
            time_s, power_w = time_s * factors.time, power_w * factors.power
        return _estimates(kept, time_s, power_w)

    def unit_costs(self, objective: Objective) -> UnitCosts | None:
        """Costs of one sample; None where those of a job do not follow from them."""
        if objective.name not in self._units:
            found = None
            if self.is_exact and objective.degree is not None:
                kinds = self.kinds
                estimates = [_estimates(k, k.options.sample_s, k.options.power_w) for k in kinds]
                numbers = [k.shape_of.tolist() for k in kinds]
                found = UnitCosts(objective, estimates, numbers, self.shapes)
            self._units[objective.name] = found
        return self._units[objective.name]

    def _kept(self, options: PlacementOptions, idle_w: Floats) -> KindOptions:
        numbers = np.array([self.shape_number[shape] for shape in options.shapes()], dtype=int)
        shapes, begins = np.unique(numbers, return_index=True)
        of_gpus_w = idle_w[options.type_index] * options.gpus
        return KindOptions(options, of_gpus_w, begins, shapes, numbers)


def _estimates(kept: KindOptions, time_s: Floats, power_w: Floats) -> Estimates:
    return Estimates(time_s, power_w, kept.idle_w, kept.options.gpus, kept.options)
