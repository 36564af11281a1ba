"""Oracle service: answers queries of many jobs and placements at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from wattloop.core.errors import ConfigError
from wattloop.fleet.job_comment import JobComment
from wattloop.predict.prediction import Placement
from wattloop.schedule.estimates.fleet_file import Fleet
from wattloop.schedule.estimates.fleet_oracle import FleetOracle, ModelNames, predicted_names
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimate import SubmittedJob
from wattloop.schedule.estimates.job_estimator import caps_of
from wattloop.schedule.estimates.rules import Rules
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle_service.answer import Answer, best_of
from wattloop.schedule.oracle_service.job_query import JobQuery, fleet_types, job_query
from wattloop.schedule.oracle_service.placement_estimates import (
    Pair,
    PairEstimates,
    table_estimates,
)
from wattloop.schedule.oracle_service.placement_query import PlacementQuery, known_places, places_of
from wattloop.schedule.oracle_service.workload_estimates import Trace, WorkloadEstimates

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
        self._rules = Rules() if fleet is None else fleet.rules
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
