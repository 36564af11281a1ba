"""The policy of Zeus (NSDI 2023), re-implemented from the paper as a baseline.

Batch sizes by exploration with pruning, then Thompson sampling with Gaussian arms; power limits by
just-in-time profiling: every limit for a few seconds at the beginning of the first training with a
batch size. The cost is energy (eta = 1). A training is stopped when it has cost `BETA` times the
least cost of any so far.
"""

import math
from collections.abc import Iterator
from statistics import fmean, pvariance

import numpy as np

from wattloop.tune.progress import Progress, Status
from wattloop.tune.replay.bench import BATCH, ReplayBench
from wattloop.tune.replay.policy import Served
from wattloop.tune.replay.workload import Workload
from wattloop.tune.segment import CAP_LEVER, Segment, Until

__all__ = ["ZeusPolicy"]

BETA = 2.0
PROFILE_S = 5.0
ROUNDS = 2
TRIES = 40


class ZeusPolicy:
    """Serves a recurring job as Zeus does.

    Args:
        workload: its batch sizes and default.
        seed: of the sampling.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self._draw = np.random.default_rng([seed, 2023])
        self._caps: dict[int, float] = {}
        self._costs: dict[int, list[float]] = {}
        self._worked = True
        """Whether the training before reached the target; steers the exploration."""
        self._arms: list[int] = []
        self._exploration: Iterator[int] | None = self._explore()

    def serve(self, bench: ReplayBench) -> Served:
        """One training after the other, as the policy says, until one reaches the target."""
        for attempt in range(TRIES):
            size = self._next()
            label = f"run {attempt}"
            self._worked, told_j = self._train(bench, size, label)
            if self._worked:
                self._costs.setdefault(size, []).append(told_j)
                return Served(bench.total_j, bench.spent_j[label], *bench.trained[label])
        return Served(bench.total_j, failures=1)

    # -- batch sizes -----------------------------------------------------------------------

    def _next(self) -> int:
        if self._exploration is not None:
            size = next(self._exploration, None)
            if size is not None:
                return size
            self._exploration = None
        return min(self._arms, key=self._sampled_cost)

    def _explore(self) -> Iterator[int]:
        """Down from the default until one fails, then up; again from the best of the good ones."""
        sizes, start = list(self.workload.batch_sizes), self.workload.default
        for _ in range(ROUNDS):
            good: list[int] = []
            yield start
            if self._worked:
                good.append(start)
            for side in (
                [s for s in reversed(sizes) if s < start],
                [s for s in sizes if s > start],
            ):
                for size in side:
                    yield size
                    if not self._worked:
                        break
                    good.append(size)
            sizes = sorted(good) or [start]
            start = min(sizes, key=lambda s: fmean(self._costs.get(s, [math.inf])))
        self._arms = sizes

    def _sampled_cost(self, size: int) -> float:
        """Thompson: a draw from the belief about the mean cost of an arm, flat before anything."""
        costs = self._costs.get(size, [])
        if not costs:
            return -math.inf
        deviation = math.sqrt(pvariance(costs) / len(costs))
        return float(self._draw.normal(fmean(costs), deviation))

    # -- one training ----------------------------------------------------------------------

    def _train(self, bench: ReplayBench, size: int, label: str) -> tuple[bool, float]:
        """Whether it reached the target, and its energy as the meter says."""
        least_j = min((min(costs) for costs in self._costs.values()), default=math.inf)
        told_j = 0.0
        while True:
            until = Until()
            if size not in self._caps:
                done, told_j = self._profile(bench, size, label)
                if done is not None:
                    return done, told_j
            if math.isfinite(least_j):
                until = Until(energy_j=max(BETA * least_j - told_j, 0.0))
            progress = self._segment(bench, size, label, self._caps[size], until)
            told_j += progress.energy_j or 0.0
            if progress.status is not Status.PAUSED:
                return progress.status is Status.REACHED, told_j
            if told_j >= BETA * least_j:
                return False, told_j

    def _profile(self, bench: ReplayBench, size: int, label: str) -> tuple[bool | None, float]:
        """Every limit for some seconds; the training may end meanwhile."""
        told_j, per_epoch = 0.0, {}
        before = 0.0
        for cap_w in reversed(self.workload.curves[size].caps_w):
            until = Until(time_s=PROFILE_S, anywhere=True)
            progress = self._segment(bench, size, label, cap_w, until)
            told_j += progress.energy_j or 0.0
            if progress.status is not Status.PAUSED:
                return progress.status is Status.REACHED, told_j
            per_epoch[cap_w] = (progress.energy_j or 0.0) / (progress.epochs - before)
            before = progress.epochs
        self._caps[size] = min(per_epoch, key=lambda cap_w: per_epoch[cap_w])
        return None, told_j

    def _segment(
        self, bench: ReplayBench, size: int, label: str, cap_w: float, until: Until
    ) -> Progress:
        return bench.run(
            Segment(
                key=label,
                candidate=label,
                parameters={BATCH: size},
                levers={CAP_LEVER: cap_w},
                until=until,
            )
        )
