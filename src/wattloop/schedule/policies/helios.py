"""Helios: least energy for the time it costs, over GPUs, type, batch and power cap (ADR 0033)."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Preempt, Start, Wake
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.objectives import TIME, Estimates, PlacementObjective
from wattloop.schedule.policies.aurachronos import ExpectedPlacement, options_in_time
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.charon import BudgetedPollux, look_s, preempt_for_budget
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.policies.packing import share, weight
from wattloop.schedule.policies.power_budget import ABOVE_IDLE, Headroom, pack
from wattloop.schedule.policies.running_job_changes import (
    Urgent,
    choose_caps,
    choose_sizes,
    lower_caps,
)
from wattloop.schedule.policies.selene import DelayedJobs, delay_seconds
from wattloop.schedule.policies.time_value import (
    gpu_worth,
    joule_price,
    reference_w,
    time_value,
    waiting_level,
)
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView, RunningJob

Floats = NDArray[np.float64]
Rank = Callable[[ClusterView, Columns, Floats], Floats]
LOOKS = 16
"""Most jobs of a round that may wait: a later one in the line does not gain by it."""


class Patience:
    """Choice of jobs that wait for a better placement, in one round.

        a job waits if cost there + v P_ref (wait for it) < cost here

    The wait lasts until running jobs are expected to leave room, and for jobs ahead that wait for
    the same GPU type. First in that line is the job with the largest gain per GPU second there, so
    that the placement here goes to the job that loses least by it. A second of waiting costs the
    same as a second of running. New jobs may overtake, so a job that has waited for as long as it
    would run here does not wait any longer.

    Args:
        value: v.
        headroom: available power; placements that never fit into the budget are not waited for.

    Attributes:
        wakes: when to decide again if the placement does not become free.
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
        """Return the same order of jobs without those that wait."""

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
            there_s = times.of_jobs(times.costs[chosen, np.arange(costs.shape[1])])
            gpus = np.array([shape[1] for shape in queue.shapes])[there]
            gain_w = (cost[rows] - least[rows]) / np.maximum(gpus[rows] * there_s[rows], 1e-12)
            owner = reference_by_owner.owner
            scores = scores.copy()
            for row in rows[np.lexsort((waiting.job[rows], -gain_w))][:LOOKS].tolist():
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
        """Return True if an occupied placement gains this job more than the wait costs."""
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
        """Return when there is room; infinite for GPUs that are reserved for another job."""
        if shape_number not in self._free_s:
            self._plan = self._plan or NodePlan(self._view)
            at_s = self._plan.soonest_s(self._view.queue.shapes[shape_number])
            self._free_s[shape_number] = at_s if at_s > self._view.now_s else math.inf
        return self._free_s[shape_number]


FAST = 1.0
"""Value of time with which jobs are as fast as under policies without regard to energy."""
SCARCE = 0.1
"""Factor of the value of time while jobs wait for power: saved joules are then throughput."""
URGENT, RELAXED = 4.0, 3.0
"""Value of time of jobs with less than 3 times their run time to the deadline.

They free their GPUs soon for the next deadline, and have time to restart if that one is earlier.
"""
ROOMY = 0.4
"""Share of `max_delay` up to which jobs may be slow while others wait: it delays those as well."""
CALM, LATE, HURRY_LEVELS, LEAST_VALUE = 0.75, 0.9, 4, 0.1
"""Shares of the promised mean delay from which jobs are hurried, and run at full power; number of
steps between them; and the least value of time of hurried jobs."""
FEW_JOBS, LOOKAHEAD = 80, 2.0
"""Jobs whose delay is taken for chance without `max_delay`, which limits that of each job: ages
differ by about their mean, so that of 80 jobs the mean is known to a ninth. And time to foresee a
delay, in mean ages of jobs."""
FIT_WEIGHT, LEAST_FIT = 4, 0.5
"""Exponent of the ratio of a job's cost here to that elsewhere, and the least ratio."""


