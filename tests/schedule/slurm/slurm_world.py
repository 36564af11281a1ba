"""A site and jobs of Slurm for tests without a cluster."""

from typing import Any

from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob, SchedulerNode, known_nodes
from wattloop.schedule.driver.managed_cluster import JobEstimates, ManagedCluster, shared_partitions
from wattloop.schedule.driver.poller import Snapshot, classify_jobs
from wattloop.schedule.driver.power_readings import power_now
from wattloop.schedule.driver.view import LiveView, build_view
from wattloop.schedule.estimates.fleet_file import FleetOracle
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.step_function import StepFunction

__all__ = ["NOW_S", "job", "seen", "site", "view"]

NOW_S = 1_794_770_000.0
NODES = (
    SchedulerNode("n1", "a100", 4, ("gpu",), True),
    SchedulerNode("n2", "a100", 4, ("gpu", "other"), True),
)


def site(
    budget_w: float = float("inf"), nodes: tuple[SchedulerNode, ...] = NODES
) -> ManagedCluster:
    """Return two nodes with 4 A100 each; GPUs only."""
    known = known_nodes(nodes, ["gpu"], count_hosts=False)
    oracle = FleetOracle.of(known.cluster, OracleSpec.model_validate("table"))
    return ManagedCluster(
        known=known,
        managed=("gpu",),
        shared=shared_partitions(nodes, known, ["gpu"]),
        estimates=JobEstimates(JobEstimator(oracle), known.cluster),
        oracle=oracle,
        budget_w=StepFunction.constant(budget_w),
    )


def job(key: str, state: str = "PENDING", **facts: Any) -> SchedulerJob:
    """Return a job of one GPU and an hour, a minute old."""
    known: dict[str, Any] = {
        "user": "ada",
        "partition": "gpu",
        "gpus": 1,
        "gpus_per_node": 1,
        "submit_s": NOW_S - 60,
        "time_limit_s": 3600.0,
        "priority": 1,
    }
    if state == "RUNNING":
        known |= {"start_s": NOW_S - 30, "placed": (("n1", 1),)}
    return SchedulerJob(key=key, state=state, **{**known, **facts})


def seen(
    place: ManagedCluster, *jobs: SchedulerJob, opened: dict[str, ReleasedJob] | None = None
) -> Snapshot:
    """Sort the jobs as a driver whose gate is called `gate`."""
    return classify_jobs(jobs, place, "gate", opened or {})


def view(
    place: ManagedCluster,
    *jobs: SchedulerJob,
    opened: dict[str, ReleasedJob] | None = None,
    now_s: float = NOW_S,
    down: tuple[str, ...] = (),
) -> LiveView:
    """Return the view that a policy gets of them."""
    live = build_view(
        seen(place, *jobs, opened=opened),
        place,
        is_up=[name not in down for name in place.known.names],
        released=opened or {},
        use_gpu_s={"ada": 1000.0},
        now_s=now_s,
    )
    live.view.power_w = power_now(live, {}).watts
    return live
