"""Caps and GPUs of running jobs: moved to the least cost, or lowered to keep a budget."""

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Recap, Resize
from wattloop.schedule.objectives import PlacementObjective
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.policies.power_budget import Headroom, worst_w
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import ClusterView, RunningJob

Ints = NDArray[np.int64]


class _Caps(NamedTuple):
    """Options of a running job that differ only by their cap, highest cap first.

    Attributes:
        by_cost: indices into `options`, least cost first.
        time_s: time of one sample.
        worst_w: most power of each option.
    """

    options: list[int]
    by_cost: list[int]
    time_s: list[float]
    worst_w: list[float]
    best: int


# The costs of caps do not change while a job runs, so they are cached.
_Known = dict[tuple[int, int], _Caps]
_known: WeakKeyDictionary[JobQueue, dict[PlacementObjective, _Known]] = WeakKeyDictionary()


class Urgent(NamedTuple):
    """Running jobs for which time counts more than for others, and their objective."""

    is_urgent: Callable[[RunningJob], bool]
    objective: PlacementObjective


def choose_caps(
    view: ClusterView,
    objective: PlacementObjective,
    headroom: Headroom,
    *,
    urgent: Urgent | None = None,
    may_raise: bool = True,
) -> list[Action]:
    """Move every running job to the cap of least cost that keeps its deadline and the budget.

    Caps of `urgent` jobs are chosen by their own objective.
    """
    queue, found = view.queue, list[Action]()
    known_by = _known.setdefault(queue, {})
    known_usual = known_by.setdefault(objective, {})
    # Jobs of a kind are equal if estimates are exact.
    owner = queue.kind_of if queue.is_exact else range(len(view.jobs))
    for job, running in view.running.items():
        now = running.option
        by, known = objective, known_usual
        if urgent is not None and urgent.is_urgent(running):
            by = urgent.objective
            known = known_by.setdefault(by, {})
        caps = known.get((owner[job], now))
        if caps is None:
            caps = known[owner[job], now] = _caps(view, by, running)
        if caps.best == now or running.is_done:
            continue
        option = _best(view, caps, running, headroom, may_raise)
        if option != running.option:
            found.append(Recap(job, option))
    return found


def lower_caps(view: ClusterView, over_w: float) -> tuple[list[Action], float]:
    """Lower caps until this power is surely saved; return also the power that is left to save.

    The largest savings come first, so that few jobs are changed.
    """
    steps = []
    for job, running in view.running.items():
        if running.is_done:
            continue
        options = view.queue.options(job)
        estimates = view.queue.estimates_for(job, 1.0)
        worst = worst_w(view, options, estimates)
        for option in _same_shape(view, running).tolist():
            saved_w = running.power_w - float(worst[option])
            if options.cap_w[option] < options.cap_w[running.option] and saved_w > 0:
                steps.append((saved_w, job, option))
    found: dict[int, tuple[float, int]] = {}
    left_w = over_w
    for saved_w, job, option in sorted(steps, reverse=True):
        if left_w <= 0:
            break
        if job not in found:
            found[job] = saved_w, option
            left_w -= saved_w
    return [Recap(job, option) for job, (_, option) in found.items()], left_w


LEAST_GAIN = 0.05
"""Share of its remaining cost that a job must save by a resize: estimates are not exact."""


