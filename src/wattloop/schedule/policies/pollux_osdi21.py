"""Pollux as published: GPUs and batch of all jobs by goodput (Qiao et al., OSDI 2021).

    GOODPUT_j(a, m) = throughput(a, m) x EFFICIENCY_j(M),  M = samples of a step on all GPUs
    EFFICIENCY_j(M) = (phi + M_0) / (phi + M)
    SPEEDUP_j(a)    = max_m GOODPUT_j(a, m) / max_m GOODPUT_j(a_fair, m)
    FITNESS_p       = (1/J sum_j (SPEEDUP_j x REALLOC_j)^p)^(1/p),  p = -1
    REALLOC_j       = (T_j - R_j delta) / (T_j + delta) where the allocation changes, else 1

phi is the gradient noise scale, M_0 the smallest batch, T_j the age of a job, R_j the number of its
changes, delta the time of one. Three things differ from the paper. Allocations are found by adding
GPUs where the fitness gains most per GPU, instead of by a genetic algorithm. GPU types, which the
paper does not have, are pools: a job has GPUs of one of them. Jobs of the simulator have a fixed
number of samples, so phi is infinite (efficiency 1) unless it is given.
"""

import heapq
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Resize, Start, Wake
from wattloop.schedule.estimates.oracle import Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.view import ClusterView

UNSERVED = 0.01
"""Speedup of a job without GPUs, above 0 so that the fitness is finite."""
MOST_JOBS = 64
"""Most waiting jobs of a round, those that arrived first."""
LEAST_GAIN = 0.01
"""Least gain for which running jobs change: estimates are not exact."""
WINDOW = 0.25
"""Share of each interval, at its begin, in which changes are made: one at a time in rounds."""