class Helios(DelayedJobs):
    """cost = (p (P - P_idle) + v P_ref (w^(1/2) + c w n^(3/4) k / K)) T.

    score = cost x (cost / cost on other GPU types)^4 x fairness / (1 + W_age age).

    Each job takes the placement and cap of least cost (see `time_value`) among those that keep the
    power budget even with the largest error of the estimate. Caps of running jobs follow the queue,
    the price of electricity and the budget. GPUs go first to jobs that would lose most on another
    type. A job that gains more on occupied GPUs than the wait costs waits for them (see
    `Patience`). Deadlines are met as in AuraChronos, on the placement of least cost; tight
    deadlines use a value of time of at least 4. Users with more usage than others wait longer.

    Args:
        time_value: v, the value of a job's time: 0 saves most energy, 1 is about as fast as
            policies without regard to energy.
        max_delay: a promise instead of `time_value`: most extra time of a job relative to full
            power, as a share (0.1) or `10%`. Placements are then chosen for speed, and caps for
            energy within the promise; while jobs wait for GPUs, all run at full power, unless
            the mean delay is far below the promise. It is `mean_delay` as well, also relative to
            Helios at full power.
        mean_delay: most by which the mean completion time may exceed Pollux's, as a share or `15%`;
            None for no limit. Near it time counts more, and from it on jobs run at full power.
            Pollux keeps the power budget as well. Without effect with `delay`, and where the
            delay is unknown.
        age_weight_per_s: W_age.
        fairness: exponent of a user's share of GPU seconds over the mean share; 0 for none.
        most_preemptions, patience: as in AuraChronos.
        resize: move running jobs to GPUs on which their remaining work costs less, where the
            engine lets jobs be resized.
        delay: longest delay of a job for a lower carbon intensity or price, as in Selene.
    """

    name = "helios"
    sets_caps = True

    def __init__(
        self,
        time_value: float = 0.36,
        age_weight_per_s: float = 1 / 1000,
        fairness: float = 0.25,
        most_preemptions: int = 2,
        patience: float = 0.5,
        max_delay: float | str | None = None,
        mean_delay: float | str | None = "15%",
        resize: bool = False,
        delay: float | str = "0 s",
    ) -> None:
        super().__init__(age_weight_per_s, most_preemptions, patience)
        self.max_delay = None if max_delay is None else share("max_delay", max_delay)
        if self.max_delay is not None:
            time_value = FAST
        self.mean_delay = None if mean_delay is None else share("mean_delay", mean_delay)
        if self.max_delay and self.mean_delay is not None:
            self.mean_delay = self.max_delay
        self.time_value = weight("time_value", time_value)
        self.fairness = weight("fairness", fairness)
        self.resize = resize
        self.delay_s = delay_seconds(delay)
        self._worth: tuple[Cluster, tuple[float, ...]] | None = None
        self._rescue_deadline_s = math.inf
        self._late: float | None = None
        self._hurry = 0.0

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Keep the budget first, then deadlines, then start other jobs, then set caps."""
        over_w = view.power_w - view.budget_w.least(view.now_s, view.now_s + look_s(view))
        if over_w > 0:
            actions, left_w = lower_caps(view, over_w)
            return actions if left_w <= 0 else preempt_for_budget(view, over_w)
        self._headroom, self._late = Headroom(view), self._expected_delay(view)
        self._hurry = self._hurry_for(self._late)
        actions = _within_budget(view, super().decide(view))
        change_s = view.budget_w.next_change_s(view.now_s) - look_s(view)
        if view.now_s < change_s < math.inf and view.running:
            actions.append(Wake(change_s))
        return actions

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Start jobs; otherwise adapt the caps of running jobs to the queue."""
        headroom, waiting = Headroom(view), len(view.queue) - len(self._stays)
        objective = self._objective(view, self._others(view))
        patience = Patience(view, objective, self._value, headroom)
        starts, is_short = pack(view, objective, patience.after(self.rank), headroom)
        if starts:
            return [*starts, *patience.wakes]
        value = self._value * (SCARCE if is_short else 1.0)
        # Jobs that wait although GPUs are free wait for power: no running job takes more of it.
        has_budget = math.isfinite(view.budget_w.at(view.now_s))
        may_raise = not (has_budget and waiting and view.free.total)
        objective = self._objective(view, waiting, value)
        if self.resize and (moves := choose_sizes(view, objective, headroom)):
            return [*moves, *patience.wakes]
        urgent = Urgent(partial(_runs_tight, view), self._urgent_objective(view))
        recaps = choose_caps(view, objective, headroom, urgent=urgent, may_raise=may_raise)
        return [*recaps, *patience.wakes]

    def in_time(self, view: ClusterView, job: int, estimates: Estimates) -> list[int]:
        """Return options that keep deadline and budget, least cost for an urgent job first."""
        if _is_tight(view, job, estimates, view.now_s):
            objective = self._urgent_objective(view)
        else:
            objective = self._objective(view, self._others(view))
        cost = objective.cost(estimates)
        keeps = self._headroom.keeps(job, estimates)
        return options_in_time(view, job, estimates, np.where(keeps, cost, np.inf))

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        had_gpu_s = view.use.gpu_s(view.now_s) + 1.0
        share = (had_gpu_s / had_gpu_s.mean()) ** self.fairness
        fit = _fit(view, self._objective(view, self._others(view)), cost)
        return super().rank(view, waiting, cost * fit**FIT_WEIGHT * share[waiting.user])

    def _rescue(
        self, view: ClusterView, plan: NodePlan, job: int, expected: Sequence[ExpectedPlacement]
    ) -> list[Action]:
        self._rescue_deadline_s = float(view.jobs.deadline_s[job])
        return super()._rescue(view, plan, job, expected)

    def _may_stop_urgent(self, view: ClusterView, end_s: float, running: RunningJob) -> bool:
        """As AuraChronos, but for an earlier deadline only: two jobs do not stop each other."""
        if view.jobs.deadline_s[running.job] < self._rescue_deadline_s:
            return False
        return super()._may_stop_urgent(view, end_s, running)

    @property
    def _value(self) -> float:
        """Value of time: `time_value`, and up to FAST as the mean delay nears the promised one."""
        if not self._hurry or self.time_value >= FAST:
            return self.time_value
        least = max(self.time_value, LEAST_VALUE)
        return float(least * (FAST / least) ** self._hurry)

    def references(self) -> Sequence[Policy]:
        """Return Pollux, and with `max_delay` also Helios at full power; none for green hours."""
        if self.mean_delay is None or self.delay_s:  # jobs that wait for them are late on purpose
            return ()
        if self.max_delay is None:
            return (BudgetedPollux(),)
        return BudgetedPollux(), Helios(max_delay=0.0, mean_delay=None, fairness=self.fairness)

    def _expected_delay(self, view: ClusterView) -> float | None:
        """Return by how much jobs are late on average, as a share, if as many stay as do now."""
        if self.mean_delay is None or view.delay is None:
            return None
        jobs, own, references = view.delay
        late, few = -math.inf, FEW_JOBS if self.max_delay is None else 0
        for each in references:
            mean_s = each.age_s / max(jobs, 1)
            least_s = each.age_s + LOOKAHEAD * mean_s * each.present
            more_s = own.age_s + LOOKAHEAD * mean_s * own.present - least_s
            late = max(late, more_s / max(least_s + few * mean_s, 1e-9))
        return late

    def _hurry_for(self, late: float | None) -> float:
        """Return 0 while the mean delay is far below the promised one, and 1 from it on."""
        if self.mean_delay is None or late is None:
            return 0.0
        part = (late - CALM * self.mean_delay) / max((LATE - CALM) * self.mean_delay, 1e-9)
        return math.ceil(HURRY_LEVELS * min(max(part, 0.0), 1.0)) / HURRY_LEVELS

    def _others(self, view: ClusterView) -> int:
        """Return the jobs that wait for GPUs next to the one that is placed."""
        return max(len(view.queue) - len(self._stays) - 1, 0)

    def _urgent_objective(self, view: ClusterView) -> PlacementObjective:
        return self._objective(view, self._others(view), max(self._value, URGENT))

    def _objective(
        self, view: ClusterView, waiting: float, value: float | None = None
    ) -> PlacementObjective:
        if self._worth is None or self._worth[0] is not view.cluster:
            self._worth = view.cluster, gpu_worth(view.cluster)
        delay = self.max_delay
        if delay is not None and waiting > 0:
            has_room = self._late is not None and self._late < ROOMY * delay
            delay = delay if has_room else 0.0
        # GPUs that the only job leaves idle fall asleep; those of a busy cluster get the next job.
        is_empty = waiting <= 0 and not view.running
        return time_value(
            self._value if value is None else value,
            waiting_level(waiting),
            view.cluster.gpus,
            joule_price(view),
            worth=self._worth[1],
            exact=view.time_error == 0,
            max_delay=0.0 if self._hurry >= 1 else delay,
            resting_w=view.cluster.resting_w if self.sleeps and is_empty else (),
        )


