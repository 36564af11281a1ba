"""Placements of a kind of job, or of one job, by what they cost."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.oracle.options import Shape

__all__ = ["OwnPlaced", "Placed", "UnitCosts"]

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
