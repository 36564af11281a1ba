"""Job estimator: estimates of submitted jobs from comment, rules, history or time limit."""

import math
from dataclasses import replace

from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.units import format_duration
from wattloop.fleet.job_comment import LOW_POWER_SHARE, MOST_GPUS, JobComment, read_comment
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.history import History, PastRuns
from wattloop.schedule.estimates.job_estimate import (
    EstimateSource,
    JobEstimate,
    SubmittedJob,
    timed_model,
)
from wattloop.schedule.estimates.job_rules import JobRules
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs.kind import JobKind

DEFAULT_BATCH = 32
"""Default batch: samples per GPU and step."""
UNLIMITED_S = 86_400.0
"""Assumed time of a job without a time limit."""


class JobEstimator:
    """Estimator that uses the comment, then the operator's rules, history and the time limit.

    An invalid text of a job never raises: it is reported as a refusal, and the next source is used.

    Args:
        oracle: oracle of models and their names.
        rules: the operator's rules.
        history: past jobs.
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
        """Estimate a job."""
        refusals: list[str] = []
        stated, source = stated_of(job, self.rules, refusals)
        deadline_s = min(
            (each for each in (stated.deadline_s, job.deadline_s) if each is not None),
            default=math.inf,
        )
        if job.gpus < 1 and not stated.gpus:
            found = JobEstimate(kind=None, provenance="asks for no GPU")
        else:
            past = self._past(job, refusals)
            named = self._named(job, stated, source, past, refusals) if stated.model else None
            found = named or self._timed(job, stated, past, refusals)
        return replace(
            found,
            deadline_s=deadline_s,
            low_power=stated.low_power,
            refusals=tuple(dict.fromkeys(refusals)),
        )

    def _past(self, job: SubmittedJob, refusals: list[str]) -> PastRuns | None:
        if self.history is None:
            return None
        try:
            return self.history.of(job.user, job.name, job.gpus)
        except StoreError as error:
            refusals.append(f"history: {error}")
            return None

    def _named(
        self,
        job: SubmittedJob,
        stated: JobComment,
        source: EstimateSource,
        past: PastRuns | None,
        refusals: list[str],
    ) -> JobEstimate | None:
        """Estimate by a named model; None when the oracle has no estimate of it."""
        try:
            model = self.oracle.names.find(stated.model)
            batches = stated.batches or self.oracle.names.batches(model) or (DEFAULT_BATCH,)
            kind = JobKind(
                model=model,
                precision=stated.precision or self.oracle.names.precision(model),
                gpus=stated.gpus or (job.gpus,),
                batches=batches,
                caps=caps_of(stated),
                types=self._types(job, stated, refusals),
                sequence=stated.sequence,
                may_spread=stated.may_spread,
            )
            options = (
                self.oracle.options(kind)
                if self.wait_s is None
                else self.oracle.soon(kind, self.wait_s)
            )
        except ConfigError as error:
            refusals.append(f"{source.value}: {error}")
            return None
        if options is None:
            refusals.append(f"{source.value}: {kind.label} is being predicted; known in seconds")
            return None
        if not len(options):
            refusals.append(f"{source.value}: {kind.label} fits no GPU it may run on")
            return None
        notes = [] if stated.batches else [f"batch {'|'.join(map(str, batches))} assumed"]
        if kind.precision and not stated.precision:
            notes.append(f"{kind.precision} assumed")
        work = stated.work
        if work is None:
            work, note = _work_from_time(job, options, past)
            notes.append(note)
        said = "; ".join((f"{source.value}: {kind.label}", options.source, *notes))
        return JobEstimate(kind=kind, work=work, source=source, provenance=said, past=past)

    def _timed(
        self, job: SubmittedJob, stated: JobComment, past: PastRuns | None, refusals: list[str]
    ) -> JobEstimate:
        """Estimate by history, else by the time limit."""
        gpus = min(job.gpus if job.gpus > 0 else min(stated.gpus), MOST_GPUS)
        kind = JobKind(
            model=timed_model(None if past is None else past.gpu_w),
            gpus=(gpus,),
            caps=caps_of(stated),
            types=self._types(job, stated, refusals),
            may_spread=True,
        )
        if past is None:
            limit_s, note = limit_of(job)
            return JobEstimate(
                kind=kind, work=limit_s, source=EstimateSource.TIME_LIMIT, provenance=note
            )
        return JobEstimate(
            kind=kind,
            work=past.time_s,
            source=EstimateSource.HISTORY,
            provenance=past.words,
            past=past,
        )

    def _types(self, job: SubmittedJob, stated: JobComment, refusals: list[str]) -> tuple[str, ...]:
        """Return the allowed GPU types; the request to the batch system takes precedence."""
        known = {each.name.lower(): each.name for each in self.oracle.cluster.types}
        if job.gpu_type:
            found = known.get(job.gpu_type.lower())
            return (found,) if found else ()
        types = [known[name.lower()] for name in stated.types if name.lower() in known]
        if stated.types and not types:
            refusals.append(f"types: this cluster has {', '.join(known.values())}")
        return tuple(types)


def stated_of(
    job: SubmittedJob, rules: JobRules, refusals: list[str]
) -> tuple[JobComment, EstimateSource]:
    """Return the settings of comment or rules, and which of them names the model."""
    stated, refusal = read_comment(job.comment)
    if refusal:
        refusals.append(refusal)
    if stated is None or not stated.model:
        ruled = rules.stated(job)
        if ruled is not None:
            return _over(stated, ruled), EstimateSource.RULES
    return stated or JobComment(), EstimateSource.COMMENT


def _over(comment: JobComment | None, ruled: JobComment) -> JobComment:
    """Return the settings of a rule, with the user's placement and deadline settings."""
    if comment is None:
        return ruled
    return replace(
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


def caps_of(stated: JobComment) -> tuple[float, ...]:
    """Return the allowed caps as shares of TDP; only the lowest for a low-power job."""
    if stated.low_power:
        return (min(stated.caps, default=LOW_POWER_SHARE),)
    return stated.caps or (1.0,)


def limit_of(job: SubmittedJob) -> tuple[float, str]:
    """Return the longest time of a job, and its source."""
    limit_s = job.time_limit_s
    if limit_s is None or not 0 < limit_s < math.inf:
        text = f"no time limit: taken as {format_duration(UNLIMITED_S)}"
        return UNLIMITED_S, f"{text}, at the GPUs' power limit"
    return limit_s, f"time limit of {format_duration(limit_s)}, at the GPUs' power limit"


def _work_from_time(
    job: SubmittedJob, options: PlacementOptions, past: PastRuns | None
) -> tuple[float, str]:
    """Return the samples of a job that states none: as many as fit into its time."""
    mine = (options.gpus == job.gpus).nonzero()[0]
    at = int(mine[0]) if len(mine) else 0
    time_s, _ = limit_of(job)
    said = f"the time limit, {format_duration(time_s)}"
    if past is not None:
        time_s = past.time_s
        said = f"the median of {past.jobs} earlier jobs, {format_duration(time_s)}"
    return time_s / float(options.sample_s[at]), f"samples not stated: as many as fit into {said}"
