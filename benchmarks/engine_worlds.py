"""What the engine is timed on: many small jobs on one kind of GPU, and Philly's."""

import os
from pathlib import Path

import numpy as np

from wattloop.schedule.engine import Settings
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import World
from wattloop.testing.synthetic_cluster import FormulaOracle, synthetic_cluster

__all__ = [
    "GPUS_PER_NODE",
    "NODES",
    "PHILLY_FILES",
    "ZeusWithCaps",
    "missing",
    "philly",
    "small_jobs",
]

NODES, GPUS_PER_NODE, MEAN_S, LOAD, USERS = 256, 8, 1000.0, 0.95, 5
FOLDER = Path(
    os.environ.get("WATTLOOP_SHARED_DATA")
    or Path(__file__).resolve().parents[2] / "shared" / "data"
)
PHILLY_FILES = {
    "jobs.trace.file": "cluster/philly_jobs.csv",
    "oracle.throughputs": "cluster/gavel_throughputs.csv",
    "oracle.cap_curves": "zeus_nsdi23/power_v100.csv",
}


class ZeusWithCaps(Zeus):
    """Least energy-delay product over GPUs, batch sizes, GPU types and power limits."""

    name = "zeus with caps"
    sets_caps = True


def small_jobs(count: int) -> World:
    """One-GPU jobs of 1,000 s on average for 2,048 GPUs, which they keep busy to 95%."""
    cluster = synthetic_cluster(("a100", NODES, GPUS_PER_NODE))
    oracle = FormulaOracle(cluster)
    kind = JobKind("small", batches=(64,))
    sample_s = float(oracle.options(kind).sample_s[0])
    rng = np.random.default_rng(0)
    rate_per_s = LOAD * NODES * GPUS_PER_NODE / MEAN_S
    jobs = JobTable(
        kinds=(kind,),
        users=tuple(f"user-{number}" for number in range(USERS)),
        arrival_s=np.cumsum(rng.exponential(1 / rate_per_s, count)),
        kind=np.zeros(count, dtype=np.int64),
        user=rng.integers(0, USERS, count),
        work=rng.exponential(MEAN_S, count) / sample_s,
        deadline_s=np.full(count, np.inf),
        priority=np.zeros(count, dtype=np.int64),
    )
    return World(cluster, jobs, oracle, oracle, Settings())


def missing() -> list[str]:
    """Files of the traces that are not here."""
    return [name for name in PHILLY_FILES.values() if not (FOLDER / name).is_file()]


def philly(speed: float, head: int | None = None) -> World:
    """Philly's jobs, arriving so many times faster, with throughputs of Gavel and caps of Zeus."""
    changes: dict[str, object] = {
        place: str(FOLDER / name) if place == "jobs.trace.file" else [str(FOLDER / name)]
        for place, name in PHILLY_FILES.items()
    }
    changes["jobs.trace.speed"] = speed
    if head is not None:
        changes["jobs.trace.head"] = head
    return load_scenario("philly-gavel", changes).world(0)
