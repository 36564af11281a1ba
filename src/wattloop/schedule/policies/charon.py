"""Charon: least energy-delay product first, never above the power budget (thesis algorithm 8)."""

from collections.abc import Sequence

from wattloop.schedule.actions import Action, Preempt
from wattloop.schedule.policies.budget_packing import packed
from wattloop.schedule.policies.headroom import Headroom
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.view import ClusterView

__all__ = ["Charon", "stopped_for_budget"]


class Charon(Zeus):
    """Zeus's order; a job starts on its best placement among those that keep the budget.

    Three things the algorithm leaves open. (a) Estimates may be too low: a start counts at its
    worst (see `headroom`), what runs as measured. (b) A placement that would break the budget is
    no placement: the job takes a smaller one instead of waiting for power that it may never get
    (8 H100s alone are above 4,500 W). (c) Budgets change over the day: a start has to keep those
    to come until its end. Should a budget still be below what runs, because a job stayed longer
    than anybody believed, jobs are stopped, those first that lose least.

    Args:
        age_weight_per_s: W_age, as in Zeus.
    """

    name = "charon"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Stop what breaks the budget, else start what keeps it."""
        over_w = view.power_w - view.budget_w.at(view.now_s)
        if over_w > 0:
            return stopped_for_budget(view, over_w)
        return packed(view, self.objective, self.rank, Headroom(view))[0]


def stopped_for_budget(view: ClusterView, over_w: float) -> list[Action]:
    """Jobs to stop until so many watts are saved: those first that lose least per watt."""
    idle_w = [each.idle_w for each in view.cluster.types]
    saved_w = {job: r.power_w - r.gpus * idle_w[r.type_index] for job, r in view.running.items()}
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