def choose_sizes(
    view: ClusterView, objective: PlacementObjective, headroom: Headroom
) -> list[Action]:
    """Move the running job that gains most to other GPUs, if its gain exceeds the cost of moving.

        cost there x (1 + resize time / time there) < (1 - LEAST_GAIN) x cost here

    Costs are those of the remaining work. One job moves at a time: the policy is asked again.
    """
    resize_s, plan = view.preemption.resize_s, NodePlan(view)
    if resize_s is None or not view.free.total:
        return []
    best: tuple[float, Resize] | None = None
    for job, running in view.running.items():
        if running.is_done:
            continue
        unit = view.queue.estimates_for(job, 1.0)
        left_s = running.expected_end_s - view.now_s
        work = left_s / max(float(unit.time_s[running.option]), 1e-12)
        if left_s <= resize_s or work > running.work_at_start:
            continue
        cost, time_s = objective.cost(unit) * work, unit.time_s * work
        same = view.queue.shape_of(job) == view.queue.shape_of(job)[running.option]
        here = float(cost[same].min())
        there = cost * (1 + resize_s / np.maximum(time_s, 1e-9))
        wanted = np.flatnonzero((there < (1 - LEAST_GAIN) * here) & ~same)
        for option in wanted[np.argsort(there[wanted], kind="stable")].tolist():
            gain = here - float(there[option])
            if best is not None and gain <= best[0]:
                break
            shape = view.queue.options(job).shape(option)
            if not plan.fits_without([job], shape):
                continue
            if _keeps(view, running, option, resize_s + float(time_s[option]), headroom):
                best = gain, Resize(job, option)
                break
    return [] if best is None else [best[1]]


def _keeps(
    view: ClusterView, running: RunningJob, option: int, lasts_s: float, headroom: Headroom
) -> bool:
    """Return True if a running job keeps its deadline and the budget on another placement."""
    end_s = view.now_s + lasts_s * (1 + view.time_error)
    if view.now_s <= float(view.jobs.deadline_s[running.job]) < end_s:
        return False
    estimates = view.queue.estimates_for(running.job, 1.0)
    worst = float(worst_w(view, view.queue.options(running.job), estimates)[option])
    idle_w = [each.idle_w for each in view.cluster.types]
    options = view.queue.options(running.job)
    added_w = worst - int(options.gpus[option]) * idle_w[int(options.type_index[option])]
    left_w = max(running.power_w - running.gpus * idle_w[running.type_index], 0.0)
    return added_w - left_w <= headroom.until_w(end_s)


def _best(
    view: ClusterView, caps: _Caps, running: RunningJob, headroom: Headroom, may_raise: bool
) -> int:
    """Return the cap of least cost that keeps the deadline and the budget."""
    now = caps.options.index(running.option)
    deadline_s = float(view.jobs.deadline_s[running.job])
    # The elapsed time says nothing about the error, which may all be in the remaining time.
    end_s = running.expected_end_s
    left_s = max(end_s + (end_s - running.started_s) * view.time_error - view.now_s, 0.0)
    for place in caps.by_cost:
        if place == now:
            break
        end_s = view.now_s + left_s * caps.time_s[place] / caps.time_s[now]
        if place > now:  # slower
            if view.now_s <= deadline_s < end_s:
                continue
            # If the budget will fall below the current power, jobs progress as far as possible.
            if headroom.until_w(end_s) < 0:
                continue
        else:
            added_w = max(caps.worst_w[place] - running.power_w, 0.0)
            if not may_raise or added_w > headroom.until_w(end_s):
                continue
            headroom.drawn_w += added_w
        return caps.options[place]
    return running.option


def _caps(view: ClusterView, objective: PlacementObjective, running: RunningJob) -> _Caps:
    alike = _same_shape(view, running)
    estimates = view.queue.estimates_for(running.job, 1.0)
    worst = worst_w(view, view.queue.options(running.job), estimates)
    by_cost = np.argsort(objective.cost(estimates)[alike], kind="stable")
    return _Caps(
        alike.tolist(),
        by_cost.tolist(),
        estimates.time_s[alike].tolist(),
        worst[alike].tolist(),
        int(alike[by_cost[0]]),
    )


def _same_shape(view: ClusterView, running: RunningJob) -> Ints:
    """Return the options of a running job with its GPUs and batch, highest cap first."""
    options = view.queue.options(running.job)
    shapes = view.queue.shape_of(running.job)
    same = (shapes == shapes[running.option]) & (options.batch == options.batch[running.option])
    rows = np.flatnonzero(same)
    return rows[np.argsort(-options.cap_w[rows], kind="stable")]
