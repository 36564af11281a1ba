"""Estimates of submitted jobs, from comment, operator's rules, history or time limit."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.units import format_duration
from wattloop.fleet.job_comment import LOW_POWER_SHARE, MOST_GPUS, JobComment, read_comment
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.fleet_file import FleetOracle, ModelNames, timed_model
from wattloop.schedule.estimates.history import History, PastRuns
from wattloop.schedule.estimates.job_rules import JobRules, SubmittedJob
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs.kind import JobKind, ServiceLoad

DEFAULT_BATCH = 32
"""Default batch: samples per GPU and step."""
UNLIMITED_S = 86_400.0
"""Assumed time of a job without a time limit."""


class EstimateSource(StrEnum):
    """Sources of a job's estimate, the best first."""

    STATED = "stated"
    """The caller named the model; an oracle predicts it."""
    COMMENT = "comment"
    """The user named the model; an oracle predicts it."""
    RULES = "rules"
    """The operator's file named the model; an oracle predicts it."""
    HISTORY = "history"
    """Measured: earlier runs of the same user and job name."""
    TIME_LIMIT = "time-limit"
    """Unknown job: its time limit at the GPUs' power limit."""
    NONE = "none"
    """The job asks for no GPU and has no estimate."""


class WorkloadKey(NamedTuple):
    """Key of a traced workload."""

    model: str
    precision: str
    sequence: int | None
    batch: int

    @property
    def label(self) -> str:
        return f"{JobKind(self.model, self.precision).label}, batch {self.batch}"


@dataclass(kw_only=True)
class JobDescription:
    """What is known of a job before any oracle is asked.

    Attributes:
        stated: settings of the caller, a comment or a rule.
        source: source of those settings, or of `time_s`.
        keys: its possible workloads, one for each batch; empty when only a time is known.
        unknown_model: why the oracle has no workload for the stated model; empty when it has.
        gpus: allowed GPU counts; empty for any.
        time_s: known time, where there is no model.
        refusals: rejected settings, and why.
    """

    stated: JobComment
    source: EstimateSource
    keys: tuple[WorkloadKey, ...] = ()
    unknown_model: str = ""
    gpus: tuple[int, ...] = ()
    time_s: float | None = None
    past: PastRuns | None = None
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def work(self) -> float | None:
        """Samples to train on; None when unknown."""
        return self.stated.work if self.keys else None

    @property
    def gpu_w(self) -> float | None:
        """Measured power of one GPU; None for its limit."""
        return None if self.past is None else self.past.gpu_w

    @cached_property
    def caps(self) -> tuple[float, ...]:
        """Allowed caps as shares of TDP; only the lowest for a low-power job."""
        if self.stated.low_power:
            return (min(self.stated.caps, default=LOW_POWER_SHARE),)
        return self.stated.caps or (1.0,)

    @cached_property
    def cap_share(self) -> float | None:
        """Requested cap for placements without one; None for the factory limit."""
        return self.caps[0] if self.stated.low_power else None

    @property
    def deadline_s(self) -> float:
        return math.inf if self.stated.deadline_s is None else self.stated.deadline_s

    def kind(self, types: tuple[str, ...]) -> JobKind:
        """Return model and allowed placements; without a model, a timed kind."""
        found = JobKind(
            model=timed_model(self.gpu_w),
            gpus=self.gpus or (1,),
            caps=self.caps,
            types=types,
            sequence=self.stated.sequence,
            may_spread=self.stated.may_spread,
        )
        if not self.keys:
            return found
        key, batches = self.keys[0], tuple(each.batch for each in self.keys)
        found = replace(found, model=key.model, precision=key.precision, batches=batches)
        said = self.stated
        if said.requests_per_s is not None:
            load = (said.requests_per_s, said.prompt, said.output, said.weights, said.tp)
            return replace(found, sequence=None, service=ServiceLoad(*load))
        return replace(
            found,
            zero=said.zero,
            parallel=said.parallel,
            checkpointing=said.checkpointing,
            global_batch=said.global_batch,
        )

    def to_dict(self) -> dict[str, Any]:
        key = self.keys[0] if self.keys else None
        return {
            "model": None if key is None else key.model.removeprefix("hf:"),
            "precision": None if key is None else key.precision or None,
            "samples": self.work,
            "deadline_s": self.stated.deadline_s,
            "low_power": self.stated.low_power,
            "source": self.source.value,
            "notes": self.notes,
            "refusals": self.refusals,
            "past": None if self.past is None else self.past.to_dict(),
        }


