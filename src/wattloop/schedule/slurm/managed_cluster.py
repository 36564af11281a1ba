"""The managed cluster: what stays the same from round to round."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.job_estimate import (
    EstimateSource,
    JobEstimate,
    SubmittedJob,
    timed_model,
)
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.slurm.nodes import KnownNodes, SlurmNode
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Times and bounds.

    Attributes:
        interval_s: between two rounds; they follow each other sooner while jobs come and go.
        lease_s: how long Slurm is kept from starting jobs by itself after the driver died.
        patience_s: how long a job that was let through may wait before it is taken back.
        prediction_s: how long a job waits for the first prediction of its model.
        most_faults: failures of the policy in a row after which the driver steps back.
        nodes_every_s: how often nodes are asked for.
        standby: let jobs through ahead of time, for GPUs that may become free between rounds.
        most_openings: jobs let through in one round; the rest follows in the next.
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


"""What a describer says of a model that it will know in a moment."""


class Believed:
    """Descriptions of jobs, kept as long as the job does not change.

    Slurm starts a job as it was submitted: batch and nodes are the job's own. What may be chosen is
    the GPU type, the power cap where the policy sets caps, and the GPU count of a job on one node
    whose comment or rule allows several.

    Args:
        describer: who reads texts.
        cluster: where they run.
        caps: shares of TDP that may be set on jobs that name none; only for policies that do so.

    Attributes:
        on_refusal: told once of each thing that a job says and that is not believed.
    """

    def __init__(
        self, describer: JobEstimator, cluster: Cluster, caps: tuple[float, ...] = (1.0,)
    ) -> None:
        self._describer, self._cluster, self._caps = describer, cluster, caps
        self.on_refusal: Callable[[SlurmJob, str], None] = lambda job, why: None
        self._kept: OrderedDict[tuple[object, ...], JobEstimate] = OrderedDict()

    def of(self, job: SlurmJob) -> JobEstimate:
        """What is believed of a job that waits."""
        key = (
            job.key, job.name, job.user, job.comment, job.gpus, job.gpu_type, job.nodes,
            job.time_limit_s,
        )  # fmt: skip
        found = self._kept.get(key)
        if found is None:
            found = self._described(job)
            if any(AGAIN in refusal for refusal in found.refusals):
                return found
            self._kept[key] = found
            for why in found.refusals:
                self.on_refusal(job, why)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found

    def is_coming(self, job: SlurmJob) -> bool:
        """Whether more will be known in a moment: its model is predicted for the first time."""
        said = self.of(job)
        if any(AGAIN in refusal for refusal in said.refusals):
            return True
        try:
            return said.kind is not None and self._describer.oracle.soon(said.kind) is None
        except ConfigError:
            return False

    def running(self, job: SlurmJob, gpus: int, type_index: int) -> JobKind:
        """The kind of a job on its machines: it stays on them."""
        said = self.of(job).kind
        name = self._cluster.types[type_index].name
        if said is None:
            said = JobKind(model=timed_model())
        elif gpus in said.gpus and (not said.types or name in said.types):
            return said
        return replace(said, gpus=(gpus,), types=(name,), may_spread=True)

    def _described(self, job: SlurmJob) -> JobEstimate:
        found = self._describer.describe(submitted(job))
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


def submitted(job: SlurmJob) -> SubmittedJob:
    """A job of Slurm's as its user submitted it."""
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


def _counts(job: SlurmJob, kind: JobKind) -> tuple[int, ...]:
    """GPU counts it may have: Slurm changes those of one node only, asked for by node."""
    if job.nodes == 1 and job.gpus_per_node and len(kind.gpus) > 1:
        return kind.gpus
    return (job.gpus,)


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """A part of a Slurm cluster, and what is known of it.

    Attributes:
        known: nodes, and the cluster they make.
        managed: partitions whose jobs are ours to place.
        shared: other partitions that have some of the nodes; their jobs are let through.
        believed: what is believed of jobs.
        oracle: time and power of kinds.
        budget_w: most the nodes may draw, over seconds since 1970.
    """

    known: KnownNodes
    managed: tuple[str, ...]
    shared: tuple[str, ...]
    believed: Believed
    oracle: FleetOracle
    budget_w: StepFunction


def shared_partitions(
    nodes: Sequence[SlurmNode], known: KnownNodes, managed: Sequence[str]
) -> tuple[str, ...]:
    """Partitions that are not managed and have some of the nodes."""
    found = {name for node in nodes if node.name in known.numbers for name in node.partitions}
    return tuple(sorted(found - set(managed)))
