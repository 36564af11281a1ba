"""Random simulations at the limits of the engine."""

import math
from dataclasses import replace

import numpy as np

from wattloop.schedule.cluster import Cluster
from wattloop.schedule.engine import Preemption
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.step_function import StepFunction
from wattloop.testing.synthetic_cluster import World, random_world


def wide_world(seed: int) -> World:
    """A random simulation at the limits: budgets that step and fall low, checkpoints, jobs of no
    length.

    Some jobs are impossible within its budget.
    """
    world, rng = random_world(seed), np.random.default_rng((1, seed))
    share = float(rng.choice([0.0, 0.15]))
    work = np.where(rng.random(len(world.jobs)) < share, 0.0, world.jobs.work)
    preemption = Preemption(
        keeps=Keeps(rng.choice(list(Keeps))),
        checkpoint_period_s=float(rng.choice([10.0, 100.0, np.inf])),
        checkpoint_cost_s=float(rng.choice([0.0, 2.0, 30.0])),
        restart_s=float(rng.choice([0.0, 10.0])),
    )
    settings = replace(
        world.settings,
        preemption=preemption,
        budget_w=_stepped_budget(rng, world.cluster),
        start_latency_s=float(rng.choice([0.0, 0.0, 3.0])),
        end_latency_s=float(rng.choice([0.0, 0.0, 5.0])),
    )
    return replace(
        world, what=f"wide {world.what}", jobs=replace(world.jobs, work=work), settings=settings
    )


def _stepped_budget(rng: np.random.Generator, cluster: Cluster) -> StepFunction:
    """Return one to four levels from a third of a GPU to 30 GPUs above idle, repeating or not."""
    period_s = float(rng.choice([600.0, 3_600.0, 86_400.0]))
    times_s = np.unique(np.round(rng.uniform(1, period_s - 1, int(rng.integers(0, 4))), 1))
    most_w = max(each.tdp_w for each in cluster.types)
    above_w = most_w * np.exp(rng.uniform(np.log(0.3), np.log(30), len(times_s) + 1))
    levels_w = tuple((cluster.idle_w + above_w).tolist())
    repeats = rng.random() < 0.7
    return StepFunction((0.0, *times_s.tolist()), levels_w, period_s if repeats else math.inf)
