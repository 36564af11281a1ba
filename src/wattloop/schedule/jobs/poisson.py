"""A workload made by dice, as in thesis 5.5.1."""

from dataclasses import dataclass, field

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.arrivals import Arrivals
from wattloop.schedule.jobs.deadlines import Deadlines, best_runtime_s
from wattloop.schedule.jobs.draws import Draws, chosen
from wattloop.schedule.jobs.people import People
from wattloop.schedule.jobs.rigid import pinned
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.jobs.template import JobTemplate
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["PoissonJobs"]


@dataclass(frozen=True, slots=True)
class PoissonJobs:
    """Jobs of some templates that arrive independently of each other.

    Arrivals, templates, sizes, users, deadlines, priorities and the one way of rigid jobs come
    from streams of their own: changing one setting leaves the other columns as they were.

    Attributes:
        templates: what jobs are made from.
        arrivals: when they come.
        people: who submits them.
        deadlines: of urgent jobs; None for no urgent ones.
        rigid: each job has one GPU count and batch only.
        priorities: priority -> share of the jobs that have it; empty is 0 for all.
    """

    templates: tuple[JobTemplate, ...]
    arrivals: Arrivals
    people: People = field(default_factory=lambda: People.equal(1))
    deadlines: Deadlines | None = None
    rigid: bool = False
    priorities: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not self.templates:
            raise ConfigError("jobs: no template to make jobs from")
        for template in self.templates:
            if not 0 < template.least_work <= template.most_work:
                raise ConfigError(
                    f"jobs: {template.kind.label}: how much work is there? Give samples above 0"
                )

    def table(self, seed: int, oracle: Oracle) -> JobTable:
        """The jobs of one seed; `oracle` says how long they would take at best."""
        draws = Draws(seed)
        arrival_s = self.arrivals.draw(draws)
        count = len(arrival_s)
        weights = np.array([template.weight for template in self.templates])
        made_from = chosen(draws.uniform("templates", count), weights)
        size, work = draws.uniform("work", count), np.empty(count)
        for number, template in enumerate(self.templates):
            mine = made_from == number
            work[mine] = template.work(size[mine])
        kinds, kind = tuple(template.kind for template in self.templates), made_from
        if self.rigid:
            kinds, kind = pinned(kinds, kind, draws, oracle)
        deadline_s = np.full(count, np.inf)
        if self.deadlines is not None:
            best_s = best_runtime_s(kinds, kind, work, oracle)
            deadline_s = self.deadlines.draw(draws, arrival_s, best_s)
        priority = np.zeros(count, np.int64)
        if self.priorities:
            values, shares = (np.array(each) for each in zip(*self.priorities, strict=True))
            priority = values[chosen(draws.uniform("priorities", count), shares)].astype(np.int64)
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
