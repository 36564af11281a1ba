"""Job query of the oracle service: workloads, work and constraints of a job."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from wattloop.core.errors import ConfigError, StoreError
from wattloop.fleet.job_comment import JobComment
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.fleet_oracle import ModelNames
from wattloop.schedule.estimates.history import History, PastRuns
from wattloop.schedule.estimates.job_estimate import EstimateSource, SubmittedJob
from wattloop.schedule.estimates.job_estimator import DEFAULT_BATCH, caps_of, limit_of, stated_of
from wattloop.schedule.estimates.job_rules import JobRules
from wattloop.schedule.estimates.workload_estimates import WorkloadKey


@dataclass(slots=True, kw_only=True)
class JobQuery:
    """Job with everything that its estimate depends on.

    Attributes:
        stated: settings of the caller, a comment or a rule.
        source: source of the estimate.
        keys: its possible workloads, one for each batch; empty when only a time is known.
        work: samples; None when unknown.
        time_s: known time, where there is no model.
        gpu_w: measured power of one GPU at that time; None for the limit.
        gpus: allowed GPU counts; empty for any.
        past: earlier runs behind an estimate from history.
        notes: assumptions.
        refusals: rejected settings, and why.
    """

    stated: JobComment
    source: EstimateSource
    keys: tuple[WorkloadKey, ...] = ()
    work: float | None = None
    time_s: float | None = None
    gpu_w: float | None = None
    gpus: tuple[int, ...] = ()
    past: PastRuns | None = None
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def cap_share(self) -> float | None:
        """Return the requested cap for placements without one; None for the factory limit."""
        return caps_of(self.stated)[0] if self.stated.low_power else None

    @property
    def deadline_s(self) -> float:
        """Return the allowed time in seconds; infinite without a deadline."""
        return math.inf if self.stated.deadline_s is None else self.stated.deadline_s

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


def job_query(
    job: SubmittedJob,
    own: JobComment | None,
    *,
    names: ModelNames,
    rules: JobRules,
    history: History | None,
) -> JobQuery:
    """Build the query from the caller's settings, else comment, rules, history or time limit."""
    refusals: list[str] = []
    if own is not None and own.model:
        stated, source = own, EstimateSource.STATED
    else:
        stated, source = stated_of(job, rules, refusals)
    if job.gpu_type:  # the request to the batch system takes precedence
        stated = replace(stated, types=(job.gpu_type,))
    counts = stated.gpus or ((job.gpus,) if job.gpus > 0 else ())
    found = JobQuery(stated=stated, source=source, gpus=counts, refusals=refusals)
    if stated.model:
        try:
            model = names.find(stated.model)
        except ConfigError as error:
            refusals.append(str(error))
        else:
            _with_model(found, model, names)
            return found
    _with_time(found, job, history)
    return found


def fleet_types(job: JobQuery, cluster: Cluster) -> tuple[str, ...]:
    """Return the allowed GPU types of a cluster; empty for any. Refuse unknown types."""
    known = {each.name.lower(): each.name for each in cluster.types}
    types = tuple(known[name.lower()] for name in job.stated.types if name.lower() in known)
    if job.stated.types and not types:
        job.refusals.append(f"types: the fleet has {', '.join(known.values())}")
    return types


def _with_model(found: JobQuery, model: str, names: ModelNames) -> None:
    stated = found.stated
    batches = stated.batches or names.batches(model) or (DEFAULT_BATCH,)
    precision = stated.precision or names.precision(model)
    found.keys = tuple(WorkloadKey(model, precision, stated.sequence, batch) for batch in batches)
    found.work = stated.work
    if not stated.batches:
        found.notes.append(f"batch {'|'.join(map(str, batches))} assumed")
    if not stated.precision:
        found.notes.append(f"{precision} assumed")
    if stated.work is None:
        found.notes.append("samples not stated: time and energy of the whole job are not known")


def _with_time(found: JobQuery, job: SubmittedJob, history: History | None) -> None:
    past = None
    if history is not None:
        try:
            past = history.of(job.user, job.name, job.gpus)
        except StoreError as error:
            found.refusals.append(f"history: {error}")
    if past is not None:
        found.past, found.time_s, found.gpu_w = past, past.time_s, past.gpu_w
        found.source = EstimateSource.HISTORY
        found.gpus = (past.gpus,)
        found.notes.append(past.words)
    elif job.time_limit_s is not None:
        found.time_s, note = limit_of(job)
        found.source = EstimateSource.TIME_LIMIT
        found.notes.append(note)
    else:
        found.source = EstimateSource.NONE
