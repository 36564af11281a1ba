"""Charon: least energy-delay product first, never above the power budget (thesis algorithm 8)."""

import math
from collections.abc import Sequence

from wattloop.schedule.actions import Action, Preempt, Wake
from wattloop.schedule.policies.power_budget import Headroom, packed
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.view import ClusterView, RunningJob


class Charon(Zeus):
    """Zeus's order; a job starts on its best placement among those that keep the budget.

    Three things the algorithm leaves open. (a) Estimates may be too low: a start counts at its
    worst (see `headroom`), what runs as measured. (b) A placement that would break the budget is
    no placement: the job takes a smaller one instead of waiting for power that it may never get
    (8 H100s alone are above 4,500 W). (c) Budgets change over the day: a start has to keep those
    to come until its end, except for a job that is too long for all times between two falls: it
    runs in parts where it keeps some of its work. Where a budget is about to fall below what runs,
    jobs are stopped, those first that lose least.

    Args:
        age_weight_per_s: W_age, as in Zeus.
    """

    name = "charon"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Stop what breaks the budget, else start what keeps it."""
        # The budgets until the next round: nothing can be stopped before that.
        over_w = view.power_w - view.budget_w.least(view.now_s, view.now_s + look_s(view))
        if over_w > 0:
            return stopped_for_budget(view, over_w)
        starts = packed(view, self.objective, self.rank, Headroom(view))[0]
        wake_s = view.budget_w.next_change_s(view.now_s) - look_s(view)
        if view.round_s and view.now_s < wake_s < math.inf and (starts or view.running):
            return [*starts, Wake(wake_s)]
        return starts


def stopped_for_budget(view: ClusterView, over_w: float) -> list[Action]:
    """Jobs to stop until so many watts are saved: those first that lose least per watt."""
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
    """What stopping a job saves; a job that does not work yet as estimated."""
    if running.is_done:
        return 0.0
    power_w = running.power_w
    if view.now_s < running.started_s + view.start_latency_s:
        estimated_w = view.queue.estimates_for(running.job, 1.0).power_w
        power_w = max(power_w, float(estimated_w[running.option]))
    return power_w - running.gpus * view.cluster.types[running.type_index].idle_w


def look_s(view: ClusterView) -> float:
    """How far to look ahead at a budget: until just before the policy can be asked again."""
    return view.round_s * (1 - 1e-9)
