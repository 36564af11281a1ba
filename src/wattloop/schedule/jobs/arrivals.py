"""When jobs come: a Poisson process, even or with the hours of the day."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.draws import Draws

__all__ = ["Arrivals"]

DAY_S = 86_400.0
MOST_JOBS = 1e8
"""More do not fit into memory; whoever asks for them took another unit."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Independent arrivals with a mean rate.

    Attributes:
        rate_per_s: jobs per second, on average over a day.
        horizon_s: until when; None for as long as `count` takes.
        count: how many at most; None for all until the horizon.
        daily: weights of equal parts of the day, such as 24 for its hours; empty is even.
    """

    rate_per_s: float
    horizon_s: float | None = None
    count: int | None = None
    daily: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.horizon_s is None and self.count is None:
            raise ConfigError("jobs: say until when they come (horizon) or how many (count)")
        if not self.rate_per_s > 0:
            raise ConfigError(f"jobs: a rate of {self.rate_per_s:g} per second brings none")
        expected = self.rate_per_s * (np.inf if self.horizon_s is None else self.horizon_s)
        if min(expected, np.inf if self.count is None else self.count) > MOST_JOBS:
            raise ConfigError(f"jobs: these are more than {MOST_JOBS:g}; is the rate per second?")
        if self.daily and (min(self.daily) < 0 or not sum(self.daily) > 0):
            raise ConfigError("jobs: the weights of the day must be 0 or more, and not all 0")

    def draw(self, draws: Draws) -> NDArray[np.float64]:
        """Times of arrival, ascending from 0."""
        stream, wanted = draws.stream("arrivals"), self.count
        if self.horizon_s is None:
            assert wanted is not None
            return self._clock_s(np.cumsum(stream.standard_exponential(wanted)))
        expected = self.rate_per_s * self.horizon_s
        gaps, reached = np.empty(0), False
        while not reached:
            more = stream.standard_exponential(int(expected / 4) + 64)
            gaps = np.concatenate((gaps, more))
            times_s = self._clock_s(np.cumsum(gaps))
            reached = times_s[-1] >= self.horizon_s or (wanted is not None and len(gaps) >= wanted)
        return times_s[times_s < self.horizon_s][:wanted]

    def _clock_s(self, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """When so many jobs are expected to have come: the inverse of the integrated rate."""
        if not self.daily:
            return expected / self.rate_per_s
        parts = len(self.daily)
        edges_s = np.arange(parts + 1) * (DAY_S / parts)
        a_day = self.rate_per_s * DAY_S
        by_edge = np.concatenate(([0.0], np.cumsum(self.daily))) * (a_day / sum(self.daily))
        days, within = np.divmod(expected, a_day)
        return np.asarray(days * DAY_S + np.interp(within, by_edge, edges_s))
