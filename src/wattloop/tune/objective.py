"""Objective of a search, evaluated over configurations that reach the target quality."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.accounting.energy_delay import Point, e2dp, ed2p, edp, eds
from wattloop.core.errors import ConfigError
from wattloop.core.records import from_plain, to_plain
from wattloop.core.units import kwh_from_joules

# Objective of SM2 over a set of configurations (Geißler et al., equation 2):
#     f(alpha, beta) = alpha P + (1 - alpha) (beta E + (1 - beta) LR)
# Performance P, energy E and learning rate LR are each rescaled to 0..1 over the compared
# configurations, with 1 as the best: a low energy, a high rate.

ALPHA, BETA = 0.75, 0.5
"""Best values in the document."""


def sm2_scores(
    quality: Sequence[float | None],
    energy_j: Sequence[float | None],
    rate: Sequence[float | None],
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
    maximize: bool = True,
) -> list[float]:
    """Return the score f of each configuration; larger is better.

    A configuration whose quality or energy is missing or not finite has minus infinity, and does
    not count in the rescaling of the others. Rates that are missing count as the lowest.

    `energy_j`: of each, for the same amount of training (the document takes an epoch).
    `alpha`: weight of the quality.
    `beta`: weight of the energy against the rate, in what alpha leaves.
    """
    known = [
        index
        for index, (q, e) in enumerate(zip(quality, energy_j, strict=True))
        if q is not None and e is not None and math.isfinite(q) and math.isfinite(e)
    ]
    p = rescale([quality[i] for i in known], invert=not maximize)
    e = rescale([energy_j[i] for i in known], invert=True)
    lr = rescale([rate[i] for i in known])
    scores = [-math.inf] * len(quality)
    for place, index in enumerate(known):
        efficiency = beta * e[place] + (1 - beta) * lr[place]
        scores[index] = alpha * p[place] + (1 - alpha) * efficiency
    return scores


def rescale(values: Sequence[float | None], *, invert: bool = False) -> list[float]:
    """Rescale each value to 0..1 of their range; all 1 when they are equal; missing ones 0."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    if not there:
        return [0.0 for _ in values]
    low, high = min(there), max(there)
    scale = high - low
    found = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(0.0)
        elif scale <= 0:
            found.append(1.0)
        else:
            share = (value - low) / scale
            found.append(1 - share if invert else share)
    return found


# Every objective except SM2 scores a training by itself. SM2 (Geißler et al., equation 2) weighs
# several trainings against each other and needs all of them (`Objective.compared`).

