"""Helios: least energy for the time it costs, over GPUs, type, batch and power cap (ADR 0033)."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Preempt, Start, Wake
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.objectives import TIME, Estimates, PlacementObjective
from wattloop.schedule.policies.aurachronos import AuraChronos, Hope, options_in_time
from wattloop.schedule.policies.charon import look_s, stopped_for_budget
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.policies.packing import share, weight
from wattloop.schedule.policies.power_budget import ABOVE_IDLE, Headroom, packed
from wattloop.schedule.policies.recaps import Urgent, lowered, recapped
from wattloop.schedule.policies.time_value import (
    gpu_worth,
    joule_price,
    reference_w,
    time_value,
    waiting_level,
)
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView, RunningJob

# Waiting for a better place: a job stays in the queue while that costs less than starting here.
#
#     stays if cost there + v P_ref (wait for it) < cost here
#
# The wait is until running jobs leave room, by what is believed of their ends, and for those ahead
# that wait for the same GPU type. A second of it is worth what a second of running is. Ever new
# jobs
# may go before it there, so that nobody stays who has waited for as long as he would run here.

Floats = NDArray[np.float64]
Rank = Callable[[ClusterView, Columns, Floats], Floats]
LOOKS = 16
"""Jobs of a round that may stay, those whose turn it is: behind so many nobody gains by waiting."""


class Patience:
    """Who had better wait, in one round.

    Args:
        view: the cluster.
        objective: by what placements are chosen.
        value: v.
        headroom: what power is left; what never fits into the budget is not waited for.

    Attributes:
        wakes: when to look again if what was waited for does not come.
    """

    def __init__(
        self, view: ClusterView, objective: PlacementObjective, value: float, headroom: Headroom
    ) -> None:
        self._view, self._objective, self._value = view, objective, value
        self._headroom = headroom
        self._ahead_s = [0.0] * len(view.cluster.types)
        self._free_s: dict[int, float] = {}
        self._plan: NodePlan | None = None
        self.wakes: list[Action] = []

    def after(self, rank: Rank) -> Rank:
        """The same order of jobs, without those that stay."""

        def ranked(view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
            scores, queue = rank(view, waiting, cost), view.queue
            table = queue.table(self._objective)
            costs = table.costs
            if (alone_w := self._headroom.alone_w()) < math.inf:
                costs = np.where(queue.table(ABOVE_IDLE).costs <= alone_w, costs, np.inf)
            fits = np.array([view.free.fits(shape) for shape in queue.shapes])
            taken = np.flatnonzero(~fits)
            if not len(taken):
                return scores
            chosen = taken[np.argmin(costs[taken], axis=0)]
            there = table.rows(chosen)
            least = table.of_jobs(costs[chosen, np.arange(costs.shape[1])])
            rows = np.flatnonzero(np.isfinite(scores) & np.isfinite(cost) & (least < cost))
            if not len(rows):
                return scores
            if len(rows) > 4 * LOOKS:
                rows = rows[scores[rows] <= np.partition(scores[rows], LOOKS)[LOOKS]]
            reference_by_owner = queue.table(reference_w(exact=view.time_error == 0))
            times = queue.table(TIME)
            here_s = times.of_jobs(times.costs[fits].min(axis=0, initial=np.inf))
            owner = reference_by_owner.owner
            scores = scores.copy()
            for row in rows[np.lexsort((waiting.job[rows], scores[rows]))][:LOOKS].tolist():
                gain_j = float(cost[row] - least[row])
                column = row if owner is None else int(owner[row])
                second_j = self._value * float(reference_by_owner.costs[there[row], column])
                until_s = float(waiting.arrival_s[row] + here_s[row])
                if until_s <= view.now_s:
                    continue
                if self._stays(int(waiting.job[row]), int(there[row]), gain_j, second_j):
                    self.wakes.append(Wake(until_s))
                    scores[row] = np.inf
            return scores

        return ranked

    def _stays(self, job: int, shape_number: int, gain_j: float, second_j: float) -> bool:
        """Whether a place that is taken now gains this job more than the wait for it costs."""
        queue, now_s = self._view.queue, self._view.now_s
        type_index, gpus, _ = shape = queue.shapes[shape_number]
        if self._ahead_s[type_index] * second_j >= gain_j:
            return False
        free_s = self._free_at_s(shape_number)
        if free_s == math.inf or (free_s + self._ahead_s[type_index] - now_s) * second_j >= gain_j:
            return False
        option = queue.best_option(self._objective, job, shape)
        of_type = self._view.cluster.gpus_by_type[type_index]
        self._ahead_s[type_index] += float(queue.estimates(job).time_s[option]) * gpus / of_type
        if second_j > 0:
            self.wakes.append(Wake(free_s + gain_j / second_j))
        return True

    def _free_at_s(self, shape_number: int) -> float:
        """When there is room; never for what is kept for somebody else."""
        if shape_number not in self._free_s:
            self._plan = self._plan or NodePlan(self._view)
            at_s = self._plan.soonest_s(self._view.queue.shapes[shape_number])
            self._free_s[shape_number] = at_s if at_s > self._view.now_s else math.inf
        return self._free_s[shape_number]


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

    def _urgent_objective(self, view: ClusterView) -> PlacementObjective:
        """The objective of jobs with a tight deadline."""
        return self._objective(view, len(view.queue) - 1, max(self.time_value, URGENT))

    def _objective(
        self, view: ClusterView, waiting: float, value: float | None = None
    ) -> PlacementObjective:
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


def _fit(view: ClusterView, objective: PlacementObjective, here: Floats) -> Floats:
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