class PolluxOsdi21(Policy):
    """FITNESS = harmonic mean of SPEEDUP over all jobs, of goodput against a fair share.

    Running jobs change GPUs and batch where the engine lets jobs be resized; elsewhere they stay
    and only waiting jobs are placed.

    Args:
        interval_s: time between two allocations.
        noise_scale: phi in samples; 0 for infinite.
    """

    name = "pollux-osdi21"
    needs_free_gpus = False

    def __init__(self, interval_s: float = 60.0, noise_scale: float = 0.0) -> None:
        if not 0 < interval_s < math.inf:
            raise ConfigError(f"interval_s is {interval_s:g}; give seconds")
        if not 0 <= noise_scale < math.inf:
            raise ConfigError(f"noise_scale is {noise_scale:g}; give samples, or 0")
        self.interval_s, self.noise_scale = interval_s, noise_scale

    def decide(self, view: ClusterView) -> Sequence[Action]:
        can_resize = view.preemption.resize_s is not None
        if not len(view.queue) and not (can_resize and view.running):
            return ()
        begin_s = self.interval_s * math.floor(view.now_s / self.interval_s + 1e-9)
        next_s = begin_s + self.interval_s
        wake: list[Action] = [Wake(next_s)] if next_s > view.now_s else []
        if view.now_s - begin_s > WINDOW * self.interval_s:
            return wake
        if not can_resize and not view.free.total:
            return wake
        return [*self._changes(view, can_resize), *wake]

    def _changes(self, view: ClusterView, can_resize: bool) -> list[Action]:
        """Return starts and at most one resize: fewer GPUs first, which make room for others."""
        begin_s = self.interval_s * math.floor(view.now_s / self.interval_s + 1e-9)
        # a job changes once per interval
        moving = [job for job, each in view.running.items()
                  if can_resize and not each.is_done and each.started_s < begin_s]  # fmt: skip
        # without resizes no more jobs start than GPUs are free
        most = MOST_JOBS if moving else min(MOST_JOBS, max(2 * view.free.total, 16))
        kept, kept_loss = self._allocation(view, [], most)
        target, loss = self._allocation(view, moving, most) if moving else (kept, kept_loss)
        if loss > (1 - LEAST_GAIN) * (kept_loss + self._loss(view, moving)):
            target = kept
        plan, free, found = NodePlan(view), view.free.copy(), list[Action]()
        grows: list[Action] = []
        for job, option in target.items():
            if job not in view.running:
                continue
            running, options = view.running[job], view.queue.options(job)
            if option == running.option:
                continue
            shape = options.shape(option)
            if plan.fits_without([job], shape):
                if shape[1] < running.gpus:
                    return [Resize(job, option)]
                grows.append(Resize(job, option))
        for job, option in target.items():
            if job not in view.queue:
                continue
            shape = view.queue.options(job).shape(option)
            choices = [(0.0, option, shape)]
            if not free.fits(shape):  # not in one node: the best that is
                steps = self._steps(view, job, self._fair(view))
                choices = [each for each in steps if free.fits(each[2]) and each[2][1] <= shape[1]]
            if choices:
                _, best, shape = max(choices)
                free.take(shape)
                found.append(Start(job, best))
        return found or grows[:1]

    def _loss(self, view: ClusterView, jobs: Sequence[int]) -> float:
        """Return the sum of 1/SPEEDUP of running jobs as they are."""
        fair, found = self._fair(view), 0.0
        for job in jobs:
            now = view.running[job].option
            found += sum(1 / each[0] for each in self._steps(view, job, fair) if each[1] == now)
        return found

    def _fair(self, view: ClusterView) -> float:
        return max(view.cluster.gpus / max(len(view.queue) + len(view.running), 1), 1.0)

    def _allocation(
        self, view: ClusterView, moving: Sequence[int], most: int
    ) -> tuple[dict[int, int], float]:
        """Return job -> option of greatest fitness, by greedy steps, and the sum of 1/SPEEDUP."""
        room = list(view.free.by_type)
        for job in moving:
            room[view.running[job].type_index] += view.running[job].gpus
        waiting = list(islice(view.queue.by_arrival(), most))
        fair = self._fair(view)
        steps, alike = {}, dict[int, list[tuple[float, int, Shape]]]()
        for job in (*moving, *waiting):
            kind = view.queue.kind_of[job]
            if job in view.running or not view.queue.is_exact:
                steps[job] = self._steps(view, job, fair)
                continue
            if kind not in alike:
                alike[kind] = self._steps(view, job, fair)
            steps[job] = alike[kind]
        had = dict.fromkeys(steps, (UNSERVED, -1))
        heap = [(-gain, n, job, -1, step) for n, job in enumerate(steps)
                for gain, step in self._gains(steps[job], UNSERVED, (-1, 0, False))
                if step[2][1] <= room[step[2][0]]]  # fmt: skip
        heapq.heapify(heap)
        chosen: dict[int, tuple[int, Shape]] = {}
        while heap and any(room):
            _, order, job, since, (speedup, option, shape) = heapq.heappop(heap)
            if had[job][1] != since:
                continue
            old = chosen.get(job, (-1, (-1, 0, False)))[1]
            needed = shape[1] - (old[1] if old[0] == shape[0] else 0)
            if room[shape[0]] < needed:
                continue
            if old[0] >= 0:
                room[old[0]] += old[1]
            room[shape[0]] -= shape[1]
            had[job], chosen[job] = (speedup, option), (option, shape)
            for gain, step in self._gains(steps[job], speedup, shape):
                heapq.heappush(heap, (-gain, order, job, option, step))
        loss = sum(1 / speedup for speedup, _ in had.values())
        return {job: option for job, (option, _) in chosen.items()}, loss

    def _gains(
        self, steps: Sequence[tuple[float, int, Shape]], speedup: float, now: Shape
    ) -> list[tuple[float, tuple[float, int, Shape]]]:
        """Return better placements with the gain of sum(-1/SPEEDUP) per additional GPU."""
        return [
            ((1 / speedup - 1 / step[0]) / (step[2][1] - now[1]), step)
            for step in steps
            if step[0] > speedup and step[2][1] > now[1]
        ]

    def _steps(self, view: ClusterView, job: int, fair: float) -> list[tuple[float, int, Shape]]:
        """Return (speedup, option, shape) of a job: the best batch of each shape in one node."""
        options = view.queue.options(job)
        goodput = self._goodput(view, job)
        running = view.running.get(job)
        found: dict[Shape, tuple[float, int, Shape]] = {}
        of_fair = np.zeros(len(view.cluster.types))
        fair_gpus = max(fair, float(options.gpus.min(initial=1)))
        empty = FreeGpus.of_all(view.cluster)
        possible = {shape: empty.fits(shape) for shape in set(options.shapes())}
        for option, shape in enumerate(options.shapes()):
            if not possible[shape]:
                continue
            value = float(goodput[option])
            if shape[1] <= fair_gpus:
                of_fair[shape[0]] = max(of_fair[shape[0]], value)
            if running is not None and option == running.option:
                value *= 1 + 1e-9  # of equals the present one
            if shape not in found or value > found[shape][0]:
                found[shape] = (value, option, shape)
        of_types = np.array(view.cluster.gpus_by_type, dtype=float) * (of_fair > 0)
        base = float(of_fair @ of_types) / max(float(of_types.sum()), 1.0)
        delay = self._realloc(view, job) if running is not None else 1.0
        return [
            (max(value / max(base, 1e-300), UNSERVED * 1.001)
             * (1.0 if running is None or option == running.option else delay), option, shape)
            for value, option, shape in found.values() if value > 0
        ]  # fmt: skip

    def _goodput(self, view: ClusterView, job: int) -> NDArray[np.float64]:
        estimates = view.queue.estimates_for(job, 1.0)
        samples = estimates.options.samples
        efficiency: NDArray[np.float64] = np.ones(len(samples))
        if self.noise_scale:
            efficiency = (self.noise_scale + samples.min()) / (self.noise_scale + samples)
        return efficiency / np.maximum(estimates.time_s, 1e-300)

    def _realloc(self, view: ClusterView, job: int) -> float:
        """Return REALLOC_j."""
        delta_s = view.preemption.resize_s or 0.0
        age_s = view.now_s - float(view.jobs.arrival_s[job])
        changes = view.resizes[job] if view.resizes else 0
        return max(age_s - changes * delta_s, 0.0) / (age_s + delta_s) if age_s > 0 else 0.0
