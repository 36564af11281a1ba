"""Helios: least energy for the time it costs, over GPUs, type, batch and power cap (ADR 0033)."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Preempt, Start, Wake
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.policies.aurachronos import AuraChronos, Hope, options_in_time
from wattloop.schedule.policies.charon import look_s, stopped_for_budget
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.policies.packing import share, weight
from wattloop.schedule.policies.patience import Patience
from wattloop.schedule.policies.power_budget import Headroom, packed
from wattloop.schedule.policies.recaps import Urgent, lowered, recapped
from wattloop.schedule.policies.time_value import (
    gpu_worth,
    joule_price,
    time_value,
    waiting_level,
)
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView, RunningJob

FAST = 1.0
"""Value of time with which jobs take as long as under policies that do not know of energy."""
SCARCE = 0.1
"""Value of time, of the usual one, while jobs wait for power: joules are then throughput."""
URGENT, RELAXED = 4.0, 3.0
"""Value of time of jobs with less than 3 times their run time to the deadline.

They leave their GPUs soon to the next deadline, and have time to begin again if that comes first.
"""
FIT_WEIGHT, LEAST_FIT = 4, 0.5
"""Exponent of a job's cost here over that elsewhere in its score, and the least it is taken for."""
Floats = NDArray[np.float64]


