"""Managed cluster of a driver: nodes, partitions, job estimates, oracle and power budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from wattloop.core.cache import LruCache
from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.driver.inventory import KnownNodes, SchedulerJob, SchedulerNode, known_nodes
from wattloop.schedule.estimates.fleet_file import FleetOracle, timed_model
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimator import EstimateSource, JobEstimate, JobEstimator
from wattloop.schedule.estimates.job_rules import JobRules, SubmittedJob, load_rules
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.step_function import StepFunction, StepsError, budget_steps


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Intervals and limits of a driver.

    Attributes:
        interval_s: between two rounds; shorter while jobs arrive and finish.
        lease_s: time after a crash of the driver until Slurm starts jobs by itself again.
        patience_s: most time that a released job may wait before it is restored.
        prediction_s: most time that a job waits for the first prediction of its model.
        most_faults: consecutive failures of the policy after which the driver stops.
        nodes_every_s: interval between queries of the nodes.
        standby: release jobs in advance, for GPUs that may become free between rounds.
        most_openings: most jobs released in one round; the rest follows in the next.
    """

    interval_s: float = 1.0
    lease_s: float = 20.0
    patience_s: float = 45.0
    prediction_s: float = 15.0
    most_faults: int = 5
    nodes_every_s: float = 10.0
    standby: bool = True
    most_openings: int = 100

    def __post_init__(self) -> None:
        if not 0.05 <= self.interval_s <= 3600:
            raise ConfigError(f"--interval {self.interval_s:g}: give 0.05 to 3600 seconds")
        if not max(5.0, 3 * self.interval_s) <= self.lease_s <= 3600:
            raise ConfigError(
                f"--lease {self.lease_s:g}: give at least 5 s and three intervals, and at most "
                "3600 s; that long Slurm waits if the driver dies"
            )


MOST_KEPT = 20_000
AGAIN = "is being predicted"
"""Message of an estimator whose prediction is not finished."""


class JobEstimates:
    """Cache of job estimates, valid as long as the job does not change.

    Slurm starts a job as submitted: batch and node count are fixed. A policy may choose the GPU
    type, the power cap if it sets caps, and the GPU count of a single-node job whose comment or
    rule allows several.

    Args:
        caps: shares of TDP for jobs that name none; only for policies that set caps.

    Attributes:
        on_refusal: called once for each rejected setting of a job.
    """

    def __init__(
        self, estimator: JobEstimator, cluster: Cluster, caps: tuple[float, ...] = (1.0,)
    ) -> None:
        self._estimator, self._cluster, self._caps = estimator, cluster, caps
        self.on_refusal: Callable[[SchedulerJob, str], None] = lambda job, why: None
        self._cache = LruCache[tuple[object, ...], JobEstimate](MOST_KEPT)

    def estimate(self, job: SchedulerJob) -> JobEstimate:
        key = (
            job.key, job.name, job.user, job.comment, job.gpus, job.gpu_type, job.nodes,
            job.time_limit_s,
        )  # fmt: skip
        found = self._cache.get(key)
        if found is None:
            found = self._estimate(job)
            if any(AGAIN in refusal for refusal in found.refusals):
                return found
            self._cache.put(key, found)
            for why in found.refusals:
                self.on_refusal(job, why)
        return found

    def is_coming(self, job: SchedulerJob) -> bool:
        """Return True while the job's model is being predicted for the first time."""
        found = self.estimate(job)
        if any(AGAIN in refusal for refusal in found.refusals):
            return True
        try:
            return found.kind is not None and self._estimator.oracle.soon(found.kind) is None
        except ConfigError:
            return False

    def running_kind(self, job: SchedulerJob, gpus: int, type_index: int) -> JobKind:
        """Return the kind of a running job, limited to its allocation."""
        kind = self.estimate(job).kind
        name = self._cluster.types[type_index].name
        if kind is None:
            kind = JobKind(model=timed_model())
        elif gpus in kind.gpus and (not kind.types or name in kind.types):
            return kind
        return replace(kind, gpus=(gpus,), types=(name,), may_spread=True)

    def _estimate(self, job: SchedulerJob) -> JobEstimate:
        found = self._estimator.describe(submitted_job(job))
        kind = found.kind
        if kind is None or not job.gpus:
            return replace(found, kind=None)
        caps: tuple[float, ...] = (max(kind.caps),)
        if len(self._caps) > 1 and found.source is not EstimateSource.TIME_LIMIT:
            caps = kind.caps if kind.caps != (1.0,) else self._caps
        return replace(
            found,
            kind=replace(
                kind, gpus=_counts(job, kind), batches=kind.batches[:1], caps=caps, may_spread=False
            ),
        )


