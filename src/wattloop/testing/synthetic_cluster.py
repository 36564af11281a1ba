"""Synthetic clusters, jobs and times, drawn from a seed, for tests of policies.

    seconds per sample = s_kind / (speed_type k^0.85) (1 + 4 / b), 1.3 times that when spread
    power of one GPU = TDP (0.6 + 0.3 b / (b + 16)); under a cap below it time grows by
    (power / cap)^0.5 and power is the cap

for k GPUs and batch b. Nothing here is measured: provenance `simulated`.
"""

import itertools
import zlib
from dataclasses import dataclass

import numpy as np

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.engine import EngineSettings, Preemption
from wattloop.schedule.engine.settings import Keeps, NodeEvent
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.step_function import StepFunction

GPUS = {"a100": ("a100-sxm-40", 1.0), "h100": ("h100-sxm", 2.2), "v100": ("v100-sxm-32", 0.4)}
"""Type -> the GPU it is, and its speed."""


@dataclass(frozen=True, slots=True)
class World:
    """All that a simulation needs but a policy.

    Attributes:
        what: in a word or two, for messages.
        truth: time and power as they turn out.
        oracle: what policies are told.
    """

    what: str
    cluster: Cluster
    jobs: JobTable
    truth: Oracle
    oracle: Oracle
    settings: EngineSettings


class FormulaOracle(Oracle):
    """The formulas above, for any kind on the types of a cluster."""

    name = "formula"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        """Every type x GPUs x batch x cap, spread as well where the kind may be."""
        if kind not in self._known:
            self._known[kind] = self._made(kind)
        return self._known[kind]

    def _made(self, kind: JobKind) -> PlacementOptions:
        types = [n for n, t in enumerate(self._cluster.types) if t.name in (kind.types or GPUS)]
        spreads = (False, True) if kind.may_spread else (False,)
        columns = (types, sorted(kind.gpus), spreads, sorted(kind.batches), sorted(kind.caps))
        rows = [row for row in itertools.product(*columns) if row[1] > 1 or not row[2]]
        table = np.array(rows, dtype=float).reshape(-1, 5)
        type_index, gpus, spread, batch, cap = table.T
        tdp_w = np.array([each.tdp_w for each in self._cluster.types])[type_index.astype(int)]
        speeds = np.array([GPUS[each.name][1] for each in self._cluster.types])
        whole_w = tdp_w * (0.6 + 0.3 * batch / (batch + 16))
        gpu_w = np.minimum(whole_w, cap * tdp_w)
        kind_s = 0.5 + zlib.crc32(kind.model.encode()) % 1000 / 1000
        sample_s = (
            (kind_s / (speeds[type_index.astype(int)] * gpus**0.85) * (1 + 4 / batch))
            * np.where(spread > 0, 1.3, 1.0)
            * np.sqrt(whole_w / gpu_w)
        )
        return PlacementOptions(
            type_index=type_index.astype(np.int64),
            gpus=gpus.astype(np.int64),
            batch=batch.astype(np.int64),
            cap_w=cap * tdp_w,
            spread=spread > 0,
            sample_s=sample_s,
            power_w=gpus * gpu_w,
            step_s=sample_s * batch * gpus,
            source="formula",
        )


def synthetic_cluster(*groups: tuple[str, int, int], host_w: float = 0.0) -> Cluster:
    """A cluster of (GPU type, nodes, GPUs of each)."""
    names = sorted({name for name, _, _ in groups})
    types = tuple(GpuType(name, gpu_named(GPUS[name][0]), 50.0) for name in names)
    nodes = tuple(
        NodeGroup(f"{name}-{number}", name, count, gpus, host_w=host_w)
        for number, (name, count, gpus) in enumerate(groups)
    )
    return Cluster("synthetic", types, nodes)


def synthetic_jobs(
    rng: np.random.Generator, kinds: tuple[JobKind, ...], count: int, *, together: bool = False
) -> JobTable:
    """Jobs of all kinds and sizes, some with deadlines, some of higher priority, some at once."""
    apart_s = float(rng.choice([2.0, 20.0]))
    arrivals_s = np.sort(np.round(rng.uniform(0, apart_s * count, count), rng.integers(0, 3) - 1))
    users = int(rng.integers(1, 5))
    work = np.exp(rng.uniform(np.log(20), np.log(2_000), count))
    deadline_s = arrivals_s + work * rng.uniform(0.2, 3, count)
    return JobTable(
        kinds=kinds,
        users=tuple(f"user-{number}" for number in range(users)),
        arrival_s=np.zeros(count) if together else arrivals_s,
        kind=rng.integers(0, len(kinds), count),
        user=rng.integers(0, users, count),
        work=work,
        deadline_s=np.where(rng.random(count) < 0.3, deadline_s, np.inf),
        priority=rng.integers(0, 3, count) * int(rng.random() < 0.3),
    )


def random_world(seed: int) -> World:
    """A small cluster and some jobs that differ in everything that may."""
    rng = np.random.default_rng(seed)
    names = rng.choice(list(GPUS), size=int(rng.integers(1, 4)))
    groups = [(str(n), int(rng.integers(1, 4)), int(rng.choice([1, 2, 4, 8]))) for n in names]
    cluster = synthetic_cluster(*groups, host_w=float(rng.choice([0.0, 200.0])))
    kinds = tuple(_random_kind(rng, number) for number in range(int(rng.integers(1, 5))))
    jobs = synthetic_jobs(rng, kinds, int(rng.integers(1, 31)), together=rng.random() < 0.2)
    truth = FormulaOracle(cluster)
    oracle = NoisyOracle(truth, seed=seed, share=float(rng.choice([0.0, 0.1])))
    return World(f"world {seed}", cluster, jobs, truth, oracle, _random_settings(rng, cluster))


def _random_kind(rng: np.random.Generator, number: int) -> JobKind:
    def some(of: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(rng.choice(of, size=int(rng.integers(1, len(of) + 1)), replace=False)))

    return JobKind(
        f"model-{number}",
        gpus=tuple(int(each) for each in some((1, 2, 3, 4, 8, 16))),
        batches=tuple(int(each) for each in some((8, 16, 64))),
        caps=(*some((0.5, 0.6, 0.7, 0.8, 0.9)), 1.0) if rng.random() < 0.5 else (1.0,),
        types=() if rng.random() < 0.7 else (str(rng.choice(list(GPUS))),),
        may_spread=bool(rng.random() < 0.3),
    )


def _random_settings(rng: np.random.Generator, cluster: Cluster) -> EngineSettings:
    most_w = max(each.tdp_w for each in cluster.types)
    budget_w = cluster.idle_w + most_w * 16 * rng.uniform(1.2, 2)
    events: list[NodeEvent] = []
    if rng.random() < 0.3:
        for node in range(len(cluster.node_groups)):
            down_s, away_s = rng.uniform(0, 500), rng.uniform(1, 200)
            events += [NodeEvent(down_s, node, False), NodeEvent(down_s + away_s, node, True)]
    return EngineSettings(
        round_s=None if rng.random() < 0.5 else float(rng.choice([1.0, 30.0])),
        preemption=Preemption(
            keeps=Keeps(rng.choice(list(Keeps))),
            checkpoint_period_s=100.0,
            checkpoint_cost_s=2.0,
            restart_s=float(rng.choice([0.0, 10.0])),
        ),
        interference=float(rng.choice([0.0, 0.05])),
        budget_w=StepFunction.constant(budget_w if rng.random() < 0.3 else np.inf),
        node_events=tuple(sorted(events)),
        checks=True,
    )
