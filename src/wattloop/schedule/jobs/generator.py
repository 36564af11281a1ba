"""Job generator: Poisson arrivals, constant or by the hour of the day (thesis 5.5.1)."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.attributes import (
    Deadlines,
    Draws,
    Users,
    best_runtime_s,
    pin_options,
    weighted_choice,
)
from wattloop.schedule.jobs.kind import JobTemplate
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.yaml_model import Positive, PositiveSeconds, StrictModel

DAY_S = 86_400.0
MOST_JOBS = 1e8
"""Most jobs that fit into memory; more usually means a wrong unit of the rate."""


class Arrivals(StrictModel):
    """Poisson process: `rate_per_s` jobs on average until the `horizon`, or `count` of them.

    `daily` has the weights of equal parts of the day, such as 24 for its hours.
    """

    rate_per_s: Positive
    horizon_s: Annotated[PositiveSeconds | None, Field(alias="horizon")] = None
    count: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    daily: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ends(self) -> "Arrivals":
        if self.horizon_s is None and self.count is None:
            raise ValueError("give a horizon such as 10 h, or a count of jobs")
        expected = self.rate_per_s * (np.inf if self.horizon_s is None else self.horizon_s)
        if min(expected, np.inf if self.count is None else self.count) > MOST_JOBS:
            raise ValueError(f"these are more than {MOST_JOBS:g} jobs; is the rate per second?")
        if self.daily and not sum(self.daily) > 0:
            raise ValueError("daily: all weights are 0; at least one must be above 0")
        return self

    def draw(self, draws: Draws) -> NDArray[np.float64]:
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
        """Return the time of each expected job count: the inverse of the integrated rate."""
        if not self.daily:
            return expected / self.rate_per_s
        parts = len(self.daily)
        edges_s = np.arange(parts + 1) * (DAY_S / parts)
        a_day = self.rate_per_s * DAY_S
        by_edge = np.concatenate(([0.0], np.cumsum(self.daily))) * (a_day / sum(self.daily))
        days, within = np.divmod(expected, a_day)
        return np.asarray(days * DAY_S + np.interp(within, by_edge, edges_s))


@dataclass(frozen=True, slots=True)
class PoissonJobs:
    """Generator of jobs from templates with independent arrivals.

    Arrivals, templates, sizes, users, deadlines, priorities and rigid choices come from separate
    random streams, so changing one setting does not change the other columns.

    Attributes:
        rigid: each job has only one GPU count and batch.
        priorities: priority -> share of the jobs; empty for priority 0.
    """

    templates: tuple[JobTemplate, ...]
    arrivals: Arrivals
    people: Users = field(default_factory=Users)
    deadlines: Deadlines | None = None
    rigid: bool = False
    priorities: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not self.templates:
            raise ConfigError("jobs: no template to make jobs from")
        for template in self.templates:
            if not 0 < template.least_work <= template.most_work:
                raise ConfigError(
                    f"jobs: {template.kind.label}: work is missing; give samples above 0"
                )

    def table(self, seed: int, oracle: Oracle) -> JobTable:
        """Generate the jobs of one seed; `oracle` gives their best runtimes."""
        draws = Draws(seed)
        arrival_s = self.arrivals.draw(draws)
        count = len(arrival_s)
        weights = np.array([template.weight for template in self.templates])
        made_from = weighted_choice(draws.uniform("templates", count), weights)
        size, work = draws.uniform("work", count), np.empty(count)
        for number, template in enumerate(self.templates):
            mine = made_from == number
            work[mine] = template.work(size[mine])
        kinds, kind = tuple(template.kind for template in self.templates), made_from
        if self.rigid:
            kinds, kind = pin_options(kinds, kind, draws, oracle)
        deadline_s = np.full(count, np.inf)
        if self.deadlines is not None:
            best_s = best_runtime_s(kinds, kind, work, oracle)
            deadline_s = self.deadlines.draw(draws, arrival_s, best_s)
        priority = np.zeros(count, np.int64)
        if self.priorities:
            values, shares = (np.array(each) for each in zip(*self.priorities, strict=True))
            priority = values[weighted_choice(draws.uniform("priorities", count), shares)].astype(
                np.int64
            )
        return JobTable(
            kinds=kinds,
            users=self.people.names,
            arrival_s=arrival_s,
            kind=kind,
            user=self.people.draw(draws, count),
            work=work,
            deadline_s=deadline_s,
            priority=priority,
            notes=(f"{count} jobs made by a Poisson process, seed {seed}",),
        )
