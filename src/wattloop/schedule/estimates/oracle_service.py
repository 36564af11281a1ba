"""Oracle service: time, power and energy of jobs x placements, for other schedulers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.fleet.job_comment import JobComment
from wattloop.predict.intervals import CONFIDENCE
from wattloop.predict.prediction import Placement
from wattloop.schedule.estimates.fleet_file import Fleet, FleetOracle, ModelNames, predicted_names
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimator import (
    EstimateSource,
    JobDescription,
    allowed_types,
    describe_job,
    past_runs,
    time_limit,
)
from wattloop.schedule.estimates.job_rules import JobRules, SubmittedJob
from wattloop.schedule.estimates.placement_estimates import (
    COSTS,
    Pair,
    PairEstimates,
    PlacementEstimate,
    PlacementQuery,
    cluster_places,
    known_places,
    table_estimates,
)
from wattloop.schedule.estimates.workload_estimates import Trace, WorkloadEstimates

MOST_PAIRS = 10_000
MOST_WARM = 50
"""Most models of rules that are traced at the start."""


@dataclass(frozen=True, slots=True)
class AskedJob:
    """Job of a query: as submitted to the batch system, or with the caller's settings."""

    submitted: SubmittedJob = field(default_factory=SubmittedJob)
    stated: JobComment | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Estimates of all pairs, and the best pair of each job.

    Attributes:
        pairs: indices of job and placement.
        prices: estimate of each pair.
        best: index of each job's best pair; None without one.
    """

    jobs: tuple[JobDescription, ...]
    places: tuple[PlacementQuery, ...]
    pairs: tuple[Pair, ...]
    prices: tuple[PlacementEstimate, ...]
    best: tuple[int | None, ...]
    objective: str

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON (docs/oracle-service.md)."""
        return {
            "results": [
                {"result": number, "job": job, "placement": place} | price.to_dict()
                for number, ((job, place), price) in enumerate(
                    zip(self.pairs, self.prices, strict=True)
                )
            ],
            "jobs": [
                {"job": number, **job.to_dict(), "best": self.best[number]}
                for number, job in enumerate(self.jobs)
            ],
            "placements": [place.to_dict() for place in self.places],
            "objective": self.objective,
            "confidence": CONFIDENCE,
            "scope": "gpu",
        }