def describe_job(
    job: SubmittedJob, own: JobComment | None, names: ModelNames, rules: JobRules
) -> JobDescription:
    """Resolve the caller's own settings, else those of comment and rules."""
    refusals: list[str] = []
    if own is not None and own.model:
        stated, source = own, EstimateSource.STATED
    else:
        stated, source = stated_settings(job, rules, refusals)
    if job.gpu_type:  # the request to the batch system takes precedence
        stated = replace(stated, types=(job.gpu_type,))
    counts = stated.gpus or ((job.gpus,) if job.gpus > 0 else ())
    found = JobDescription(stated=stated, source=source, gpus=counts, refusals=refusals)
    if not stated.model:
        return found
    try:
        model = names.find(stated.model)
    except ConfigError as error:
        found.unknown_model = str(error)
        return found
    if stated.requests_per_s is not None:  # a service works for as long as it may
        limit_s = job.time_limit_s if stated.work is None else stated.work
        found.stated, found.keys = replace(stated, work=limit_s), (WorkloadKey(model, "", None, 1),)
        return found
    usual = (1, "bf16") if stated.parallel else (DEFAULT_BATCH, names.precision(model))
    batches = stated.batches or names.batches(model) or (usual[0],)
    precision = stated.precision or usual[1]
    found.keys = tuple(WorkloadKey(model, precision, stated.sequence, batch) for batch in batches)
    if not stated.batches:
        found.notes.append(f"batch {'|'.join(map(str, batches))} assumed")
    if precision and not stated.precision:
        found.notes.append(f"{precision} assumed")
    return found


def stated_settings(
    job: SubmittedJob, rules: JobRules, refusals: list[str]
) -> tuple[JobComment, EstimateSource]:
    """Return the settings of comment or rules, and which of them names the model."""
    comment, refusal = read_comment(job.comment)
    if refusal:
        refusals.append(refusal)
    ruled = None if comment is not None and comment.model else rules.stated(job)
    if ruled is None:
        return comment or JobComment(), EstimateSource.COMMENT
    if comment is None:
        return ruled, EstimateSource.RULES
    # the rule names the model; placement and deadline are the user's choice
    combined = replace(
        ruled,
        gpus=comment.gpus or ruled.gpus,
        caps=comment.caps or ruled.caps,
        types=comment.types or ruled.types,
        work=ruled.work if comment.work is None else comment.work,
        batches=comment.batches or ruled.batches,
        deadline_s=ruled.deadline_s if comment.deadline_s is None else comment.deadline_s,
        low_power=comment.low_power or ruled.low_power,
        may_spread=comment.may_spread or ruled.may_spread,
    )
    return combined, EstimateSource.RULES


def allowed_types(names: tuple[str, ...], cluster: Cluster, refusals: list[str]) -> tuple[str, ...]:
    """Return the named GPU types that the cluster has; empty for any."""
    known = {each.name.lower(): each.name for each in cluster.types}
    types = tuple(known[name.lower()] for name in names if name.lower() in known)
    if names and not types:
        refusals.append(f"types: this cluster has {', '.join(known.values())}")
    return types


def past_runs(job: SubmittedJob, history: History | None, refusals: list[str]) -> PastRuns | None:
    if history is None:
        return None
    try:
        return history.of(job.user, job.name, job.gpus)
    except StoreError as error:
        refusals.append(f"history: {error}")
        return None


