"""Two nodes of two GPU types, malleable jobs with caps, and inexact estimates."""

import numpy as np

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable

MALLEABLE = JobKind("toy", gpus=(1, 2, 4), batches=(8,), caps=(1.0, 0.8, 0.6, 0.5))
SMALL = JobKind("small", gpus=(1, 2), batches=(8,), caps=(1.0, 0.7))
IDLE_W = (50.0, 60.0)
FULL_W = (300.0, 600.0)
SPEED = (1.0, 2.5)
"""Samples per second of one GPU."""


def two_types(nodes: int = 1, **group: float) -> Cluster:
    """Return four A100s and four H100s, `nodes` times."""
    types = (
        GpuType("a100", gpu_named("a100-sxm-40"), IDLE_W[0]),
        GpuType("h100", gpu_named("h100-sxm"), IDLE_W[1]),
    )
    groups = tuple(NodeGroup(each.name, each.name, nodes, 4, **group) for each in types)
    return Cluster("two types", types, groups)


class WrongOracle(Oracle):
    """Caps slow down with the root of power, GPUs scale to the power of 0.95.

    Args:
        share: largest relative error of estimates, uniform.
        seed: of the errors.
    """

    name = "wrong"

    def __init__(self, share: float = 0.0, seed: int = 0) -> None:
        self._share, self._seed = share, seed
        self._known: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        """Return every type x GPUs x cap."""
        if kind not in self._known:
            rows = [
                (number, gpus, cap) for number in (0, 1) for gpus in kind.gpus for cap in kind.caps
            ]
            number, gpus, cap = np.array(rows, dtype=float).T
            of_type = number.astype(np.int64)
            rate = np.array(SPEED)[of_type] * gpus**0.95 * np.sqrt(cap)
            self._known[kind] = PlacementOptions(
                type_index=of_type,
                gpus=gpus.astype(np.int64),
                batch=np.full(len(rows), 8),
                cap_w=cap * np.array([400.0, 700.0])[of_type],
                spread=np.zeros(len(rows), dtype=bool),
                sample_s=1 / rate,
                power_w=gpus * cap * np.array(FULL_W)[of_type],
                step_s=8 * gpus / rate,
            )
        return self._known[kind]

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """Return uniform factors, per job and option."""
        if not self._share:
            return None
        dice = np.random.default_rng((self._seed, job))
        low, high = 1 - self._share, 1 + self._share
        return Factors(*dice.uniform(low, high, (2, len(self.options(kind)))))

    @property
    def power_error(self) -> float:
        """Return the largest error of a low estimate of power."""
        return 1 / (1 - self._share) - 1

    @property
    def time_error(self) -> float:
        """Return the largest error of a low estimate of time."""
        return 1 / (1 - self._share) - 1


def random_jobs(
    seed: int, count: int, rate_per_s: float = 0.02, urgent: float = 0.2, factor: float = 3.0
) -> JobTable:
    """Return jobs of two kinds and three users, some with a deadline."""
    dice = np.random.default_rng(seed)
    arrival_s = np.cumsum(dice.exponential(1 / rate_per_s, count))
    work = dice.uniform(100, 2000, count)
    kind = dice.integers(0, 2, count)
    best_s = work / (SPEED[1] * np.array([4, 2])[kind] ** 0.95)
    return JobTable(
        kinds=(MALLEABLE, SMALL),
        users=("ada", "bob", "cyd"),
        arrival_s=arrival_s,
        kind=kind,
        user=dice.integers(0, 3, count),
        work=work,
        deadline_s=np.where(dice.random(count) < urgent, arrival_s + factor * best_s, np.inf),
        priority=np.zeros(count, dtype=np.int64),
    )