class OracleService:
    """Service that answers queries and caches workloads, models and history between them.

    Args:
        fleet: machines for queries without placements, and the operator's rules.
        trace: traces the workload of a model; a server traces in another process.
    """

    def __init__(
        self,
        fleet: Fleet | None = None,
        history: History | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._fleet = fleet
        self._rules = JobRules() if fleet is None else fleet.rules
        self._history = history
        self._names = predicted_names().with_workloads(self._rules.workloads)
        self._kept = WorkloadEstimates(trace)
        self._oracle: FleetOracle | None = None
        self._lock = Lock()

    def answer(
        self,
        jobs: Sequence[AskedJob],
        places: Sequence[PlacementQuery],
        pairs: Sequence[Pair] | None = None,
        *,
        objective: str = "energy",
        wait_s: float = 5.0,
    ) -> Answer:
        """Estimate the pairs, by default all; without placements, on the fleet's machines.

        Raises:
            ConfigError: too many pairs, an invalid pair, or no placements.
        """
        if not places and pairs:
            raise ConfigError("pairs: no placements are given; add 'placements'")
        if not places and self._fleet is not None and self._fleet.spec.kind == "table":
            with self._lock:
                oracle = self._oracle = self._oracle or self._fleet.oracle()
            described = [self._described(job, oracle.names) for job in jobs]
            places, asked, prices = table_estimates(described, oracle, MOST_PAIRS, wait_s)
        else:
            described = [self._described(job, self._names) for job in jobs]
            if places:
                known, asked = known_places(places), _checked(pairs, len(jobs), len(places))
            else:
                places, known, asked = self._on_fleet(described)
            prices = PairEstimates(self._kept, wait_s=wait_s).of(described, known, asked, objective)
        best = _best(described, asked, prices, objective)
        return Answer(tuple(described), tuple(places), tuple(asked), tuple(prices), best, objective)

    def fleet(self) -> Fleet:
        """Return the machines and rules.

        Raises:
            ConfigError: the service has no fleet.
        """
        if self._fleet is None:
            raise ConfigError(
                "placements: none are given, and the server knows no machines; give some, or "
                "start it with --cluster FILE"
            )
        return self._fleet

    def settle(self) -> bool:
        """Exclude cached objects from garbage collection; a server calls this after an answer."""
        return self._kept.settle()

    def warm_up(self) -> None:
        """Load models of rules and constants of GPUs before the first query."""
        if self._fleet is None:
            return
        asked = [replace(rule.job, gpus=(1,)) for rule in self._rules.rules]
        asked.append(JobComment("resnet-50", (64,), 1.0, (1,), "tf32"))
        self.answer([AskedJob(stated=each) for each in asked[:MOST_WARM]], [], wait_s=60.0)

    def models(self) -> list[str]:
        return self._names.names()

    def _described(self, asked: AskedJob, names: ModelNames) -> JobDescription:
        """Describe a job by its model, else by history or time limit."""
        job = asked.submitted
        found = describe_job(job, asked.stated, names, self._rules)
        if found.keys:
            if found.work is None:
                found.notes.append(
                    "samples not stated: time and energy of the whole job are not known"
                )
            return found
        if found.unknown_model:
            found.refusals.append(found.unknown_model)
        found.past = past = past_runs(job, self._history, found.refusals)
        if past is not None:
            found.source, found.time_s, found.gpus = (
                EstimateSource.HISTORY,
                past.time_s,
                (past.gpus,),
            )
            found.notes.append(past.text)
        elif job.time_limit_s is not None:
            found.source = EstimateSource.TIME_LIMIT
            found.time_s, note = time_limit(job)
            found.notes.append(note)
        else:
            found.source = EstimateSource.NONE
        return found

    def _on_fleet(
        self, jobs: Sequence[JobDescription]
    ) -> tuple[list[PlacementQuery], list[Placement | str], list[Pair]]:
        """Return all allowed placements of each job on the fleet's machines."""
        cluster = self.fleet().cluster
        places: dict[PlacementQuery, int] = {}
        known: list[Placement | str] = []
        pairs: list[Pair] = []
        for number, job in enumerate(jobs):
            kind = job.kind(allowed_types(job.stated.types, cluster, job.refusals))
            for where, placement in cluster_places(kind, cluster):
                if where not in places:
                    places[where] = len(known)
                    known.append(placement)
                pairs.append((number, places[where]))
            if len(pairs) > MOST_PAIRS:
                raise ConfigError(f"{len(pairs):,} placements in all; at most {MOST_PAIRS:,}")
        return list(places), known, pairs


def _best(
    jobs: Sequence[JobDescription],
    pairs: Sequence[Pair],
    prices: Sequence[PlacementEstimate],
    objective: str,
) -> tuple[int | None, ...]:
    """Return each job's cheapest pair that meets the deadline; else the least late one."""
    best: list[tuple[float, float, int]] = [(math.inf, math.inf, -1)] * len(jobs)
    for number, ((job, _), price) in enumerate(zip(pairs, prices, strict=True)):
        time_s, power_w, late_s = price.time_s, price.power_w, 0.0
        if time_s is not None:
            late_s = max(time_s - jobs[job].deadline_s, 0.0)
        elif price.samples_s:  # unknown number of samples: compare the cost of one
            time_s = 1 / price.samples_s
        if time_s is not None and power_w is not None:
            best[job] = min(best[job], (late_s, COSTS[objective](time_s, power_w), number))
    return tuple(None if number < 0 else number for _, _, number in best)


def _checked(pairs: Sequence[Pair] | None, jobs: int, places: int) -> list[Pair]:
    count = jobs * places if pairs is None else len(pairs)
    if count > MOST_PAIRS:
        raise ConfigError(f"{count:,} pairs; at most {MOST_PAIRS:,} in one question")
    if pairs is None:
        return [(job, place) for job in range(jobs) for place in range(places)]
    for job, place in pairs:
        if not (0 <= job < jobs and 0 <= place < places):
            raise ConfigError(
                f"pairs: [{job}, {place}]: there are {jobs} jobs, {places} placements"
            )
    return list(pairs)
