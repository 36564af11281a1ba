"""AuraChronos: deadlines met by preemption with the least waste; other jobs by energy and delay.

Algorithm 7 of the thesis is lost; this one follows its sections 5.2.3 and 5.4.3 (ADR 0034).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Preempt, Start, Wake
from wattloop.schedule.objectives import TIME, Estimates
from wattloop.schedule.policies.node_plan import NodePlan, Reservation, Victims
from wattloop.schedule.policies.packing import EDP_AGE_WEIGHT_PER_S
from wattloop.schedule.policies.time_value import full_batch
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView, RunningJob

LOOKS = 32
"""Most urgent jobs of a round that are planned for, those with least slack."""
REACTION_S = 2.0
"""Margin before the latest start, because policies are called in rounds."""


class AuraChronos(Zeus):
    """Urgent jobs by least slack = deadline - (now + min(T)); all others as Zeus does.

    An urgent job starts on the fastest free placement that meets its deadline. Without one, it
    waits while such a placement is expected to become free in time, and reserves it. Only if none
    is expected, jobs without a deadline are preempted, on the placement whose victims lose the
    least energy. No job is preempted more than `most_preemptions` times, so that every job ends. A
    job whose deadline can no longer be met preempts no other job and is scheduled like the others.

    Args:
        age_weight_per_s: W_age, as in Zeus.
        most_preemptions: most preemptions of a job.
        patience: share of its slack that an urgent job waits for the end of others. With 1 it waits
            until the last moment, and another urgent job that arrives then has no time left.
    """

    name = "aurachronos"
    needs_free_gpus = False

    def __init__(
        self,
        age_weight_per_s: float = EDP_AGE_WEIGHT_PER_S,
        most_preemptions: int = 2,
        patience: float = 0.3,
    ) -> None:
        super().__init__(age_weight_per_s)
        self.patience = patience
        self.most_preemptions = most_preemptions

    def decide(self, view: ClusterView) -> Sequence[Action]:
        urgent = self._urgent(view)
        if not urgent:
            return self.fill(view)
        starts = self._start_urgent(view, urgent)
        if starts:
            return starts  # called again with these running
        plan, expected, lost = NodePlan(view), list[ExpectedPlacement](), set[int]()
        for job in urgent[:LOOKS]:
            reserved = [each.reservation for each in expected]
            placement = self._expect_placement(view, plan, job, reserved)
            if placement is not None:
                expected.append(placement)
                continue
            # Jobs before it may wait for the same GPUs: if they start now, it may start as well.
            for other in (*(each.job for each in expected), job):
                # More waiting jobs only make it harder: one attempt per round is enough.
                if other not in lost and (actions := self._rescue(view, plan, other, expected)):
                    return actions
                lost.add(other)
        free = view.free.copy()
        for placement in expected:
            plan.hold(free, placement.reservation.shape)
        rest = self.fill(replace(view, free=free))
        # A job without a placement becomes an ordinary one when its deadline is lost. The first
        # such time is enough: the policy is called then and returns the next one.
        wake_s = min(
            _first_lost_s(view) + REACTION_S,
            *(placement.latest_s for placement in expected),
            math.inf,
        )
        return [*rest, Wake(wake_s)] if wake_s < math.inf else rest

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Start jobs without a deadline on GPUs that urgent jobs leave."""
        return super().decide(view) if view.free.total else ()

    def in_time(self, view: ClusterView, job: int, estimates: Estimates) -> list[int]:
        """Return the options that meet the deadline of a waiting job, fastest first."""
        return options_in_time(view, job, estimates, estimates.time_s)

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """Score as Zeus, but infinite for jobs whose deadline can still be met."""
        kept = waiting.deadline_s - view.now_s >= _at_best(view) * _fastest_s(view)
        found = super().rank(view, waiting, cost)
        return np.where(kept & np.isfinite(waiting.deadline_s), np.inf, found)

    def _urgent(self, view: ClusterView) -> list[int]:
        """Return the waiting jobs whose deadline can still be met, least slack first."""
        waiting, rows, slack_s = _slack(view)
        jobs = waiting.job[rows]
        order = np.lexsort((jobs, slack_s))
        found: list[int] = jobs[order].tolist()
        return found

    def _start_urgent(self, view: ClusterView, urgent: Sequence[int]) -> list[Action]:
        """Start urgent jobs that meet their deadline on free GPUs."""
        free, starts = view.free.copy(), list[Action]()
        if not free.total:
            return starts
        may = _may_meet_now(view)
        for job in urgent:
            if job not in may:
                continue
            options = view.queue.options(job)
            for option in self.in_time(view, job, view.queue.estimates(job)):
                shape = options.shape(option)
                if free.fits(shape):
                    free.take(shape)
                    starts.append(Start(job, option))
                    break
            if not free.total:
                break
        return starts

    def _expect_placement(
        self, view: ClusterView, plan: NodePlan, job: int, reserved: Sequence[Reservation]
    ) -> "ExpectedPlacement | None":
        """Return the placement that becomes free first, if that is soon enough."""
        options, estimates, found = view.queue.options(job), view.queue.estimates(job), None
        came_s = float(view.jobs.arrival_s[job])
        for option in self.in_time(view, job, estimates):
            latest_s = _latest_s(view, job, float(estimates.time_s[option]))
            shape = options.shape(option)
            at_s = plan.when_s(shape, reserved)
            if latest_s <= view.now_s or at_s - came_s > self.patience * (latest_s - came_s):
                continue
            if found is None or at_s < found.reservation.at_s:
                end_s = at_s + float(estimates.time_s[option])
                found = ExpectedPlacement(job, Reservation(shape, at_s, end_s), latest_s)
        return found

    def _rescue(
        self, view: ClusterView, plan: NodePlan, job: int, expected: Sequence["ExpectedPlacement"]
    ) -> list[Action]:
        """Preempt the jobs that waste least and start the job; nothing if that does not help.

        Placements that other urgent jobs wait for are left to them. Urgent jobs are preempted only
        if no other job can be, and only if they can still meet their deadline afterwards.
        """
        options, estimates = view.queue.options(job), view.queue.estimates(job)
        others = [placement for placement in expected if placement.job != job]
        for may_stop in (self._may_stop, self._may_stop_urgent):
            best: tuple[Victims, int] | None = None
            for option in self.in_time(view, job, estimates):
                shape = options.shape(option)
                end_s = view.now_s + float(estimates.time_s[option])
                taken = [Reservation(shape, view.now_s, end_s)]
                if any(
                    plan.when_s(each.reservation.shape, taken) > each.latest_s for each in others
                ):
                    continue
                allowed = partial(may_stop, view, end_s)
                found = plan.victims(shape, allowed)
                if found is not None and (best is None or found.lost_j < best[0].lost_j):
                    best = found, option
            if best is not None:
                return [*(Preempt(victim) for victim in best[0].jobs), Start(job, best[1])]
        return []

    def _may_stop(self, view: ClusterView, end_s: float, running: RunningJob) -> bool:
        """Allow jobs without a deadline that can be met, within the limit of preemptions."""
        del end_s
        deadline_s = float(view.jobs.deadline_s[running.job])
        is_free = math.isinf(deadline_s) or deadline_s <= view.now_s
        return is_free and view.preemptions[running.job] < self.most_preemptions

    def _may_stop_urgent(self, view: ClusterView, end_s: float, running: RunningJob) -> bool:
        """Allow also urgent jobs that have time to run again after the other one."""
        if view.preemptions[running.job] >= self.most_preemptions:
            return False
        again = view.queue.estimates_for(running.job, running.work_at_start).time_s
        return end_s + float(again.min()) <= float(view.jobs.deadline_s[running.job])


