"""Metrics that combine energy and time: EDP, ED2P, EDS. Smaller is better for every objective.

    EDP    = E t
    ED2P   = E t^2
    E2DP   = E^2 t
    EDS(k) = alpha E + beta t,  alpha = (k - 1) / (k E_ref),  beta = 1 / (k t_ref)

EDS(k) is 1 at the reference and accepts to run k times slower for no energy at all: for k = 2 a
per cent of energy is worth a per cent of time, for k = 1.5 time counts twice as much. Koszczal et
al. (Euro-Par 2023), after Krzywaniak, Czarnul and Proficz (DEPO, 2022).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wattloop.core.errors import ConfigError


class Point(NamedTuple):
    """Energy and time of one setting, in one scope of energy."""

    time_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        return self.energy_j / self.time_s


Objective = Callable[[Point], float]


def edp(point: Point) -> float:
    return point.energy_j * point.time_s


def ed2p(point: Point) -> float:
    """Energy-delay-squared product, J s^2."""
    return point.energy_j * point.time_s**2


def e2dp(point: Point) -> float:
    """Energy-squared-delay product, J^2 s."""
    return point.energy_j**2 * point.time_s


def dcie(pue: float) -> float:
    """Data center infrastructure efficiency, the inverse of the PUE (thesis 2.1.2.4)."""
    return 1 / pue


def swap(performance: float, power_w: float, space: float) -> float:
    """Space, wattage and performance: performance / (space x power) (thesis, eq. 2.3).

    `space` is in rack units or square metres, `performance` any rate of a benchmark.
    """
    return performance / (space * power_w)


def eds(point: Point, reference: Point, k: float) -> float:
    """Energy-delay sum: 1 at the reference."""
    alpha = (k - 1) / (k * reference.energy_j)
    beta = 1 / (k * reference.time_s)
    return alpha * point.energy_j + beta * point.time_s


def energy_gain_pct(point: Point, reference: Point) -> float:
    """Energy saved against the reference, per cent; negative when more was used."""
    return 100 * (1 - point.energy_j / reference.energy_j)


def time_loss_pct(point: Point, reference: Point) -> float:
    """Time lost against the reference, per cent; negative when it was faster."""
    return 100 * (point.time_s / reference.time_s - 1)


def gain_minus_loss_pct(point: Point, reference: Point) -> float:
    """Energy gain minus time loss, per cent: larger is better."""
    return energy_gain_pct(point, reference) - time_loss_pct(point, reference)


METRICS: Mapping[str, str] = {
    "energy": "energy",
    "time": "time",
    "power": "average power",
    "edp": "energy-delay product",
    "ed2p": "energy-delay-squared product",
    "e2dp": "energy-squared-delay product",
    "eds": "energy-delay sum, with k",
    "gain_minus_loss": "energy gain minus time loss, against the reference",
}


def objective(metric: str, reference: Point, k: float = 2.0) -> Objective:
    """Return the function to be minimised for `metric`.

    Raises:
        ConfigError: unknown metric, or a `k` that is not a number above 1.
    """
    if metric == "eds" and not (math.isfinite(k) and k > 1):
        raise ConfigError(f"EDS: k is {k:g}; use a number above 1, such as 1.5 or 2")
    objectives: dict[str, Objective] = {
        "energy": lambda point: point.energy_j,
        "time": lambda point: point.time_s,
        "power": lambda point: point.power_w,
        "edp": edp,
        "ed2p": ed2p,
        "e2dp": e2dp,
        "eds": lambda point: eds(point, reference, k),
        "gain_minus_loss": lambda point: -gain_minus_loss_pct(point, reference),
    }
    if metric not in objectives:
        raise ConfigError(f"unknown metric '{metric}'; known are {', '.join(METRICS)}")
    return objectives[metric]
