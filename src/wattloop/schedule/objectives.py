"""Objectives for choosing placements: costs of time and power, lower is better."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.estimates.oracle import PlacementOptions

Floats = NDArray[np.float64]


class Estimates(NamedTuple):
    """Estimates of jobs of one kind on their options: arrays (jobs, options) or (options,).

    Attributes:
        time_s: time until the job is done.
        power_w: power of the placement's GPUs while it runs.
        idle_w: idle power of those GPUs.
    """

    time_s: Floats
    power_w: Floats
    idle_w: Floats
    gpus: NDArray[np.int64]
    options: PlacementOptions


@dataclass(frozen=True)
class PlacementObjective:
    """Named cost function.

    Attributes:
        name: name in caches and tables; objectives with the same name are equal.
        keeps_order: the best option of a job does not depend on its remaining work.
        degree: the cost grows with work^degree; None for another relation. Costs with a degree are
            computed once per kind instead of for each job.
    """

    name: str
    cost: Callable[[Estimates], Floats]
    keeps_order: bool = True
    degree: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementObjective) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


# named functions, not lambdas: a simulation that is saved is pickled
def _time(estimates: Estimates) -> Floats:
    return estimates.time_s


def _energy(estimates: Estimates) -> Floats:
    return estimates.power_w * estimates.time_s


def _edp(estimates: Estimates) -> Floats:
    return estimates.power_w * estimates.time_s**2  # thesis equation 5.1


TIME = PlacementObjective("time", _time, degree=1)
ENERGY = PlacementObjective("energy", _energy, degree=1)
EDP = PlacementObjective("edp", _edp, degree=2)
Objective = PlacementObjective  # name in earlier releases