def _is_tight(view: ClusterView, job: int, estimates: Estimates, since_s: float) -> bool:
    """Return True if a job had less than `RELAXED` times its run time left at a time."""
    left_s = float(view.jobs.deadline_s[job]) - since_s
    return left_s < RELAXED * float(estimates.time_s.min())


def _runs_tight(view: ClusterView, running: RunningJob) -> bool:
    """Return True if a running job was tight at its start and its deadline is in the future."""
    if not view.now_s <= view.jobs.deadline_s[running.job] < math.inf:
        return False
    estimates = view.queue.estimates_for(running.job, running.work_at_start)
    return _is_tight(view, running.job, estimates, running.started_s)


def _fit(view: ClusterView, objective: PlacementObjective, here: Floats) -> Floats:
    """Return the cost of jobs on GPUs that they may have now, relative to other GPU types.

    For a job with no other type, or a far worse one, the ratio is bounded, so that other jobs get a
    turn.
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
    # Without power above idle all costs are 0; jobs without a free placement are ignored.
    np.divide(here, elsewhere, out=fit, where=(elsewhere > 0) & np.isfinite(here))
    return np.maximum(fit, LEAST_FIT)


def _within_budget(view: ClusterView, actions: Sequence[Action]) -> list[Action]:
    """Return the actions up to the first start that would exceed the budget."""
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
