"""Plan of one round: the policy's actions on a view, and standby starts until the next round."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from operator import index
from typing import NamedTuple

from wattloop.schedule.actions import Preempt, Recap, Start, Wake
from wattloop.schedule.driver.managed_cluster import ManagedCluster
from wattloop.schedule.driver.view import LiveView
from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.estimates.job_estimator import EstimateSource
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.power_budget import Headroom
from wattloop.schedule.view import RunningJob

MOST_ASKED = 50
"""Most calls of a policy in one round; the next round follows soon."""


class PlannedStart(NamedTuple):
    """Planned start of a job: its option and its placement in the view."""

    job: int
    option: int
    nodes: Nodes


@dataclass(slots=True)
class RoundPlan:
    """Actions of a policy in one round.

    Attributes:
        starts, preempts, recaps: in order; job numbers are those of the live view.
        standby: starts on GPUs that may become free before the next round.
        wake_s: latest time of the next call of the policy.
        refusals: actions that cannot be executed, and why.
        short_of_power: starts that were postponed to stay within the budget.
    """

    starts: list[PlannedStart] = field(default_factory=list)
    preempts: list[int] = field(default_factory=list)
    recaps: list[Recap] = field(default_factory=list)
    standby: list[PlannedStart] = field(default_factory=list)
    wake_s: float = math.inf
    refusals: list[str] = field(default_factory=list)
    short_of_power: int = 0


class Planner:
    """Planner that applies actions to a live view, so that the policy sees their effect.

    The budget holds for every policy: a start that may exceed it is postponed. If that job could
    run on an idle cluster, the starts after it are postponed as well, or it would wait for ever.
    """

    def __init__(self, live: LiveView, policy: Policy) -> None:
        self._live, self._policy = live, policy
        self.plan = RoundPlan()
        self._is_held_back = False
        self.may_only_start = False

    def ask(self, most: int = MOST_ASKED) -> RoundPlan:
        """Call the policy until it returns no more actions."""
        view = self._live.view
        for _ in range(most):
            if self._policy.needs_free_gpus and not (len(view.queue) and view.free.total):
                break
            actions: object = self._policy.decide(view)
            if not isinstance(actions, Iterable) or isinstance(actions, str | bytes):
                raise TypeError(f"policy {self._policy.name}: {actions!r:.200} are not actions")
            self._is_held_back = False
            # Collect all actions first: a generator would otherwise read a view that is being
            # changed.
            changed = [self._apply(action) for action in list(actions)]
            if not any(changed):
                break
        return self.plan

    def _apply(self, action: object) -> bool:
        """Apply an action to the view; False when it changes nothing."""
        if isinstance(action, Wake):
            if isinstance(action.at_s, int | float) and action.at_s > self._live.view.now_s:
                self.plan.wake_s = min(self.plan.wake_s, float(action.at_s))
            return False
        why = self._refusal(action)
        if why and why != PUT_OFF:
            self.plan.refusals.append(f"{self._policy.name}: {action!r:.200}: {why}")
        return not why

    def _refusal(self, action: object) -> str:
        """Apply an action, or return why not."""
        if not isinstance(action, Start | Preempt | Recap):
            return "is not an action"
        if self.may_only_start and not isinstance(action, Start):
            return PUT_OFF
        try:
            job, option = index(action.job), index(getattr(action, "option", 0))
        except TypeError:
            return "a job and an option are whole numbers"
        if isinstance(action, Start):
            return self._start(job, option)
        return self._recap(job, option) if isinstance(action, Recap) else self._preempt(job)

    def _start(self, job: int, option: int) -> str:
        live, view = self._live, self._live.view
        if job not in view.queue:
            return f"job {self._name(job)} does not wait"
        options = view.queue.options(job)
        if not 0 <= option < len(options):
            return f"job {self._name(job)} has {len(options)} options"
        if self._is_held_back or not self._keeps_budget(job, option):
            self.plan.short_of_power += 1
            return PUT_OFF
        shape = options.shape(option)
        nodes = live.machines.take_if_free(shape)
        if nodes is None:
            return f"{shape[1]} GPUs of {view.cluster.types[shape[0]].name} are not free"
        estimates = view.queue.estimates(job)
        added_w = float(Headroom(view).added_w(job, estimates)[option])
        work = view.queue.remove(job)
        end_s = view.now_s + float(estimates.time_s[option])
        power_w = float(estimates.power_w[option])
        assert isinstance(view.running, dict)  # as `build_view` made it
        view.running[job] = RunningJob(
            job, option, shape[0], shape[1], nodes, view.now_s, power_w, end_s, work
        )
        view.use.start(int(view.jobs.user[job]), shape[1], view.now_s)
        view.power_w += added_w
        self.plan.starts.append(PlannedStart(job, option, nodes))
        return ""

    def _keeps_budget(self, job: int, option: int) -> bool:
        view = self._live.view
        budget_w = view.budget_w.at(view.now_s)
        if math.isinf(budget_w):
            return True
        headroom = Headroom(view)
        added_w = float(headroom.added_w(job, view.queue.estimates(job))[option])
        if added_w <= headroom.now_w():
            return True
        self._is_held_back = added_w <= budget_w - view.cluster.idle_w
        return False

    def _preempt(self, job: int) -> str:
        live, view = self._live, self._live.view
        running = view.running.get(job)
        if running is None:
            return f"job {self._name(job)} does not run"
        if job in live.untouchable:
            return f"job {self._name(job)} is not managed, may not be requeued, or is starting"
        assert isinstance(view.running, dict)
        del view.running[job]
        live.machines.give(running.nodes)
        idle_w = running.gpus * view.cluster.types[running.type_index].idle_w
        view.power_w -= max(running.power_w - idle_w, 0.0)
        view.use.stop(int(view.jobs.user[job]), running.gpus, view.now_s)
        view.queue.add(job, running.work_at_start)
        if any(start.job == job for start in self.plan.starts):  # not released yet
            self.plan.starts = [start for start in self.plan.starts if start.job != job]
        else:
            self.plan.preempts.append(job)
        return ""

    def _recap(self, job: int, option: int) -> str:
        view = self._live.view
        running = view.running.get(job)
        if running is None or job in self._live.untouchable:
            return f"job {self._name(job)} does not run, or is not managed"
        options = view.queue.options(job)
        if not 0 <= option < len(options) or options.shape(option) != options.shape(running.option):
            return f"option {option} of job {self._name(job)} is not a cap of its placement"
        if option == running.option:
            return f"job {self._name(job)} has that cap already"
        power_w = float(options.power_w[option])
        view.power_w += power_w - running.power_w
        running.option, running.power_w = option, power_w
        for place, start in enumerate(self.plan.starts):
            if start.job == job:  # not started yet: it starts with this cap
                self.plan.starts[place] = start._replace(option=option)
                return ""
        self.plan.recaps.append(Recap(job, option))
        return ""

    def _name(self, job: int) -> str:
        jobs = self._live.jobs
        return jobs[job].key if 0 <= job < len(jobs) else str(job)


PUT_OFF = "put off"
"""Marker of a start that is postponed for lack of power, not refused."""


# Standby starts. A driver polls once a second, but Slurm can start a job milliseconds after another
# has finished. So jobs that the policy would start on GPUs that may become free are released in
# advance. Their power is added to that of the running jobs, so the budget holds at any start time.
MOST_STANDBY = 64
ASKED = 4


def may_end_soon(live: LiveView, guessed: Collection[int], within_s: float) -> list[int]:
    """Return running jobs that may end within a time: by their estimate, overdue or unknown.

    `guessed` are jobs of which only the time limit is known.
    """
    now_s = live.view.now_s
    return [
        job
        for job, running in live.view.running.items()
        if job not in live.coming
        and running.started_s < now_s
        and (job in guessed or running.expected_end_s <= now_s + within_s)
    ]


def standby_starts(live: LiveView, policy: Policy, ending: Collection[int]) -> list[PlannedStart]:
    """Plan starts on the GPUs of jobs that may end; this consumes the live view."""
    if not ending or not len(live.view.queue):
        return []
    view = live.view
    left = {job: running for job, running in view.running.items() if job not in ending}
    for job in ending:
        live.machines.give(view.running[job].nodes)
    # Standby never preempts or recaps: the expected end may not happen.
    later = replace(live, view=replace(view, running=left, preemptions=[10**6] * len(live.jobs)))
    planner = Planner(later, policy)
    planner.may_only_start = True
    return planner.ask(ASKED).starts[:MOST_STANDBY]


def plan_round(
    live: LiveView, site: ManagedCluster, policy: Policy, within_s: float | None
) -> RoundPlan:
    """Plan a round.

    The view is consumed. With `within_s`, standby starts are planned for jobs that may end within
    that time.

    Raises:
        Exception: whatever the policy raises.
    """
    plan = Planner(live, policy).ask()
    if within_s is not None and not plan.preempts and not plan.short_of_power:
        guessed = {
            number
            for number in live.view.running
            if site.estimates.estimate(live.jobs[number]).source is EstimateSource.TIME_LIMIT
        }
        plan.standby = standby_starts(live, policy, may_end_soon(live, guessed, within_s))
    return plan