class ExpectedPlacement(NamedTuple):
    """Placement that is expected to become free in time, and the latest useful time."""

    job: int
    reservation: Reservation
    latest_s: float


def options_in_time(
    view: ClusterView, job: int, estimates: Estimates, cost: NDArray[np.float64]
) -> list[int]:
    """Return per shape the option of least cost that meets the deadline at the largest error.

    If there is none, return the fastest options that may meet it. Least cost first.
    """
    left_s = float(view.jobs.deadline_s[job]) - view.now_s - view.wake_s
    # Estimates differ more than batches do; a larger batch is never slower on a GPU.
    full = full_batch(estimates.options)
    safe = full & (estimates.time_s * (1 + view.time_error) <= left_s) & np.isfinite(cost)
    if not safe.any():
        cost = np.where(np.isfinite(cost), estimates.time_s, np.inf)
        left_s += view.wake_s  # its GPUs may be awake
        safe = full & (estimates.time_s * _at_best(view) <= left_s) & np.isfinite(cost)
        # With no time to spare, use the highest cap: a lower one never makes a job faster.
        caps_w, shapes = np.where(safe, estimates.options.cap_w, 0.0), view.queue.shape_of(job)
        highest_w = np.zeros(len(view.queue.shapes))
        np.maximum.at(highest_w, shapes, caps_w)
        safe &= caps_w >= highest_w[shapes]
    rows = np.flatnonzero(safe)
    rows = rows[np.argsort(cost[rows], kind="stable")]
    _, first = np.unique(view.queue.shape_of(job)[rows], return_index=True)
    return [int(option) for option in rows[np.sort(first)]]


