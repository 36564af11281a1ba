"""Charon: least energy-delay product first, never above the power budget (thesis algorithm 8)."""

import math
from collections.abc import Sequence

import numpy as np

from wattloop.schedule.actions import Action, Preempt, Wake
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.policies.pollux import Pollux
from wattloop.schedule.policies.power_budget import Headroom, pack
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView, RunningJob

REFERENCE_LOOKS = 8
"""Jobs that a reference looks at in a round: more cost as much time as the policy itself."""


class Charon(Zeus):
    """Zeus's order; a job starts on its best placement among those within the budget.

    The algorithm leaves three cases open. (a) Estimates may be too low: a start counts with its
    largest power (see `power_budget`), a running job with its measured power. (b) A placement above
    the budget does not exist: the job takes a smaller one instead of waiting for power that may
    never be available (8 H100s alone are above 4,500 W). (c) Budgets change over the day: a start
    must keep the budgets until its end. A job that is too long for every interval between two
    decreases runs in parts, if it keeps some of its work. Before a budget falls below the current
    power, jobs are preempted, those with the least loss first.

    Args:
        age_weight_per_s: W_age, as in Zeus.
    """

    name = "charon"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> Sequence[Action]:
        return _within_budget(self, view)


class BudgetedPollux(Pollux):
    """Pollux that keeps a power budget as Charon does; without a budget it is Pollux.

    It is the schedule with which Helios compares its own, so that what the budget costs in time is
    in both. Under a budget only the first `REFERENCE_LOOKS` jobs of a round may start.
    """

    needs_free_gpus = False

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        scores = super().rank(view, waiting, cost)
        if len(scores) <= REFERENCE_LOOKS or math.isinf(min(view.budget_w.values)):
            return scores
        first = np.argsort(scores, kind="stable")[:REFERENCE_LOOKS]
        kept = np.full_like(scores, np.inf)
        kept[first] = scores[first]
        return kept

    def decide(self, view: ClusterView) -> Sequence[Action]:
        if math.isinf(min(view.budget_w.values)):
            return super().decide(view)
        return _within_budget(self, view)


def _within_budget(policy: PackingPolicy, view: ClusterView) -> Sequence[Action]:
    """Start jobs in the policy's order on placements that keep the budget."""
    # The budgets until the next round: nothing can be stopped before that.
    over_w = view.power_w - view.budget_w.least(view.now_s, view.now_s + look_s(view))
    if over_w > 0:
        return preempt_for_budget(view, over_w)
    starts = pack(view, policy.objective, policy.rank, Headroom(view))[0]
    wake_s = view.budget_w.next_change_s(view.now_s) - look_s(view)
    if view.round_s and view.now_s < wake_s < math.inf and (starts or view.running):
        return [*starts, Wake(wake_s)]
    return starts


def preempt_for_budget(view: ClusterView, over_w: float) -> list[Action]:
    """Preempt jobs until this power is saved, those with the least loss per watt first."""
    saved_w = {job: _above_idle_w(view, each) for job, each in view.running.items()}
    losses = [
        (view.loss(running).energy_j / saved_w[job], job)
        for job, running in view.running.items()
        if saved_w[job] > 0
    ]
    found: list[Action] = []
    for _, job in sorted(losses):
        if over_w <= 0:
            break
        found.append(Preempt(job))
        over_w -= saved_w[job]
    return found


def _above_idle_w(view: ClusterView, running: RunningJob) -> float:
    """Return the power that stopping a job saves; estimated for a job that does not work yet."""
    if running.is_done:
        return 0.0
    power_w = running.power_w
    if view.now_s < running.started_s + view.start_latency_s:
        estimated_w = view.queue.estimates_for(running.job, 1.0).power_w
        power_w = max(power_w, float(estimated_w[running.option]))
    return power_w - running.gpus * view.cluster.types[running.type_index].idle_w


def look_s(view: ClusterView) -> float:
    """Return the look-ahead at a budget: until just before the next call of the policy."""
    return view.round_s * (1 - 1e-9)
