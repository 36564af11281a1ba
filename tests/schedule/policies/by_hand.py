"""Jobs on a few GPUs, with times and powers that a test sets."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.schedule.small_world import small_cluster
from wattloop.schedule.cluster import Cluster
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.registry import policy_from

Rows = Sequence[tuple[int, float, float]]
"""GPUs, seconds per sample, watts of all of them."""


class Job(NamedTuple):
    """One job of a test."""

    kind: str
    arrival_s: float
    work: float
    user: int = 0
    deadline_s: float = np.inf
    priority: int = 0


class WrittenOracle(Oracle):
    """The figures that the test wrote down, on GPU type 0."""

    name = "written"

    def __init__(self, tables: Mapping[str, Rows]) -> None:
        self._options = {model: _options(rows) for model, rows in tables.items()}

    def options(self, kind: JobKind) -> PlacementOptions:
        return self._options[kind.model]


def starts(
    policy: str | Policy, tables: Mapping[str, Rows], jobs: Sequence[Job],
    cluster: Cluster | None = None, settings: EngineSettings | None = None,
) -> list[tuple[int, float, int]]:  # fmt: skip
    """Return (job, start time, number of GPUs) in the order of starts; two GPUs by default."""
    policy = policy_from(policy) if isinstance(policy, str) else policy
    oracle = WrittenOracle(tables)
    simulation = Simulation(
        cluster or small_cluster(nodes=1, gpus_per_node=2),
        table(tables, jobs),
        policy,
        truth=oracle,
        settings=settings,
    )
    result = simulation.run()
    assert result.is_done.all()
    assert not result.refusals
    return [
        (event.job, event.time_s, tables[jobs[event.job].kind][event.detail][0])
        for event in result.log
        if event.what is EventKind.START
    ]


def table(tables: Mapping[str, Rows], jobs: Sequence[Job]) -> JobTable:
    """Return the jobs as columns."""
    models = list(tables)
    return JobTable(
        kinds=tuple(JobKind(model) for model in models),
        users=tuple(f"user-{number}" for number in range(1 + max(job.user for job in jobs))),
        arrival_s=np.array([job.arrival_s for job in jobs], dtype=float),
        kind=np.array([models.index(job.kind) for job in jobs], dtype=np.int64),
        user=np.array([job.user for job in jobs], dtype=np.int64),
        work=np.array([job.work for job in jobs], dtype=float),
        deadline_s=np.array([job.deadline_s for job in jobs], dtype=float),
        priority=np.array([job.priority for job in jobs], dtype=np.int64),
    )


def _options(rows: Rows) -> PlacementOptions:
    gpus, sample_s, power_w = np.array(sorted(rows), dtype=float).T
    ones = np.ones(len(rows))
    return PlacementOptions(
        type_index=np.zeros(len(rows), dtype=np.int64),
        gpus=gpus.astype(np.int64),
        batch=ones.astype(np.int64),
        cap_w=400.0 * ones,
        spread=np.zeros(len(rows), dtype=bool),
        sample_s=sample_s,
        power_w=power_w,
        step_s=sample_s * gpus,
    )