def _latest_s(view: ClusterView, job: int, time_s: float) -> float:
    """Return the latest start of a job, with a margin for the error of the estimate."""
    return (
        float(view.jobs.deadline_s[job]) - time_s * (1 + view.time_error) - view.wake_s - REACTION_S
    )


def _slack(view: ClusterView) -> tuple[Columns, NDArray[np.int64], NDArray[np.float64]]:
    """Return waiting jobs, the rows of those whose deadline can still be met, and their slack."""
    waiting = view.queue.columns()
    rows = np.flatnonzero(waiting.deadline_s - view.now_s >= 0)
    rows = rows[np.isfinite(waiting.deadline_s[rows])]
    if not len(rows):
        return waiting, rows, np.empty(0)
    slack_s = waiting.deadline_s[rows] - view.now_s - _at_best(view) * _fastest_s(view)[rows]
    is_open = slack_s >= 0
    return waiting, rows[is_open], slack_s[is_open]


def _first_lost_s(view: ClusterView) -> float:
    """Return when the next deadline can no longer be met by any placement."""
    _, _, slack_s = _slack(view)
    return view.now_s + float(slack_s.min(initial=math.inf))


def _may_meet_now(view: ClusterView) -> set[int]:
    """Return the waiting jobs that may meet their deadline on free GPUs."""
    times, waiting = view.queue.table(TIME), view.queue.columns()
    fits = np.array([view.free.fits(shape) for shape in view.queue.shapes])
    free_s = times.of_jobs(times.costs[fits].min(axis=0, initial=np.inf))
    may = free_s * _at_best(view) <= waiting.deadline_s - view.now_s
    return set(waiting.job[may & np.isfinite(waiting.deadline_s)].tolist())


def _fastest_s(view: ClusterView) -> NDArray[np.float64]:
    """Return the run time of every waiting job on its fastest placement, free or not."""
    times = view.queue.table(TIME)
    return times.of_jobs(times.costs.min(axis=0))


def _at_best(view: ClusterView) -> float:
    """Return the least true value, as a share of the estimate.

    If estimates are off by up to a tenth of the true value, the true value exceeds them by up to
    1/0.9 - 1 and falls short by up to 1 - 1/1.1.
    """
    error = view.time_error
    return (1 + error) / (1 + 2 * error)