def submitted_job(job: SchedulerJob) -> SubmittedJob:
    return SubmittedJob(
        job_id=job.key,
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        script=job.command,
        comment=job.comment,
        gpus=job.gpus,
        gpu_type=job.gpu_type,
        time_limit_s=job.time_limit_s,
        deadline_s=job.deadline_s,
    )


def _counts(job: SchedulerJob, kind: JobKind) -> tuple[int, ...]:
    """Return the GPU counts that Slurm can set: only of single-node jobs with GPUs per node."""
    if job.nodes == 1 and job.gpus_per_node and len(kind.gpus) > 1:
        return kind.gpus
    return (job.gpus,)


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """Part of a Slurm cluster that a driver manages.

    Attributes:
        known: nodes, and the cluster that they form.
        managed: partitions whose jobs the driver places.
        shared: other partitions with some of the nodes; their jobs are released as they are.
        budget_w: power budget of the nodes, over seconds since 1970.
    """

    known: KnownNodes
    managed: tuple[str, ...]
    shared: tuple[str, ...]
    estimates: JobEstimates
    oracle: FleetOracle
    budget_w: StepFunction


def shared_partitions(
    nodes: Sequence[SchedulerNode], known: KnownNodes, managed: Sequence[str]
) -> tuple[str, ...]:
    """Return partitions that are not managed and contain some of the nodes."""
    found = {name for node in nodes if node.name in known.numbers for name in node.partitions}
    return tuple(sorted(found - set(managed)))


CAPS = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Default caps as shares of TDP, for policies that set caps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Operator's options for a managed cluster.

    Attributes:
        partitions: managed partitions; empty selects Slurm's only partition.
        cluster: YAML file with the power of GPUs and hosts; None uses the hardware table.
        gpus_only: leave hosts out of the power.
        mapping: YAML file with rules that map jobs to models.
        oracle: `analytic`, `table`, or the `oracle` section of a scenario.
        budget: `4500 W`; None for no budget.
        caps: power caps as shares of TDP.
        store: `Store` with past runs, or None.
    """

    partitions: tuple[str, ...] = ()
    cluster: str | None = None
    gpus_only: bool = False
    mapping: str | None = None
    oracle: Any = "analytic"
    budget: Any = None
    caps: tuple[float, ...] = CAPS
    store: Any = field(default=None, repr=False)


def build_managed_cluster(
    nodes: Sequence[SchedulerNode], request: ClusterOptions, policy: Policy
) -> ManagedCluster:
    """Build the managed cluster from Slurm's current nodes."""
    partitions = request.partitions or only_partition(nodes)
    described = load_cluster(request.cluster) if request.cluster is not None else None
    known = known_nodes(nodes, partitions, described=described, count_hosts=not request.gpus_only)
    oracle = FleetOracle.of(known.cluster, _oracle_spec(request.oracle))
    estimator = JobEstimator(
        oracle,
        rules=load_rules(request.mapping) if request.mapping is not None else JobRules(),
        history=History(request.store) if request.store is not None else None,
        wait_s=0.0,  # a job waits until its model is predicted, a round does not
    )
    caps = request.caps if policy.sets_caps else (1.0,)
    return ManagedCluster(
        known=known,
        managed=tuple(partitions),
        shared=shared_partitions(nodes, known, partitions),
        estimates=JobEstimates(estimator, known.cluster, caps),
        oracle=oracle,
        budget_w=_budget(request.budget, known.cluster),
    )


def only_partition(nodes: Sequence[SchedulerNode]) -> tuple[str, ...]:
    """Return Slurm's only partition."""
    found = sorted({name for node in nodes for name in node.partitions})
    if len(found) != 1:
        raise ConfigError(f"Slurm has partitions {', '.join(found)}; say which with --partition")
    return (found[0],)


def _oracle_spec(given: Any) -> OracleSpec:
    try:
        return OracleSpec.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"oracle: {error.errors()[0]['msg']}") from None


def _budget(given: Any, cluster: Cluster) -> StepFunction:
    if given is None:
        return StepFunction.constant(float("inf"))
    try:
        found = budget_steps(given).steps
    except (StepsError, ValueError) as error:
        raise ConfigError(f"budget: {error}") from None
    if not min(found.values) > cluster.idle_w:
        raise ConfigError(
            f"budget: {min(found.values):g} W is not above the {cluster.idle_w:.0f} W that the "
            "nodes draw with nothing to do; no job could ever start (--gpus-only counts no hosts)"
        )
    return found