class Helios(AuraChronos):
    """cost = (p (P - P_idle) + v P_ref (w^(1/2) + c w n^(3/4) k / K)) T.

    score = cost x (cost / cost on other GPU types)^4 x fairness / (1 + W_age age).

    Every job has the placement and the cap of least cost (see `time_value`), chosen among those
    that keep the power budget even if the estimate is off; caps of running jobs follow the queue,
    the price of electricity and the budget. GPUs go first to jobs that would lose most on those of
    another type; who gains more by them than the wait costs waits for them (see `patience`).
    Deadlines are kept as in AuraChronos, on the placement of least cost that keeps them; where they
    are tight, at a value of time of at least 4. Users that had more than others wait longer.

    Args:
        time_value: v, what a job's time is worth: 0 saves most energy, 1 is about as fast as
            policies that know no energy.
        max_delay: a promise instead of `time_value`: how much longer a job may take than at full
            power, as a share (0.1) or `10%`. Placements are then chosen for speed, caps for energy
            within the promise, and while jobs wait for GPUs all run at full power.
        age_weight_per_s: W_age.
        fairness: exponent of a user's share of GPU seconds over the mean share; 0 for none.
        most_preemptions, patience: as in AuraChronos.
    """

    name = "helios"
    sets_caps = True

    def __init__(
        self,
        time_value: float = 0.37,
        age_weight_per_s: float = 1 / 1000,
        fairness: float = 0.25,
        most_preemptions: int = 2,
        patience: float = 0.5,
        max_delay: float | str | None = None,
    ) -> None:
        super().__init__(age_weight_per_s, most_preemptions, patience)
        self.max_delay = None if max_delay is None else share("max_delay", max_delay)
        if self.max_delay is not None:
            time_value = FAST
        self.time_value = weight("time_value", time_value)
        self.fairness = weight("fairness", fairness)
        self._worth: tuple[Cluster, tuple[float, ...]] | None = None
        self._rescue_deadline_s = math.inf

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """The budget first, then deadlines, then the rest, then caps."""
        over_w = view.power_w - view.budget_w.least(view.now_s, view.now_s + look_s(view))
        if over_w > 0:
            actions, left_w = lowered(view, over_w)
            return actions if left_w <= 0 else stopped_for_budget(view, over_w)
        self._headroom = Headroom(view)
        actions = _within_budget(view, super().decide(view))
        change_s = view.budget_w.next_change_s(view.now_s) - look_s(view)
        if view.now_s < change_s < math.inf and view.running:
            actions.append(Wake(change_s))
        return actions

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Start what is worth it; else let the caps of what runs follow the queue."""
        headroom, waiting = Headroom(view), len(view.queue)
        objective = self._objective(view, waiting - 1)
        patience = Patience(view, objective, self.time_value, headroom)
        starts, is_short = packed(view, objective, patience.after(self.rank), headroom)
        if starts:
            return [*starts, *patience.wakes]
        value = self.time_value * (SCARCE if is_short else 1.0)
        # While jobs wait beside free GPUs, power is what they wait for: nobody takes more of it.
        has_budget = math.isfinite(view.budget_w.at(view.now_s))
        may_raise = not (has_budget and waiting and view.free.total)
        objective = self._objective(view, waiting, value)
        urgent = Urgent(partial(_runs_tight, view), self._urgent_objective(view))
        recaps = recapped(view, objective, headroom, urgent=urgent, may_raise=may_raise)
        return [*recaps, *patience.wakes]

    def in_time(self, view: ClusterView, job: int, estimates: Estimates) -> list[int]:
        """Options that keep deadline and budget, least cost for an urgent job first."""
        if _is_tight(view, job, estimates, view.now_s):
            objective = self._urgent_objective(view)
        else:
            objective = self._objective(view, len(view.queue) - 1)
        cost = objective.cost(estimates)
        keeps = self._headroom.keeps(job, estimates)
        return options_in_time(view, job, estimates, np.where(keeps, cost, np.inf))

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """Cost, here and elsewhere, age and how much the user had."""
        had_gpu_s = view.use.gpu_s(view.now_s) + 1.0
        share = (had_gpu_s / had_gpu_s.mean()) ** self.fairness
        fit = _fit(view, self._objective(view, len(view.queue) - 1), cost)
        return super().rank(view, waiting, cost * fit**FIT_WEIGHT * share[waiting.user])

    def _rescued(
        self, view: ClusterView, plan: NodePlan, job: int, hopes: Sequence[Hope]
    ) -> list[Action]:
        self._rescue_deadline_s = float(view.jobs.deadline_s[job])
        return super()._rescued(view, plan, job, hopes)

    def _may_stop_for_now(self, view: ClusterView, end_s: float, running: RunningJob) -> bool:
        """As AuraChronos, but only for an earlier deadline: two jobs do not stop each other."""
        if view.jobs.deadline_s[running.job] < self._rescue_deadline_s:
            return False
        return super()._may_stop_for_now(view, end_s, running)

    def _urgent_objective(self, view: ClusterView) -> Objective:
        """The objective of jobs with a tight deadline."""
        return self._objective(view, len(view.queue) - 1, max(self.time_value, URGENT))

    def _objective(
        self, view: ClusterView, waiting: float, value: float | None = None
    ) -> Objective:
        if self._worth is None or self._worth[0] is not view.cluster:
            self._worth = view.cluster, gpu_worth(view.cluster)
        delay = self.max_delay if waiting <= 0 else 0.0
        return time_value(
            self.time_value if value is None else value,
            waiting_level(waiting),
            view.cluster.gpus,
            joule_price(view),
            worth=self._worth[1],
            exact=view.time_error == 0,
            max_delay=None if self.max_delay is None else delay,
        )


def _is_tight(view: ClusterView, job: int, estimates: Estimates, since_s: float) -> bool:
    """Whether a job had, at a time, less than `RELAXED` times its run time to its deadline."""
    left_s = float(view.jobs.deadline_s[job]) - since_s
    return left_s < RELAXED * float(estimates.time_s.min())


def _runs_tight(view: ClusterView, running: RunningJob) -> bool:
    """The same of a running job when it was started, if its deadline is still to come."""
    if not view.now_s <= view.jobs.deadline_s[running.job] < math.inf:
        return False
    estimates = view.queue.estimates_for(running.job, running.work_at_start)
    return _is_tight(view, running.job, estimates, running.started_s)


def _fit(view: ClusterView, objective: Objective, here: Floats) -> Floats:
    """What jobs cost on the GPUs they may have now, over what they cost on other types.

    Where a job knows no other type, or a far worse one, it is that much better off here and no
    more: others have to have a turn, too.
    """
    types = np.array([shape[0] for shape in view.queue.shapes])
    if len(here) == 1 or types.min() == types.max():
        return np.ones_like(here)  # nothing to compare
    table = view.queue.table(objective)
    costs = table.costs
    is_free = np.array([view.free.fits(shape) for shape in view.queue.shapes])
    by_type = [np.flatnonzero(types == each) for each in np.unique(types)]
    least = np.stack([costs[rows].min(axis=0) for rows in by_type])
    free = np.stack([costs[rows[is_free[rows]]].min(axis=0, initial=np.inf) for rows in by_type])
    least[np.argmin(free, axis=0), np.arange(costs.shape[1])] = np.inf
    elsewhere, fit = table.of_jobs(least.min(axis=0)), np.ones_like(here)
    # What draws no more than idle costs nothing anywhere; what finds no place now is not looked at.
    np.divide(here, elsewhere, out=fit, where=(elsewhere > 0) & np.isfinite(here))
    return np.maximum(fit, LEAST_FIT)


def _within_budget(view: ClusterView, actions: Sequence[Action]) -> list[Action]:
    """The actions up to the first start that would break the budget with those before it."""
    if math.isinf(view.budget_w.at(view.now_s)):
        return list(actions)
    headroom, kept = Headroom(view), list[Action]()
    for action in actions:
        if isinstance(action, Start):
            estimates = view.queue.estimates(action.job)
            if not headroom.may_start(action.job, estimates)[action.option]:
                break
            headroom.start(action.job, action.option)
        elif isinstance(action, Preempt):
            headroom.stop(action.job)
        kept.append(action)
    return kept
