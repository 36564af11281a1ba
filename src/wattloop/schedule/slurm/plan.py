"""Plan one round: ask the policy about a view, and about what may happen before the next round."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from operator import index
from typing import NamedTuple

from wattloop.schedule.actions import Preempt, Recap, Start, Wake
from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.estimates.job_estimate import EstimateSource
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.power_budget import Headroom
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.view import LiveView
from wattloop.schedule.view import RunningJob

MOST_ASKED = 50


"""Times a policy is asked in one round; the next round is a moment away."""


class PlannedStart(NamedTuple):
    """A job, its option, and where the view would put it."""

    job: int
    option: int
    nodes: Nodes


@dataclass(slots=True)
class RoundPlan:
    """What a policy wants done in this round.

    Attributes:
        starts, preempts, recaps: in order; numbers are those of the live view.
        wake_s: when it wants to be asked again at the latest.
        refusals: actions that cannot be carried out, and why.
        short_of_power: starts that were put off to keep the budget.
    """

    starts: list[PlannedStart] = field(default_factory=list)
    preempts: list[int] = field(default_factory=list)
    recaps: list[Recap] = field(default_factory=list)
    wake_s: float = math.inf
    refusals: list[str] = field(default_factory=list)
    short_of_power: int = 0


class Planner:
    """Applies actions to a live view, so that the policy sees what it has done.

    A budget is kept whatever the policy: a start that may break it is put off. If that job could
    run on an idle cluster, those after it are put off as well, or it would wait for ever.

    Args:
        live: the view; it is changed.
        policy: who decides.
    """

    def __init__(self, live: LiveView, policy: Policy) -> None:
        self._live, self._policy = live, policy
        self.plan = RoundPlan()
        self._is_held_back = False
        self.may_only_start = False

    def ask(self, most: int = MOST_ASKED) -> RoundPlan:
        """Ask until the policy has nothing more to say.

        Raises:
            Exception: whatever the policy raises.
        """
        view = self._live.view
        for _ in range(most):
            if self._policy.needs_free_gpus and not (len(view.queue) and view.free.total):
                break
            actions: object = self._policy.decide(view)
            if not isinstance(actions, Iterable) or isinstance(actions, str | bytes):
                raise TypeError(f"policy {self._policy.name}: {actions!r:.200} are no actions")
            self._is_held_back = False
            # A list first: a policy may make up its mind while we change what it looks at.
            changed = [self._apply(action) for action in list(actions)]
            if not any(changed):
                break
        return self.plan

    def _apply(self, action: object) -> bool:
        why = ""
        if isinstance(action, Wake):
            if isinstance(action.at_s, int | float) and action.at_s > self._live.view.now_s:
                self.plan.wake_s = min(self.plan.wake_s, float(action.at_s))
            return False
        if isinstance(action, Start):
            why = self._start(action)
        elif self.may_only_start:
            why = PUT_OFF
        elif isinstance(action, Preempt):
            why = self._preempt(action)
        elif isinstance(action, Recap):
            why = self._recap(action)
        else:
            why = "is no action"
        if why:
            if why != PUT_OFF:
                said = f"{action!r:.200}"
                self.plan.refusals.append(f"{self._policy.name}: {said}: {why}")
            return False
        return True

    def _start(self, action: Start) -> str:
        live, view = self._live, self._live.view
        try:
            job, option = index(action.job), index(action.option)
        except TypeError:
            return "a job and an option are whole numbers"
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
        assert isinstance(view.running, dict)  # as `live_view` made it
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

    def _preempt(self, action: Preempt) -> str:
        live, view = self._live, self._live.view
        try:
            job = index(action.job)
        except TypeError:
            return "a job is a whole number"
        running = view.running.get(job)
        if running is None:
            return f"job {self._name(job)} does not run"
        if job in live.untouchable:
            return f"job {self._name(job)} is not ours to stop, may not be requeued, or begins"
        assert isinstance(view.running, dict)
        del view.running[job]
        live.machines.give(running.nodes)
        idle_w = running.gpus * view.cluster.types[running.type_index].idle_w
        view.power_w -= max(running.power_w - idle_w, 0.0)
        view.use.stop(int(view.jobs.user[job]), running.gpus, view.now_s)
        view.queue.add(job, running.work_at_start)
        if any(start.job == job for start in self.plan.starts):  # nobody was told yet
            self.plan.starts = [start for start in self.plan.starts if start.job != job]
        else:
            self.plan.preempts.append(job)
        return ""

    def _recap(self, action: Recap) -> str:
        view = self._live.view
        try:
            job, option = index(action.job), index(action.option)
        except TypeError:
            return "a job and an option are whole numbers"
        running = view.running.get(job)
        if running is None or job in self._live.untouchable:
            return f"job {self._name(job)} does not run, or is not ours"
        options = view.queue.options(job)
        if not 0 <= option < len(options) or options.shape(option) != options.shape(running.option):
            return f"option {option} of job {self._name(job)} is no other cap of its placement"
        if option == running.option:
            return f"job {self._name(job)} has that cap already"
        power_w = float(options.power_w[option])
        view.power_w += power_w - running.power_w
        running.option, running.power_w = option, power_w
        for place, start in enumerate(self.plan.starts):
            if start.job == job:  # not begun yet: it begins under this cap
                self.plan.starts[place] = start._replace(option=option)
                return ""
        self.plan.recaps.append(Recap(job, option))
        return ""

    def _name(self, job: int) -> str:
        jobs = self._live.jobs
        return jobs[job].key if 0 <= job < len(jobs) else str(job)


PUT_OFF = "put off"


"""Not refused: there is no power for it now."""


# What would start if jobs ended before the next round: Slurm may start it without waiting for us.
#
# A driver looks once a second; Slurm starts a job a few milliseconds after another has ended. So
# jobs that the policy would start on the GPUs of those that may end any moment are let through
# ahead of time. Power is counted as if nobody ended: whenever they start, the budget is kept.

MOST_STANDBY = 64


ASKED = 4


def may_end_soon(live: LiveView, guessed: Collection[int], within_s: float) -> list[int]:
    """Running jobs that are believed to end within a time, are late, or of which nobody knows.

    Args:
        live: the view.
        guessed: jobs whose time is only their limit.
        within_s: until the round after the next.
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
    """Starts on GPUs of jobs that may end; the live view is used up.

    Raises:
        Exception: whatever the policy raises.
    """
    if not ending or not len(live.view.queue):
        return []
    view = live.view
    left = {job: running for job, running in view.running.items() if job not in ending}
    for job in ending:
        live.machines.give(view.running[job].nodes)
    # Nothing is stopped or recapped for what may never come.
    later = replace(live, view=replace(view, running=left, preemptions=[10**6] * len(live.jobs)))
    planner = Planner(later, policy)
    planner.may_only_start = True
    return planner.ask(ASKED).starts[:MOST_STANDBY]


@dataclass(frozen=True, slots=True)
class Planned:
    """What to do now, and what to prepare."""

    live: LiveView
    plan: RoundPlan
    standby: list[PlannedStart]


def planned(
    live: LiveView, site: ManagedCluster, policy: Policy, within_s: float | None
) -> tuple[Planned | None, str]:
    """The plan of a round, or what is wrong with the policy.

    Args:
        live: the view; it is used up.
        site: what is ours.
        policy: who decides.
        within_s: jobs that may end within this time are planned for as well; None for none.
    """
    try:
        plan = Planner(live, policy).ask()
        standby: list[PlannedStart] = []
        if within_s is not None and not plan.preempts and not plan.short_of_power:
            guessed = {
                number
                for number in live.view.running
                if site.believed.of(live.jobs[number]).source is EstimateSource.TIME_LIMIT
            }
            ending = may_end_soon(live, guessed, within_s)
            standby = standby_starts(live, policy, ending)
    except Exception as error:  # noqa: BLE001 - whatever a policy does must not stop the driver
        return None, f"{type(error).__name__}: {error}"
    return Planned(live, plan, standby), ""
