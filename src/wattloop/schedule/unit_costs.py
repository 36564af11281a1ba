"""Costs of one sample of each kind of job, from which those of any job follow."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.oracle.options import Shape

__all__ = ["Placed", "UnitCosts"]

Floats = NDArray[np.float64]


class Placed(NamedTuple):
    """The best option of a kind within one shape."""

    shape: Shape
    option: int
    unit_cost: float


class UnitCosts:
    """Where cost = unit cost x work^degree, kinds are compared with each other once for all jobs.

    Args:
        objective: one that has a degree.
        estimates: of one sample, for each kind.
        shape_numbers: of each option, for each kind: index into `shapes`.
        shapes: of all kinds.
    """

    def __init__(
        self,
        objective: Objective,
        estimates: Sequence[Estimates],
        shape_numbers: Sequence[Sequence[int]],
        shapes: Sequence[Shape],
    ) -> None:
        self._degree = objective.degree or 0
        self._unit = np.full((len(estimates), len(shapes)), np.inf)
        self.ranked: list[list[Placed]] = []
        self.best: list[dict[Shape, int]] = []
        for kind, (each, numbers) in enumerate(zip(estimates, shape_numbers, strict=True)):
            # a kind that fits no GPU here has no placement to ask about
            costs: list[float] = objective.cost(each).tolist() if len(numbers) else []
            best: dict[int, int] = {}
            for option, number in enumerate(numbers):
                if number not in best or costs[option] < costs[best[number]]:
                    best[number] = option
            for number, option in best.items():
                self._unit[kind, number] = costs[option]
            placed = [Placed(shapes[n], option, costs[option]) for n, option in best.items()]
            self.ranked.append(sorted(placed, key=lambda found: found.unit_cost))
            self.best.append({found.shape: found.option for found in placed})

    def of(self, kinds: NDArray[np.int64], work: Floats) -> Floats:
        """Cost of jobs on each shape, (shapes, jobs)."""
        costs: Floats = self._unit[kinds].T * work**self._degree
        return costs

    def scale(self, work: float) -> float:
        """What a unit cost is multiplied by for so much work."""
        return float(work**self._degree)
