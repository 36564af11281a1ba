"""Schema of a scenario's `jobs` section; selection and scaling of a trace."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration
from wattloop.fleet.job_comment import SHARDING
from wattloop.predict.parallel.layout import Layout
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.attributes import (
    Deadlines,
    Draws,
    Users,
    best_runtime_s,
    pin_options,
    weighted_choice,
)
from wattloop.schedule.jobs.kind import JobKind, JobTemplate, ServiceLoad
from wattloop.schedule.jobs.table import JobTable, is_job_table, load_jobs
from wattloop.schedule.jobs.trace_completion import Completion
from wattloop.schedule.traces.reader import read_trace
from wattloop.schedule.traces.trace import Trace
from wattloop.schedule.yaml_model import (
    Count,
    Positive,
    PositiveSeconds,
    Seconds,
    StrictModel,
    number,
    one_or_many,
    seconds,
)

# Job generator: Poisson arrivals, constant or by the hour of the day (thesis 5.5.1).

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
        for place, template in enumerate(self.templates):
            mine = made_from == place
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


class Scaling(StrictModel):
    """Selection and scaling of a trace, in this order.

    `begin` and `end` (not included) select jobs by arrival, and `begin` becomes time 0. `head`
    takes the first jobs, `sample` random ones; a larger sample contains the smaller one. Fewer jobs
    in the same time are less load, which `speed` can compensate. `speed`, `work` and `gpus` are
    factors of arrival rate, duration and GPUs (rounded, 1 at least).
    """

    begin_s: Annotated[Seconds, Field(alias="begin")] = 0.0
    end_s: Annotated[PositiveSeconds | None, Field(alias="end")] = None
    head: Count | None = None
    sample: Count | None = None
    speed: Positive = 1.0
    work: Positive = 1.0
    gpus: Positive = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end_s is not None and self.end_s <= self.begin_s:
            raise ValueError(f"end is {self.end_s:g} s, not after begin, which is {self.begin_s:g}")
        return self

    def of(self, trace: Trace, seed: int) -> Trace:
        """Return the scaled trace; `seed` is the seed of the sample.

        Raises:
            ConfigError: no job is left.
        """
        trace = self._part(trace)
        trace = self._fewer(trace, seed)
        return self._scaled(trace)

    def _part(self, trace: Trace) -> Trace:
        if self.begin_s == 0 and self.end_s is None:
            return trace
        end_s = math.inf if self.end_s is None else self.end_s
        first, last = np.searchsorted(trace.arrival_s, (self.begin_s, end_s))
        said = f"from {format_duration(self.begin_s)}" + (
            "" if self.end_s is None else f" to {format_duration(end_s)}"
        )
        if first == last:
            end = format_duration(float(trace.arrival_s[-1]))
            raise ConfigError(f"{trace.source}: no job arrives {said}; the last comes at {end}")
        part = trace.take(np.arange(first, last), f"only jobs that arrive {said}")
        due_s = None if part.deadline_s is None else part.deadline_s - self.begin_s
        return replace(part, arrival_s=part.arrival_s - self.begin_s, deadline_s=due_s)

    def _fewer(self, trace: Trace, seed: int) -> Trace:
        if self.head is not None and self.head < len(trace):
            trace = trace.take(np.arange(self.head), f"only the first {self.head} jobs")
        if self.sample is not None and self.sample < len(trace):
            uniform = Draws(seed).uniform("sample", len(trace))
            rows = np.sort(np.argsort(uniform)[: self.sample])
            trace = trace.take(rows, f"only {self.sample} jobs, drawn with seed {seed}")
        return trace

    def _scaled(self, trace: Trace) -> Trace:
        if self.speed == self.work == self.gpus == 1.0:
            return trace
        said = [
            f"{name} x {factor:g}"
            for name, factor in (("arrivals", self.speed), ("work", self.work), ("GPUs", self.gpus))
            if factor != 1.0
        ]
        arrival_s = trace.arrival_s / self.speed
        due_s = trace.deadline_s
        if due_s is not None:  # the allowed time grows with the job
            due_s = arrival_s + (due_s - trace.arrival_s) * self.work
        return replace(
            trace,
            arrival_s=arrival_s,
            duration_s=trace.duration_s * self.work,
            samples=None if trace.samples is None else trace.samples * self.work,
            deadline_s=due_s,
            gpus=np.maximum(1, np.rint(trace.gpus * self.gpus)).astype(np.int64),
            notes=(*trace.notes, f"scaled: {', '.join(said)}"),
        )


def _bound(value: Any) -> Any:
    """Parse a number or a time; null means unbounded, because JSON cannot write infinity."""
    return math.inf if value is None else seconds(value)


Most = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


# rounded, so that 70% and 0.7 are the same cap
Cap = Annotated[
    float, BeforeValidator(number), Field(gt=0, le=1), AfterValidator(lambda share: round(share, 6))
]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True), BeforeValidator(_bound)]
Bounds = Annotated[list[Bound], Field(min_length=2, max_length=2)]


class WorkSpec(StrictModel):
    """Samples to train on: `samples` times `epochs`, or a range from `least` to `most`."""

    samples: Positive | None = None
    epochs: Positive = 1.0
    least: Positive | None = None
    most: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Mapping):
            raise ValueError("write samples, or samples and epochs, or least and most")
        return value if isinstance(value, Mapping) else {"samples": value}

    @model_validator(mode="after")
    def _one_way(self) -> "WorkSpec":
        ranged = self.least is not None and self.most is not None
        if ranged == (self.samples is not None) or (self.least is None) != (self.most is None):
            raise ValueError("write samples (and epochs), or least and most")
        if ranged and (self.least or 0) > (self.most or 0):
            raise ValueError(f"least is {self.least:g}, above most, which is {self.most:g}")
        return self

    def bounds(self) -> tuple[float, float]:
        if self.samples is not None:
            return self.samples * self.epochs, self.samples * self.epochs
        return (self.least or math.nan) * self.epochs, (self.most or math.nan) * self.epochs


class ServiceSpec(StrictModel):
    """Load of a model that answers requests (`ServiceLoad`); `duration` may be from and to."""

    requests_per_s: Positive
    prompt: Most = 512
    output: Most = 512
    weights: Literal["bf16", "fp16", "fp8", "int4"] = "bf16"
    tp: Most = 1
    most_token_s: Annotated[PositiveSeconds | None, Field(alias="token_within")] = None
    duration: Annotated[
        list[PositiveSeconds], BeforeValidator(one_or_many), Field(min_length=1, max_length=2)
    ] = Field(default_factory=list, validate_default=False)

    def load(self) -> ServiceLoad:
        values = self.model_dump(exclude={"duration"}, exclude_none=True)
        return ServiceLoad(**values)


OF_TRAINING = frozenset(("parallel", "checkpointing", "global_batch", "sharding", "sequence")) | {
    *("batches", "precision", "work")
}


class ModelSpec(StrictModel):
    """Model. `work` is for generated jobs; the last three fields are for traces.

    `when_gpus` and `when_duration` bound the jobs that may use this model (from, to); `called` has
    its names in traces.
    """

    model: Annotated[str, Field(min_length=1)]
    precision: str = ""
    gpus: Annotated[list[Most], Field(min_length=1)] = Field(default_factory=lambda: [1])
    batches: Annotated[list[Most], Field(min_length=1)] = Field(default_factory=lambda: [1])
    caps: Annotated[list[Cap], Field(min_length=1)] = Field(default_factory=lambda: [1.0])
    types: list[str] = Field(default_factory=list)
    sequence: Most | None = None
    spread: bool = False
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = "none"
    parallel: str = ""
    checkpointing: Literal["none", "selective", "half", "full"] = "none"
    global_batch: Most | None = None
    serve: ServiceSpec | None = None
    weight: Positive = 1.0
    work: WorkSpec | None = None
    when_gpus: Bounds | None = None
    called: list[str] = Field(default_factory=list)
    when_duration: Bounds | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @field_validator("gpus", "batches", "caps", "types", "called", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @field_validator("when_gpus", "when_duration")
    @classmethod
    def _in_order(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError(f"write from and to, in this order, not {value[0]:g} and {value[1]:g}")
        return value

    @model_validator(mode="after")
    def _of_decoders(self) -> Self:
        given = self.model_fields_set.intersection(OF_TRAINING)
        if self.serve is not None and given:
            raise ValueError(f"{min(given)} is of a training; leave it out of a job with 'serve'")
        if not self.parallel and (self.global_batch or self.checkpointing != "none"):
            raise ValueError("checkpointing and global_batch go with 'parallel', such as tp=2")
        try:
            Layout.parse(self.parallel)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def template(self) -> JobTemplate:
        serve = self.serve
        kind = JobKind(
            model=self.model,
            precision=self.precision,
            gpus=tuple(sorted(set(self.gpus))),
            batches=tuple(sorted(set(self.batches))),
            caps=tuple(sorted(set(self.caps))),
            types=tuple(self.types),
            sequence=self.sequence,
            may_spread=self.spread,
            zero=SHARDING[self.sharding],
            parallel=re.sub(r"[,\s]+", ",", self.parallel.strip()),
            checkpointing=self.checkpointing,
            global_batch=self.global_batch,
            service=None if serve is None else serve.load(),
        )
        least, most = self.work.bounds() if self.work is not None else (math.nan, math.nan)
        if serve is not None and serve.duration:
            least, most = min(serve.duration), max(serve.duration)
        gpus, lasting = self.when_gpus or (0.0, math.inf), self.when_duration or (0.0, math.inf)
        return JobTemplate(
            kind=kind,
            least_work=least,
            most_work=most,
            weight=self.weight,
            trace_gpus=(gpus[0], gpus[1]),
            trace_s=(lasting[0], lasting[1]),
            called=tuple(self.called),
        )


class TraceSpec(Scaling):
    """Trace with its format, selection and scale; a text is short for `file`."""

    file: Annotated[str, Field(min_length=1)]
    format: str = ""
    columns: dict[str, str] = Field(default_factory=dict)
    unusable: Literal["", "refuse", "leave_out"] = ""
    reference: str = ""
    gpu_types: Literal["any", "match"] | dict[str, str] = "any"

    @model_validator(mode="before")
    @classmethod
    def _plain_file(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping):
            raise ValueError("write the path of a trace, or 'file' and further fields")
        return {"file": value} if isinstance(value, str) else value

    @property
    def is_changed(self) -> bool:
        """Return True if any field except `file` is set."""
        return self != TraceSpec(file=self.file)

    def located(self, folder: Path) -> "TraceSpec":
        names = {"file": _located(self.file, folder)}
        if self.format.endswith((".yaml", ".yml")):
            names["format"] = _located(self.format, folder)
        return self.model_copy(update=names)

    def trace(self, seed: int) -> Trace:
        form = self.format
        stamps = (_stamp(self.file), _stamp(form) if form.endswith((".yaml", ".yml")) else None)
        whole = _read(self.file, form, tuple(self.columns.items()), self.unusable, stamps)
        return self.of(whole, seed)


@lru_cache(maxsize=1)
def _read(
    file: str,
    form: str,
    columns: tuple[tuple[str, str], ...],
    unusable: str,
    stamps: tuple[object, ...],
) -> Trace:
    """Read a trace, cached because every seed and policy of a campaign needs it."""
    del stamps  # part of the cache key: a changed file is read again
    trace = read_trace(file, form, dict(columns), unusable)
    for column in vars(trace).values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return trace


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = user_path(file).stat()
    except OSError:
        return None  # opening the file reports the error
    return found.st_mtime_ns, found.st_size


def _located(file: str, folder: Path) -> str:
    return str(folder / user_path(file))


class GenerateSpec(Arrivals):
    """Generated jobs; `priorities` has the share of each priority."""

    priorities: dict[int, Positive] = Field(default_factory=dict)


class JobsSpec(StrictModel):
    """Source of jobs. `rigid` jobs have one GPU count and batch each."""

    models: Annotated[list[ModelSpec], Field(min_length=1)]
    generate: GenerateSpec | None = None
    trace: TraceSpec | None = None
    users: Users = Users()
    deadlines: Deadlines | None = None
    rigid: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> "JobsSpec":
        if (self.generate is None) == (self.trace is None):
            raise ValueError("give either 'generate' or 'trace'")
        for position, model in enumerate(self.models):
            if self.generate is None:
                continue
            if model.serve is not None and not model.serve.duration:
                raise ValueError(f"models.{position}: generated services need serve.duration")
            if model.serve is None and model.work is None:
                raise ValueError(f"models.{position}: generated jobs need 'work', in samples")
        return self

    def located(self, folder: Path) -> "JobsSpec":
        if self.trace is None:
            return self
        return self.model_copy(update={"trace": self.trace.located(folder)})

    def table(self, seed: int, cluster: Cluster, oracle: Oracle) -> JobTable:
        """Build the jobs of one seed; `oracle` has the true times."""
        templates = tuple(model.template() for model in self.models)
        if self.generate is not None:
            made = PoissonJobs(
                templates=templates,
                arrivals=self.generate,
                people=self.users,
                deadlines=self.deadlines,
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
            people=self.users,
            deadlines=self.deadlines,
            rigid=self.rigid,
            reference=self.trace.reference,
            match_types=types != "any",
            renamed_types={} if isinstance(types, str) else types,
        )
        return completion.table(self.trace.trace(seed), seed, cluster, oracle)
