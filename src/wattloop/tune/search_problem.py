"""Problem that a search solves: its space, objective, target quality, limits and early stopping."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wattloop.core.errors import ConfigError
from wattloop.tune.objective import Objective
from wattloop.tune.segment import CapRequest, Value
from wattloop.tune.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping:
    """Early stopping after `patience` epochs without a gain.

    Attributes:
        least_gain: what counts as better than the best so far, in units of the metric.
        most_epochs: ends it in any case; None for no limit.
    """

    patience: int
    least_gain: float = 0.0
    maximize: bool = True
    most_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"patience {self.patience}: use one epoch or more")

    def gained(self, best: float | None, quality: float) -> bool:
        if best is None:
            return True
        gain = quality - best if self.maximize else best - quality
        return gain > self.least_gain

    def over(self, epochs: float, since_gain: float) -> bool:
        """Return whether to end after `epochs`, the last `since_gain` of them without a gain."""
        if self.most_epochs is not None and epochs >= self.most_epochs:
            return True
        return since_gain >= self.patience

    def ended(self, qualities: Iterable[float | None]) -> bool:
        best, epochs, since_gain = None, 0, 0
        for quality in qualities:
            epochs += 1
            since_gain += 1
            if quality is not None and self.gained(best, quality):
                best, since_gain = quality, 0
        return self.over(epochs, since_gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality metric and its target.

    Attributes:
        metric: the name under which it is reported; empty when a training has no quality and
            only the objective counts.
        target: what is good enough; None when only the objective counts.
    """

    metric: str
    maximize: bool = True
    target: float | None = None

    def reached(self, value: float | None) -> bool:
        if value is None or self.target is None:
            return False
        return value >= self.target if self.maximize else value <= self.target

    def better(self, one: float, other: float) -> bool:
        return one > other if self.maximize else one < other

    def loss(self, value: float | None) -> float:
        """Return a number that is smaller for a better value; infinity without one."""
        if value is None:
            return math.inf
        return -value if self.maximize else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a search; None means unlimited.

    Attributes:
        energy_j, time_s: of the whole search.
        candidates: configurations begun.
        epochs: of one candidate.
        trial_time_s: of one segment.
    """

    energy_j: float | None = None
    time_s: float | None = None
    candidates: int | None = None
    epochs: float | None = None
    trial_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One search, as a strategy sees it.

    Attributes:
        objective: to minimize among those that reach the target.
        default: the configuration people would use without a search; kept alive throughout.
        cap: search for a power cap; None when none may be set or it is an ordinary parameter.
        rate: the parameter that sweeps of learning rates may decide; None for none.
    """

    space: Space
    quality: Quality
    objective: Objective = field(default_factory=Objective)
    default: Mapping[str, Value] = field(default_factory=dict)
    limits: Limits = Limits()
    cap: CapRequest | None = None
    rate: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.space.parameters and self.cap is None:
            raise ConfigError("the space is empty: give at least one parameter, or search a cap")
