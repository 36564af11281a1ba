"""Constants of SM2, those of document 003 unless given."""

import math
from dataclasses import dataclass

from wattloop.core.errors import ConfigError
from wattloop.tune.objective import ALPHA, BETA
from wattloop.tune.problem import EarlyStopping, Problem
from wattloop.tune.segment import RateSweep
from wattloop.tune.strategies.sm2.configurations import rate_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm2Constants:
    """Constants of a search; `Sm2` describes each field."""

    configurations: int
    rates: int
    low: float
    high: float
    data_share: float
    epochs: int
    last_epochs: int
    alpha: float
    beta: float
    window: int
    stopping: EarlyStopping
    most_epochs: float

    @classmethod
    def of(  # noqa: PLR0913 - the document's constants, each of which may be changed
        cls,
        problem: Problem,
        *,
        configurations: int,
        rates: int,
        low: float | None,
        high: float | None,
        data_share: float,
        epochs: int,
        last_epochs: int,
        alpha: float | None,
        beta: float | None,
        window: int,
        patience: int,
        least_gain: float,
        most_epochs: int | None,
    ) -> "Sm2Constants":
        """Build the constants; missing ones come from the problem."""
        options, limits = problem.objective.options, problem.limits
        range_low, range_high = rate_range(problem)
        most = limits.epochs if most_epochs is None else most_epochs
        return cls(
            configurations=min(configurations, limits.candidates or configurations),
            rates=rates if problem.rate is not None else 0,
            low=range_low if low is None else low,
            high=range_high if high is None else high,
            data_share=data_share,
            epochs=epochs,
            last_epochs=last_epochs,
            alpha=float(options.get("alpha", ALPHA)) if alpha is None else alpha,
            beta=float(options.get("beta", BETA)) if beta is None else beta,
            window=window,
            stopping=EarlyStopping(
                patience=patience, least_gain=least_gain, maximize=problem.quality.maximize
            ),
            most_epochs=math.inf if most is None else most,
        )

    def __post_init__(self) -> None:
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 <= weight <= 1:
                raise ConfigError(f"sm2: {name} is {weight:g}; use 0 to 1")
        if not 0 < self.data_share <= 1:
            raise ConfigError(
                f"sm2: data_share is {self.data_share:g}; use some of the data, at most all (1)"
            )
        if min(self.epochs, self.last_epochs) < 1:
            raise ConfigError("sm2: epochs and last_epochs must be at least one")
        if not 0 < self.low < self.high:
            raise ConfigError(f"sm2: rates from {self.low:g} to {self.high:g} are no range")
        if self.rates and self.rates < 3:
            raise ConfigError(
                f"sm2: {self.rates} rates have no curvature; use 3 or more, or 0 for none"
            )

    @property
    def sweep(self) -> RateSweep:
        """Return the sweep of an exploratory epoch: one batch per rate, round and round."""
        return RateSweep(
            low=self.low,
            high=self.high,
            count=self.rates,
            data_share=self.data_share,
            cyclic=True,
        )
