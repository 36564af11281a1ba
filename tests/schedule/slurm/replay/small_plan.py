"""A plan small enough to check by hand, without traced models."""

import math

import numpy as np

from tests.schedule.small_world import PlainOracle, jobs_of
from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.engine import EngineSettings
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.slurm.replay.plan import ReplayPlan, with_all_gpu_counts
from wattloop.schedule.step_function import StepFunction

IDLE_W = 50.0


def small_plan(
    rows: list[tuple[float, float]], *, gpus: int = 1, nodes: int = 2, budget_w: float = math.inf
) -> ReplayPlan:
    """Return jobs from (arrival, samples): a GPU takes a second per sample and draws 300 W."""
    cluster = Cluster(
        "small",
        (GpuType("a100", gpu_named("a100-sxm-40"), IDLE_W),),
        (NodeGroup("node", "a100", nodes, 2),),
    )
    asked = jobs_of(rows, kind=JobKind("toy", gpus=(gpus,)))
    could = jobs_of(rows, kind=JobKind("toy", gpus=(1, 2, 4)))
    return ReplayPlan(
        scenario="small",
        seed=0,
        speedup=10.0,
        cluster=cluster,
        asked=asked,
        open=with_all_gpu_counts(asked, could, 2),
        oracle=OracleSpec(),
        truth=PlainOracle(cluster),
        settings=EngineSettings(budget_w=StepFunction.constant(budget_w)),
    )


def kinds_of(plan: ReplayPlan) -> list[tuple[int, ...]]:
    """Return the GPU counts that each job may have."""
    return [plan.open.kinds[int(kind)].gpus for kind in np.asarray(plan.open.kind)]
