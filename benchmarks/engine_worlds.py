"""Jobs on which the engine is timed: many small ones on one kind of GPU, and Philly's."""

import os
from pathlib import Path

import numpy as np

from wattloop.schedule.engine import EngineSettings
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import World
from wattloop.schedule.step_function import DAY_S, StepFunction
from wattloop.testing.synthetic_cluster import FormulaOracle, synthetic_cluster

__all__ = [
    "GPUS_PER_NODE",
    "NODES",
    "PHILLY_FILES",
    "ZeusWithCaps",
    "busy_trace",
    "missing",
    "philly",
    "small_jobs",
]

BUSY_LOAD, BUSY_WORK = 0.95, 1.6
"""Of the busy trace: share of GPU time asked for, and GPU time over that on the fastest GPUs."""
BUSY_ROUND_S = 30.0
"""As Slurm's backfill decides by default (`bf_interval`)."""
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
    """Policy of least energy-delay product over GPUs, batch sizes, GPU types and power limits."""

    name = "zeus with caps"
    sets_caps = True


def small_jobs(count: int) -> World:
    """Return one-GPU jobs of 1,000 s on average for 2,048 GPUs, which they keep busy to 95%."""
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
    return World(cluster, jobs, oracle, oracle, EngineSettings())


def busy_trace(count: int) -> World:
    """Return a trace with all features that make policies slow, for 640 GPUs of three types.

    A backlog every day (arrivals follow the hour), wide jobs, a tenth with a deadline of twice the
    best run time, and a power budget that is lower by day.
    """
    groups = (("a100", 32, 8), ("h100", 16, 8), ("v100", 32, 8))
    cluster = synthetic_cluster(*groups)
    oracle = FormulaOracle(cluster)
    sizes = ((1,), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32))
    shares = (0.45, 0.2, 0.15, 0.12, 0.06, 0.02)
    kinds = tuple(
        JobKind(f"model-{size[-1]}-{number}", gpus=size, batches=(16, 64), caps=(1.0, 0.8, 0.6))
        for size in sizes
        for number in range(4)
    )
    rng = np.random.default_rng(7)
    size = rng.choice(len(sizes), count, p=shares)
    kind = size * 4 + rng.integers(0, 4, count)
    best_s = np.array([float(oracle.options(each).sample_s.min()) for each in kinds])
    run_s = np.clip(rng.lognormal(np.log(600.0), 1.3, count), 20.0, 86_400.0)
    gpus = np.array([each[0] for each in sizes])[size]
    # of the fastest GPUs; those of other types take longer
    offered_gpu_s = float((run_s * gpus).sum()) * BUSY_WORK
    span_s = offered_gpu_s / (cluster.gpus * BUSY_LOAD)
    hours = np.sort(rng.random(3 * count))
    by_day = hours[rng.random(3 * count) < 0.5 * (1 - np.cos(2 * np.pi * hours * span_s / DAY_S))]
    arrival_s = np.sort(rng.choice(by_day, count)) * span_s
    is_urgent = rng.random(count) < 0.1
    jobs = JobTable(
        kinds=kinds,
        users=tuple(f"user-{number}" for number in range(50)),
        arrival_s=arrival_s,
        kind=kind,
        user=rng.integers(0, 50, count),
        work=run_s / best_s[kind],
        deadline_s=np.where(is_urgent, arrival_s + 2 * run_s, np.inf),
        priority=np.zeros(count, dtype=np.int64),
    )
    by_night_w = cluster.idle_w + 0.9 * sum(
        each.tdp_w * gpus for each, gpus in zip(cluster.types, cluster.gpus_by_type, strict=True)
    )
    budget = StepFunction(
        (0.0, 8 * 3600.0, 20 * 3600.0), (by_night_w, 0.7 * by_night_w, by_night_w), DAY_S
    )
    return World(
        cluster, jobs, oracle, oracle, EngineSettings(budget_w=budget, round_s=BUSY_ROUND_S)
    )


def missing() -> list[str]:
    """Return the missing files of the traces."""
    return [name for name in PHILLY_FILES.values() if not (FOLDER / name).is_file()]


def philly(speed: float, head: int | None = None) -> World:
    """Return Philly's jobs, accelerated, with throughputs of Gavel and caps of Zeus."""
    changes: dict[str, object] = {
        place: str(FOLDER / name) if place == "jobs.trace.file" else [str(FOLDER / name)]
        for place, name in PHILLY_FILES.items()
    }
    changes["jobs.trace.speed"] = speed
    if head is not None:
        changes["jobs.trace.head"] = head
    return load_scenario("philly-gavel", changes).world(0)