def time_limit(job: SubmittedJob) -> tuple[float, str]:
    """Return the longest time of a job, and its source."""
    limit_s = job.time_limit_s
    if limit_s is None or not 0 < limit_s < math.inf:
        text = f"no time limit: taken as {format_duration(UNLIMITED_S)}"
        return UNLIMITED_S, f"{text}, at the GPUs' power limit"
    return limit_s, f"time limit of {format_duration(limit_s)}, at the GPUs' power limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """Estimate of a job: `oracle.options(kind)`, each taking `work * sample_s` seconds.

    Attributes:
        kind: model and allowed placements; None when the job asks for no GPU.
        work: samples to train on, or seconds where only a time is known.
        deadline_s: seconds after submission; infinite without one.
        provenance: source and assumptions, for people.
        refusals: rejected settings of the job, and why; for log and user.
    """

    kind: JobKind | None
    work: float = 0.0
    deadline_s: float = math.inf
    low_power: bool = False
    source: EstimateSource = EstimateSource.NONE
    provenance: str = ""
    refusals: tuple[str, ...] = ()
    past: PastRuns | None = None


class JobEstimator:
    """Estimator that uses the comment, then the operator's rules, history and the time limit.

    An invalid text of a job never raises: it is reported as a refusal, and the next source is used.

    Args:
        oracle: oracle of models and their names.
        wait_s: most time to wait for the first prediction of a model; after that, the next source
            is used. None waits without limit.
    """

    def __init__(
        self,
        oracle: FleetOracle,
        *,
        rules: JobRules | None = None,
        history: History | None = None,
        wait_s: float | None = None,
    ) -> None:
        self.oracle = oracle
        self.rules = rules or JobRules()
        self.history = history
        self.wait_s = wait_s

    def describe(self, job: SubmittedJob) -> JobEstimate:
        said = describe_job(job, None, self.oracle.names, self.rules)
        deadlines_s = (said.stated.deadline_s, job.deadline_s)
        if job.gpus < 1 and not said.stated.gpus:
            found = JobEstimate(kind=None, provenance="asks for no GPU")
        else:
            said.past = past_runs(job, self.history, said.refusals)
            # an unknown type in the batch system's own request is its business
            refused = [] if job.gpu_type else said.refusals
            types = allowed_types(said.stated.types, self.oracle.cluster, refused)
            if said.unknown_model:
                said.refusals.append(f"{said.source.value}: {said.unknown_model}")
            found = self._predicted(job, said, types) or _timed(job, said, types)
        return replace(
            found,
            deadline_s=min((each for each in deadlines_s if each is not None), default=math.inf),
            low_power=said.stated.low_power,
            refusals=tuple(dict.fromkeys(said.refusals)),
        )

    def _predicted(
        self, job: SubmittedJob, said: JobDescription, types: tuple[str, ...]
    ) -> JobEstimate | None:
        """Estimate by a named model; None when the oracle has no estimate of it."""
        if not said.keys:
            return None
        source, kind = said.source, said.kind(types)
        try:
            options = (
                self.oracle.options(kind)
                if self.wait_s is None
                else self.oracle.soon(kind, self.wait_s)
            )
        except ConfigError as error:
            said.refusals.append(f"{source.value}: {error}")
            return None
        if options is None or not len(options):
            why = (
                "is being predicted; known in seconds"
                if options is None
                else "fits no GPU it may run on"
            )
            said.refusals.append(f"{source.value}: {kind.label} {why}")
            return None
        notes, work = said.notes, said.work
        if work is None:
            work, note = _work_from_time(job, options, said.past)
            notes = [*notes, note]
        provenance = "; ".join((f"{source.value}: {kind.label}", options.source, *notes))
        return JobEstimate(
            kind=kind, work=work, source=source, provenance=provenance, past=said.past
        )


def _timed(job: SubmittedJob, said: JobDescription, types: tuple[str, ...]) -> JobEstimate:
    """Estimate by history, else by the time limit."""
    gpus = min(job.gpus if job.gpus > 0 else min(said.stated.gpus), MOST_GPUS)
    kind = JobKind(
        timed_model(said.gpu_w), gpus=(gpus,), caps=said.caps, types=types, may_spread=True
    )
    past = said.past
    if past is None:
        limit_s, note = time_limit(job)
        return JobEstimate(
            kind=kind, work=limit_s, source=EstimateSource.TIME_LIMIT, provenance=note
        )
    return JobEstimate(
        kind=kind,
        work=past.time_s,
        source=EstimateSource.HISTORY,
        provenance=past.text,
        past=past,
    )


def _work_from_time(
    job: SubmittedJob, options: PlacementOptions, past: PastRuns | None
) -> tuple[float, str]:
    """Return the samples of a job that states none: as many as fit into its time."""
    mine = (options.gpus == job.gpus).nonzero()[0]
    at = int(mine[0]) if len(mine) else 0
    time_s, _ = time_limit(job)
    said = f"the time limit, {format_duration(time_s)}"
    if past is not None:
        time_s = past.time_s
        said = f"the median of {past.jobs} earlier jobs, {format_duration(time_s)}"
    return time_s / float(options.sample_s[at]), f"samples not stated: as many as fit into {said}"
