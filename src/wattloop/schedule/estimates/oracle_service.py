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
from wattloop.schedule.estimates.fleet_oracle import Fleet, FleetOracle, ModelNames, predicted_names
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimate import SubmittedJob
from wattloop.schedule.estimates.job_estimator import caps_of
from wattloop.schedule.estimates.job_query import JobQuery, fleet_types, job_query
from wattloop.schedule.estimates.job_rules import JobRules
from wattloop.schedule.estimates.placement_estimates import (
    COSTS,
    Pair,
    PairEstimates,
    PlacementEstimate,
    PlacementQuery,
    known_places,
    places_of,
    table_estimates,
)
from wattloop.schedule.estimates.workload_estimates import Trace, WorkloadEstimates
from wattloop.schedule.jobs.kind import JobKind


@dataclass(frozen=True, slots=True)
class Answer:
    """Estimates of all pairs, and the best pair of each job.

    Attributes:
        jobs, places: the queried jobs and placements.
        pairs: indices of job and placement.
        prices: estimate of each pair.
        best: index of each job's best pair; None without one.
        objective: objective of the choice.
    """

    jobs: tuple[JobQuery, ...]
    places: tuple[PlacementQuery, ...]
    pairs: tuple[Pair, ...]
    prices: tuple[PlacementEstimate, ...]
    best: tuple[int | None, ...]
    objective: str


def best_of(
    jobs: Sequence[JobQuery],
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


def to_dict(answer: Answer) -> dict[str, Any]:
    """Convert to plain data for JSON (docs/oracle-service.md)."""
    return {
        "results": [
            _row(number, pair, price)
            for number, (pair, price) in enumerate(zip(answer.pairs, answer.prices, strict=True))
        ],
        "jobs": [
            {"job": number, **job.to_dict(), "best": answer.best[number]}
            for number, job in enumerate(answer.jobs)
        ],
        "placements": [place.to_dict() for place in answer.places],
        "objective": answer.objective,
        "confidence": CONFIDENCE,
        "scope": "gpu",
    }


def _row(number: int, pair: Pair, price: PlacementEstimate) -> dict[str, Any]:
    if price.error:
        return {
            "result": number,
            "job": pair[0],
            "placement": pair[1],
            "error": price.error,
            "later": price.later,
        }
    energy_j = price.energy_j
    factors = price.factors or {}
    return {
        "result": number,
        "job": pair[0],
        "placement": pair[1],
        "time_s": price.time_s,
        "power_w": price.power_w,
        "energy_j": energy_j,
        "samples_s": price.samples_s,
        "batch": price.batch,
        "cap_w": price.cap_w,
        "intervals": {
            "time_s": _interval(price.time_s, factors.get("time")),
            "power_w": _interval(price.power_w, factors.get("power"), price.most_w),
            "energy_j": _interval(energy_j, factors.get("energy")),
        },
        "provenance": price.provenance,
        "source": price.source,
    }


def _interval(
    value: float | None, factor: float | None, most: float | None = None
) -> list[float] | None:
    if value is None or factor is None:
        return None
    high = value * factor
    return [value / factor, high if most is None else min(high, max(most, value))]


MOST_PAIRS = 10_000
MOST_WARM = 50
"""Most models of rules that are traced at the start."""


@dataclass(frozen=True, slots=True)
class AskedJob:
    """Job of a query: as submitted to the batch system, or with the caller's settings."""

    submitted: SubmittedJob = field(default_factory=SubmittedJob)
    stated: JobComment | None = None


class OracleService:
    """Service that answers queries and caches workloads, models and history between them.

    Args:
        fleet: machines for queries without placements, and the operator's rules.
        history: past jobs.
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
            oracle = self._fleet_oracle()
            priced = self._priced(jobs, oracle.names)
            places, asked, prices = table_estimates(priced, oracle, MOST_PAIRS, wait_s)
        else:
            priced = self._priced(jobs, self._names)
            if places:
                known, asked = known_places(places), _checked(pairs, len(jobs), len(places))
            else:
                places, known, asked = self._on_fleet(priced)
            prices = PairEstimates(self._kept, wait_s=wait_s).of(priced, known, asked, objective)
        best = best_of(priced, asked, prices, objective)
        return Answer(priced, tuple(places), tuple(asked), tuple(prices), best, objective)

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
        asked = [replace(rule.stated, gpus=(1,)) for rule in self._rules.rules]
        asked.append(JobComment("resnet-50", (64,), 1.0, (1,), "tf32"))
        self.answer([AskedJob(stated=each) for each in asked[:MOST_WARM]], [], wait_s=60.0)

    def models(self) -> list[str]:
        """Return the known model names."""
        return self._names.names()

    def _priced(self, jobs: Sequence[AskedJob], names: ModelNames) -> tuple[JobQuery, ...]:
        return tuple(
            job_query(
                job.submitted,
                job.stated,
                names=names,
                rules=self._rules,
                history=self._history,
            )
            for job in jobs
        )

    def _fleet_oracle(self) -> FleetOracle:
        assert self._fleet is not None  # checked by the caller
        with self._lock:
            if self._oracle is None:
                self._oracle = self._fleet.oracle()
            return self._oracle

    def _on_fleet(
        self, jobs: Sequence[JobQuery]
    ) -> tuple[list[PlacementQuery], list[Placement | str], list[Pair]]:
        """Estimate all allowed placements of each job on the fleet's machines."""
        cluster = self.fleet().cluster
        places: dict[PlacementQuery, int] = {}
        known: list[Placement | str] = []
        pairs: list[Pair] = []
        for number, job in enumerate(jobs):
            kind = JobKind(
                model="",
                gpus=job.gpus or (1,),
                caps=caps_of(job.stated),
                types=fleet_types(job, cluster),
                may_spread=job.stated.may_spread,
            )
            for where, placement in places_of(kind, cluster):
                if where not in places:
                    places[where] = len(known)
                    known.append(placement)
                pairs.append((number, places[where]))
            if len(pairs) > MOST_PAIRS:
                raise ConfigError(f"{len(pairs):,} placements in all; at most {MOST_PAIRS:,}")
        return list(places), known, pairs


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