OBJECTIVES: Mapping[str, str] = {
    "energy": "least energy",
    "time": "least time",
    "edp": "energy-delay product",
    "ed2p": "energy-delay-squared product",
    "e2dp": "energy-squared-delay product",
    "eds": "energy-delay sum against the default configuration, with k",
    "cost": "electricity, and machine time where it has a price",
    "carbon": "carbon of the electricity",
    "quotient": "quality per energy of an epoch (Burmester et al.)",
    "sm2": "weighted quality, energy and learning rate (Geißler et al.), with alpha and beta",
    "quality": "best quality, whatever it takes",
}
PRODUCTS = {"edp": edp, "ed2p": ed2p, "e2dp": e2dp}
NEED_QUALITY = frozenset({"quotient", "sm2", "quality"})
"""Objectives that need a quality metric."""
OPTIONS = ("alpha", "beta", "price_per_kwh", "price_per_hour", "carbon_g_per_kwh")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Cost and quality of a training, in one scope of energy.

    Attributes:
        epochs: how many it took; the quotient is per epoch.
        learning_rate: what it was trained with, for SM2.
    """

    time_s: float
    energy_j: float | None
    quality: float | None = None
    epochs: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Scores of a training; smaller is better for each, infinity when unknown.

    Attributes:
        names: one of `OBJECTIVES`, or several for a Pareto front.
        options: `alpha`, `beta` of SM2; `price_per_kwh`, `price_per_hour`; `carbon_g_per_kwh`.
    """

    names: tuple[str, ...] = ("energy",)
    maximize_quality: bool = True
    k: float = 2.0
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("no objective; give one, such as energy")
        for name in self.names:
            if name not in OBJECTIVES:
                raise ConfigError(f"unknown objective '{name}'; known are {', '.join(OBJECTIVES)}")
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"objectives {', '.join(self.names)}: one is given twice")
        if not (math.isfinite(self.k) and self.k > 1):
            raise ConfigError(f"EDS: k is {self.k:g}; use a number above 1, such as 1.5 or 2")
        for name in self.options:
            if name not in OPTIONS:
                raise ConfigError(f"objective: unknown option '{name}'")
        for option in ("alpha", "beta"):
            if not 0 <= self.options.get(option, 0.5) <= 1:
                raise ConfigError(f"SM2: {option} is {self.options[option]:g}; use 0 to 1")
        for name, option in (("cost", "price_per_kwh"), ("carbon", "carbon_g_per_kwh")):
            if name in self.names and option not in self.options:
                raise ConfigError(f"objective {name}: give {option}")

    @property
    def name(self) -> str:
        return "+".join(self.names)

    @property
    def several(self) -> bool:
        """Return whether the result is a front, not a single best."""
        return len(self.names) > 1

    def score(self, trained: TrainingCost, reference: Point | None = None) -> float:
        """Return the score by the first objective; of SM2, which compares several, the energy."""
        return self._score(self.names[0], trained, reference)

    def scores(self, trained: TrainingCost, reference: Point | None = None) -> tuple[float, ...]:
        return tuple(self._score(name, trained, reference) for name in self.names)

    def compared(
        self, trained: Sequence[TrainingCost], reference: Point | None = None
    ) -> list[tuple[float, ...]]:
        """Return all scores of each training; SM2 weighs them against each other."""
        columns = [self._column(name, trained, reference) for name in self.names]
        return list(zip(*columns, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Objective":
        return from_plain(cls, data)

    def _column(
        self, name: str, trained: Sequence[TrainingCost], reference: Point | None
    ) -> list[float]:
        if name != "sm2":
            return [self._score(name, one, reference) for one in trained]
        scores = sm2_scores(
            [one.quality for one in trained],
            [_energy_per_epoch(one) for one in trained],
            [one.learning_rate for one in trained],
            alpha=self.options.get("alpha", ALPHA),
            beta=self.options.get("beta", BETA),
            maximize=self.maximize_quality,
        )
        return [-score for score in scores]

    def _score(self, name: str, trained: TrainingCost, reference: Point | None) -> float:  # noqa: PLR0911 - one line each
        if name == "quality":
            if trained.quality is None:
                return math.inf
            return -trained.quality if self.maximize_quality else trained.quality
        if name == "time":
            return trained.time_s
        if trained.energy_j is None:
            return math.inf
        point = Point(trained.time_s, trained.energy_j)
        if name == "quotient":
            return self._against_quotient(trained)
        if name in PRODUCTS:
            return PRODUCTS[name](point)
        if name == "eds":
            return eds(point, reference or point, self.k)
        if name == "cost":
            per_hour = self.options.get("price_per_hour", 0.0)
            per_kwh = self.options["price_per_kwh"]
            return per_kwh * kwh_from_joules(point.energy_j) + per_hour * point.time_s / 3_600
        if name == "carbon":
            return self.options["carbon_g_per_kwh"] * kwh_from_joules(point.energy_j)
        return point.energy_j  # energy, and SM2 of a single training

    def _against_quotient(self, trained: TrainingCost) -> float:
        """Minus quality per joule of an epoch; where less is better, quality times joules."""
        energy_j = _energy_per_epoch(trained)
        if trained.quality is None or energy_j is None or energy_j <= 0:
            return math.inf
        if self.maximize_quality:
            return -trained.quality / energy_j
        return trained.quality * energy_j


def _energy_per_epoch(trained: TrainingCost) -> float | None:
    if trained.energy_j is None:
        return None
    return trained.energy_j / trained.epochs if trained.epochs else trained.energy_j
