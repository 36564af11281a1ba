"""One measurement of the engine, or of SimPy, in this process."""

import resource
import time
from typing import Any

import numpy as np

from engine_simpy import simpy_ends
from engine_worlds import ZeusWithCaps, busy_trace, philly, small_jobs
from wattloop.schedule.engine import Simulation, SimulationResult
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.policies.registry import policy_from

__all__ = [
    "BUSY_JOBS",
    "KEEPS_UP",
    "NOISE",
    "REPEATS",
    "SIZES",
    "measured",
    "measured_busy",
    "measured_philly",
    "peak_mb",
]

SIZES = (10_000, 100_000, 1_000_000)
REPEATS = 3
BUSY_JOBS = 70_000
NOISE = 0.1
KEEPS_UP = 1.0
"""Philly's jobs arrive as recorded."""


def measured(what: str, size: float) -> dict[str, Any]:
    """Make one measurement: `fifo|simpy|thesis N`, `philly|noisy SPEED`, `busy:POLICY N`."""
    if what.startswith("busy:"):
        return measured_busy(what.removeprefix("busy:"), int(size))
    if what in ("philly", "noisy"):
        return measured_philly(size, noise=NOISE if what == "noisy" else 0.0)
    world = small_jobs(int(size))
    seconds, digest = [], ""
    for _ in range(REPEATS if size <= SIZES[1] else 1):
        if what != "fifo":
            begun_s = time.process_time()
            ends_s = simpy_ends(world, as_in_the_thesis=what == "thesis")
            seconds.append(time.process_time() - begun_s)
        else:
            result, took_s = _timed(
                Simulation(world.cluster, world.jobs, Fifo(), truth=world.truth)
            )
            seconds.append(took_s)
            ends_s = result.finished_s.tolist()
        digest = f"{sum(ends_s):.0f}"
    return {"cpu_s": min(seconds), "ends": digest, "peak_mb": peak_mb()}


def measured_philly(speed: float, head: int | None = None, *, noise: float = 0.0) -> dict[str, Any]:
    """Measure Philly's trace, or its first jobs, accelerated by a factor.

    With noise, estimates of each job are off by up to that share of the truth.
    """
    world = philly(speed, head)
    oracle = NoisyOracle(world.truth, seed=1, share=noise) if noise else None
    simulation = Simulation(
        world.cluster, world.jobs, ZeusWithCaps(), truth=world.truth, oracle=oracle
    )
    options = [len(world.truth.options(kind)) for kind in world.jobs.kinds]
    result, took_s = _timed(simulation)
    return {
        "cpu_s": took_s,
        "jobs": len(world.jobs),
        "done": int(result.is_done.sum()),
        "backlog": _most_waiting(result),
        "options": float(np.mean([options[kind] for kind in world.jobs.kind])),
        "peak_mb": peak_mb(),
    }


def measured_busy(policy: str, count: int) -> dict[str, Any]:
    """Measure a policy on the busy trace, deadlines and budget included."""
    world = busy_trace(count)
    simulation = Simulation(
        world.cluster,
        world.jobs,
        policy_from(policy),
        truth=world.truth,
        settings=world.settings,
    )
    result, took_s = _timed(simulation)
    return {
        "cpu_s": took_s,
        "jobs": len(world.jobs),
        "done": int(result.is_done.sum()),
        "backlog": _most_waiting(result),
        "over_budget_s": result.over_budget_s,
        "peak_mb": peak_mb(),
    }


def _timed(simulation: Simulation) -> tuple[SimulationResult, float]:
    begun_s = time.process_time()
    result = simulation.run()
    return result, time.process_time() - begun_s


def _most_waiting(result: SimulationResult) -> int:
    """Return the greatest length of the queue."""
    times_s = np.concatenate([result.jobs.arrival_s, result.started_s])
    change = np.concatenate([np.ones(len(result.jobs)), -np.ones(len(result.jobs))])
    return int(np.cumsum(change[np.argsort(times_s, kind="stable")]).max())


def peak_mb() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
