"""What a search makes small, among configurations that are good enough.

SM2 weighs quality, energy and learning rate of configurations against each other (document 003,
equation 2) and so needs all of them at once; it is in `strategies.sm2`. Here a single training
has a score of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.analyze.metrics import Point, ed2p, edp, eds
from wattloop.core.errors import ConfigError

__all__ = ["OBJECTIVES", "Objective", "Trained"]

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training took and gave, in one scope of energy."""

    time_s: float
    energy_j: float
    quality: float | None = None


OBJECTIVES: Mapping[str, str] = {
    "energy": "least energy",
    "time": "least time",
    "edp": "energy-delay product",
    "ed2p": "energy-delay-squared product",
    "eds": "energy-delay sum against the default configuration, with k",
    "cost": "electricity and machine time",
    "carbon": "carbon of the electricity",
    "quotient": "quality per energy (document 001)",
    "sm2": "weighted quality, energy and learning rate (document 003), with alpha and beta",
    "quality": "best quality, whatever it takes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Scores of a training; smaller is better for each.

    Attributes:
        names: one of `OBJECTIVES`, or several for a Pareto front.
        maximize_quality: whether more of the quality metric is better.
        k: of EDS.
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

    @property
    def several(self) -> bool:
        """Whether there is no single best, but a front."""
        return len(self.names) > 1

    def score(self, trained: Trained, reference: Point | None = None) -> float:
        """The first objective.

        Args:
            trained: what it took.
            reference: the default configuration, for EDS.
        """
        return self._score(self.names[0], trained, reference)

    def scores(self, trained: Trained, reference: Point | None = None) -> tuple[float, ...]:
        """All of them."""
        return tuple(self._score(name, trained, reference) for name in self.names)

    def _score(self, name: str, trained: Trained, reference: Point | None) -> float:
        point = Point(trained.time_s, trained.energy_j)
        by_point: dict[str, Callable[[], float]] = {
            "energy": lambda: point.energy_j,
            "sm2": lambda: point.energy_j,
            "time": lambda: point.time_s,
            "edp": lambda: edp(point),
            "ed2p": lambda: ed2p(point),
            "eds": lambda: eds(point, reference or point, self.k),
            "cost": lambda: self._cost(point),
            "carbon": lambda: (
                self._per_kwh("carbon_g_per_kwh", name) * point.energy_j / JOULES_PER_KWH
            ),
            "quality": lambda: self._loss(trained.quality),
            "quotient": lambda: self._against_quotient(trained),
        }
        return by_point[name]()

    def _cost(self, point: Point) -> float:
        per_hour = self.options.get("price_per_hour", 0.0)
        energy = self._per_kwh("price_per_kwh", "cost") * point.energy_j / JOULES_PER_KWH
        return energy + per_hour * point.time_s / 3600

    def _per_kwh(self, option: str, name: str) -> float:
        if option not in self.options:
            raise ConfigError(f"objective {name}: give {option}")
        return float(self.options[option])

    def _loss(self, quality: float | None) -> float:
        if quality is None:
            return float("inf")
        return -quality if self.maximize_quality else quality

    def _against_quotient(self, trained: Trained) -> float:
        """Minus quality per joule; where less is better, quality times joules."""
        if trained.quality is None or trained.energy_j <= 0:
            return float("inf")
        if self.maximize_quality:
            return -trained.quality / trained.energy_j
        return trained.quality * trained.energy_j

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "names": list(self.names),
            "maximize_quality": self.maximize_quality,
            "k": self.k,
            "options": dict(self.options),
        }
