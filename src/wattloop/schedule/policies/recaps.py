"""Power caps of running jobs: followed to where they cost least, or lowered to save a budget."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Recap
from wattloop.schedule.objectives import Objective
from wattloop.schedule.policies.headroom import Headroom, worst_w
from wattloop.schedule.queue import Queue
from wattloop.schedule.running import Running
from wattloop.schedule.view import ClusterView

__all__ = ["lowered", "recapped"]

Ints = NDArray[np.int64]


class _Caps(NamedTuple):
    """Options of a running job that differ by their cap only, highest cap first."""

    options: Ints
    cost: list[float]
    time_s: list[float]
    worst_w: list[float]


# What a cap costs does not change while a job runs: it is looked up, round after round.
_known: WeakKeyDictionary[Queue, dict[tuple[Objective, int, int], _Caps]] = WeakKeyDictionary()


def recapped(
    view: ClusterView, objective: Objective, headroom: Headroom, *, may_raise: bool = True
) -> list[Action]:
    """Every running job under the cap of least cost that keeps its deadline and the budget."""
    found: list[Action] = []
    for job, running in view.running.items():
        caps = _caps(view, objective, running)
        if len(caps.options) < 2:
            continue
        option = _best(view, caps, running, headroom, may_raise)
        if option != running.option:
            found.append(Recap(job, option))
    return found


def lowered(view: ClusterView, over_w: float) -> tuple[list[Action], float]:
    """Caps to lower until so many watts are surely saved; and what is left of them.

    The largest savings first, so that few jobs are touched.
    """
    steps = []
    for job, running in view.running.items():
        options = view.queue.options(job)
        estimates = view.queue.estimates_for(job, 1.0)
        worst = worst_w(view, options, estimates)
        for option in _alike(view, running).tolist():
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


def _best(
    view: ClusterView, caps: _Caps, running: Running, headroom: Headroom, may_raise: bool
) -> int:
    """The cap of least cost; the fastest allowed one where the deadline needs it."""
    now = int(np.flatnonzero(caps.options == running.option)[0])
    deadline_s = float(view.jobs.deadline_s[running.job])
    left_s = max(running.expected_end_s - view.now_s, 0.0) * (1 + view.time_error)
    best = now
    for place in sorted(range(len(caps.options)), key=caps.cost.__getitem__):
        end_s = view.now_s + left_s * caps.time_s[place] / caps.time_s[now]
        is_late = deadline_s >= view.now_s and end_s > deadline_s
        if is_late and place > now:  # slower, and too slow
            continue
        if place < now:
            added_w = max(caps.worst_w[place] - running.power_w, 0.0)
            if not may_raise or added_w > headroom.until_w(end_s):
                continue
            headroom.drawn_w += added_w
        best = place
        break
    return int(caps.options[best])


def _caps(view: ClusterView, objective: Objective, running: Running) -> _Caps:
    known = _known.setdefault(view.queue, {})
    key = (objective, running.job, int(view.queue.shape_of(running.job)[running.option]))
    if key not in known:
        alike = _alike(view, running)
        estimates = view.queue.estimates_for(running.job, 1.0)
        worst = worst_w(view, view.queue.options(running.job), estimates)
        cost = objective.cost(estimates)[alike]
        known[key] = _Caps(
            alike, cost.tolist(), estimates.time_s[alike].tolist(), worst[alike].tolist()
        )
    return known[key]


def _alike(view: ClusterView, running: Running) -> Ints:
    """Options of a running job with its GPUs and its batch, highest cap first."""
    options = view.queue.options(running.job)
    shapes = view.queue.shape_of(running.job)
    same = (shapes == shapes[running.option]) & (options.batch == options.batch[running.option])
    rows = np.flatnonzero(same)
    return rows[np.argsort(-options.cap_w[rows], kind="stable")]
