"""Advice to users at job submission: expected energy, time, and better GPU counts."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from wattloop.core.units import energy_range, format_duration, short_energy
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.job_estimator import EstimateSource, stated_settings
from wattloop.schedule.estimates.job_rules import SubmittedJob
from wattloop.schedule.estimates.oracle_service import Answer, AskedJob, OracleService
from wattloop.schedule.estimates.placement_estimates import PlacementEstimate

WORTH_TELLING = 0.05
"""Least share of energy that another GPU count must save to be mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitAdvice:
    """Expected energy and time of a job, and messages for its user.

    Attributes:
        energy_j, time_s: expected (scope: gpu); None where only a time limit is known.
        gpus, gpu: placement of the estimate.
        messages: lines for the user, the most important first.
        later: the model is being traced; a repeated query is answered in some seconds.
    """

    energy_j: float | None = None
    time_s: float | None = None
    gpus: int = 0
    gpu: str = ""
    source: str = ""
    messages: tuple[str, ...] = ()
    later: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        """Format as `key=value` lines, for programs that cannot read JSON."""
        lines = [f"source={self.source}"]
        if self.energy_j is not None and self.time_s is not None:
            lines += [f"energy_j={self.energy_j:.0f}", f"time_s={self.time_s:.0f}"]
        if self.later:
            lines.append("later=1")
        lines += [f"message={_plain(message)}" for message in self.messages]
        return "\n".join(lines) + "\n"


def submit_advice(service: OracleService, job: SubmittedJob, wait_s: float) -> SubmitAdvice:
    """Estimate a job on the service's fleet, and compare other GPU counts."""
    fleet = service.fleet()
    if job.gpus < 1:
        return SubmitAdvice(source=EstimateSource.NONE.value)
    refusals: list[str] = []
    stated, source = stated_settings(job, fleet.rules, refusals)
    where = replace(job, gpu_type=_type(job, fleet.cluster))
    if stated.model:
        counts = sorted({job.gpus, max(job.gpus // 2, 1), 2 * job.gpus, *stated.gpus})
        asked = AskedJob(where, replace(stated, gpus=tuple(counts)))
    else:
        asked = AskedJob(where)
    answer = service.answer([asked], [], wait_s=wait_s)
    refusals += [each for each in answer.jobs[0].refusals if each not in refusals]
    own = _own(answer, job.gpus)
    messages = [f"not understood: {each}" for each in refusals]
    known = answer.jobs[0].source
    if own is None or own.energy_j is None or known is EstimateSource.TIME_LIMIT:
        if stated.model and not messages:
            messages = _errors(answer, job.gpus)
        if stated.model and stated.work is None and not messages:
            messages = ["its energy is not known: add samples=N to the comment"]
        later = any(price.later for price in answer.prices)
        return SubmitAdvice(source=known.value, messages=tuple(messages), later=later)
    assert own.time_s is not None  # it has an energy
    source = source if known is EstimateSource.STATED else known
    messages = [*_expected(answer, job, own, where.gpu_type), *messages]
    return SubmitAdvice(
        energy_j=own.energy_j,
        time_s=own.time_s,
        gpus=job.gpus,
        gpu=where.gpu_type,
        source=source.value,
        messages=tuple(messages),
    )


def _type(job: SubmittedJob, cluster: Cluster) -> str:
    """Return the requested GPU type, else the most common one."""
    known = {each.name.lower(): each.name for each in cluster.types}
    if job.gpu_type.lower() in known:
        return known[job.gpu_type.lower()]
    most = max(range(len(cluster.types)), key=lambda number: cluster.gpus_by_type[number])
    return cluster.types[most].name


def _own(answer: Answer, gpus: int) -> PlacementEstimate | None:
    mine = [
        price
        for (_, place), price in zip(answer.pairs, answer.prices, strict=True)
        if answer.places[place].gpus == gpus and price.energy_j is not None
    ]
    return min(mine, key=lambda price: price.energy_j or 0.0, default=None)


def _errors(answer: Answer, gpus: int) -> list[str]:
    found = [
        price.error
        for (_, place), price in zip(answer.pairs, answer.prices, strict=True)
        if price.error and answer.places[place].gpus == gpus and not price.later
    ]
    return found[:1]


def _expected(answer: Answer, job: SubmittedJob, own: PlacementEstimate, gpu: str) -> list[str]:
    energy_j, time_s = own.energy_j or 0.0, own.time_s or 0.0
    factor = (own.factors or {}).get("energy")
    about = (
        ""
        if factor is None
        else f" ({energy_range(energy_j / factor, energy_j * factor, energy_j)})"
    )
    said = (
        f"this job is expected to use {short_energy(energy_j)}{about} in {format_duration(time_s)} "
        f"on {job.gpus} {gpu} GPU{'s' if job.gpus > 1 else ''}"
    )
    limit_s = job.time_limit_s or float("inf")
    other = min(
        (
            (price.energy_j, answer.places[place].gpus, price.time_s)
            for (_, place), price in zip(answer.pairs, answer.prices, strict=True)
            if price.energy_j is not None and price.time_s is not None and price.time_s <= limit_s
        ),
        default=None,
    )
    if other is not None and other[0] < (1 - WORTH_TELLING) * energy_j and other[1] != job.gpus:
        said += f"; with --gpus={other[1]} {short_energy(other[0])} in {format_duration(other[2])}"
    found = [said]
    if time_s > limit_s:
        found.append(f"its time limit of {format_duration(limit_s)} is likely too short")
    return found


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:300]
