"""The `jobs` section of a scenario file: where its jobs come from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from wattloop.core.errors import ConfigError
from wattloop.schedule.amounts import PositiveSeconds, Share, Strict
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.arrivals import Arrivals
from wattloop.schedule.jobs.completion import Completion
from wattloop.schedule.jobs.deadlines import Deadlines
from wattloop.schedule.jobs.people import People
from wattloop.schedule.jobs.poisson import PoissonJobs
from wattloop.schedule.jobs.spec_models import ModelSpec
from wattloop.schedule.jobs.spec_trace import TraceSpec
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.jobs.table_file import is_job_table, load_jobs
from wattloop.schedule.oracle.oracle import Oracle

__all__ = ["DeadlinesSpec", "GenerateSpec", "JobsSpec", "TraceSpec", "UsersSpec"]

Positive = Annotated[float, Field(gt=0)]


class DeadlinesSpec(Strict):
    """A share of the jobs is urgent: done by arrival + factor x best runtime."""

    share: Share = 0.1
    factor: Positive = 3.5

    def deadlines(self) -> Deadlines:
        """As generators and completion use it."""
        return Deadlines(self.share, self.factor)


class UsersSpec(Strict):
    """A number of users alike; with a `majority`, the first submits that share; or by name."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    majority: Share | None = None
    shares: dict[str, Positive] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _plain_count(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"count": value}
        if not isinstance(value, Mapping):
            raise ValueError("write a number, or count and majority, or shares by name")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "UsersSpec":
        if self.shares and (self.count != 1 or self.majority is not None):
            raise ValueError("shares name every user; leave count and majority out")
        return self

    def people(self) -> People:
        """As generators and completion use it."""
        if self.shares:
            return People.named(self.shares)
        if self.majority is not None:
            return People.with_majority(self.count, self.majority)
        return People.equal(self.count)


class GenerateSpec(Strict):
    """A Poisson process: `rate_per_s` jobs until the `horizon`, or `count` of them.

    `daily` has the weights of equal parts of the day; `priorities` the share of each priority.
    """

    rate_per_s: Positive
    horizon_s: Annotated[PositiveSeconds | None, Field(alias="horizon")] = None
    count: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    daily: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)
    priorities: dict[int, Positive] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ends(self) -> "GenerateSpec":
        if self.horizon_s is None and self.count is None:
            raise ValueError("give a horizon such as 10 h, or a count of jobs")
        if self.daily and not sum(self.daily) > 0:
            raise ValueError("daily: a day in which no job comes; not all weights may be 0")
        return self

    def arrivals(self) -> Arrivals:
        """As the generator uses it."""
        return Arrivals(self.rate_per_s, self.horizon_s, self.count, tuple(self.daily))


class JobsSpec(Strict):
    """Where jobs come from. `rigid` jobs have one GPU count and batch each."""

    models: Annotated[list[ModelSpec], Field(min_length=1)]
    generate: GenerateSpec | None = None
    trace: TraceSpec | None = None
    users: UsersSpec = UsersSpec()
    deadlines: DeadlinesSpec | None = None
    rigid: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "JobsSpec":
        if (self.generate is None) == (self.trace is None):
            raise ValueError("give either 'generate' or 'trace'")
        for number, model in enumerate(self.models):
            if model.work is None and self.generate is not None:
                raise ValueError(f"models.{number}: generated jobs need 'work', in samples")
        return self

    def located(self, folder: Path) -> "JobsSpec":
        """With files found from `folder`, the scenario's own."""
        if self.trace is None:
            return self
        return self.model_copy(update={"trace": self.trace.located(folder)})

    def table(self, seed: int, cluster: Cluster, oracle: Oracle) -> JobTable:
        """The jobs of one seed.

        Args:
            seed: of all that is drawn.
            cluster: on which they are to run.
            oracle: that knows the truth: deadlines and the work of a trace come from it.

        Raises:
            ConfigError: the trace cannot be read, or does not suit the cluster.
        """
        templates = tuple(model.template() for model in self.models)
        people = self.users.people()
        deadlines = self.deadlines.deadlines() if self.deadlines is not None else None
        if self.generate is not None:
            made = PoissonJobs(
                templates=templates,
                arrivals=self.generate.arrivals(),
                people=people,
                deadlines=deadlines,
                rigid=self.rigid,
                priorities=tuple(self.generate.priorities.items()),
            )
            return made.table(seed, oracle)
        assert self.trace is not None
        if is_job_table(self.trace.file):
            if self.trace.is_changed:
                raise ConfigError(
                    f"{self.trace.file}: holds whole jobs, with their models and work; only a "
                    "trace can be mapped, cut or scaled: leave all but 'file' out"
                )
            return load_jobs(self.trace.file)
        types = self.trace.gpu_types
        completion = Completion(
            templates=templates,
            people=people,
            deadlines=deadlines,
            rigid=self.rigid,
            reference=self.trace.reference,
            match_types=types != "any",
            renamed_types={} if isinstance(types, str) else types,
        )
        return completion.table(self.trace.trace(seed), seed, cluster, oracle)
