"""Decisions of the policy: ask it, and execute its actions as far as possible."""

import time
from collections.abc import Callable, Iterable
from heapq import heappush
from operator import index

from wattloop.core.errors import ImpossibleAction
from wattloop.schedule.actions import Action, Preempt, Recap, Resize, Start, Wake
from wattloop.schedule.engine.event_log import PENDING, EventKind
from wattloop.schedule.engine.execution import Execution
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import ClusterView, RealisedDelay

WAKE = 3
REFUSALS_KEPT = 100
ASKED_AT_ONCE = 100


class Decisions:
    """One policy, and the outcome of its actions."""

    def __init__(
        self, policy: Policy, world: Execution, delay: Callable[[float], RealisedDelay] | None
    ) -> None:
        self.policy, self.delay = policy, delay
        self._world = world
        settings = world.settings
        self.view = ClusterView(
            cluster=world.cluster,
            jobs=world.jobs,
            queue=world.queue,
            free=world.machines.free,
            running=world.running,
            use=world.use,
            budget_w=settings.budget_w,
            power_error=world.oracle.power_error,
            time_error=world.oracle.time_error,
            loss=world.loss,
            preemptions=world.accounts.preemptions,
            resizes=world.accounts.resizes,
            is_up=world.machines.is_up,
            carbon_g_per_kwh=settings.carbon_g_per_kwh,
            price_per_kwh=settings.price_per_kwh,
            preemption=settings.preemption,
            round_s=settings.round_s or 0.0,
            wake_s=0.0 if world.sleepers is None else world.cluster.wake_s,
            start_latency_s=settings.start_latency_s,
            end_latency_s=settings.end_latency_s,
        )
        self._needs_free_gpus = policy.needs_free_gpus
        self._waiting, self._free = world.queue.waiting, world.machines.free.by_type
        self.refused: list[str] = []
        self.refusals = 0
        self.wakes: set[float] = set()
        self.policy_s = 0.0

    def ask_until_quiet(self, now_s: float) -> None:
        """Ask as long as the policy changes something."""
        asked = 0
        while self.ask(now_s) and (
            not self._needs_free_gpus or (self._waiting and any(self._free))
        ):
            asked += 1
            if asked > ASKED_AT_ONCE:
                # Every job may be started and stopped once; more is an endless loop.
                world = self._world
                if asked > ASKED_AT_ONCE + 2 * (len(world.queue) + len(world.running)):
                    why = f"{self.policy.name} does not come to an end at {now_s:g} s"
                    self._refuse(now_s, -1, why)
                    return

    def ask(self, now_s: float) -> bool:
        """Ask once; return True if something changed, so that another call may find more to do."""
        world, view = self._world, self.view
        view.now_s = now_s
        if self.delay is not None:
            view.delay = self.delay(now_s)
        view.power_w = world.ledger.power_w + world.expected_w
        if world.sleepers is not None:  # a budget leaves room for all GPUs to wake up
            view.power_w += world.sleepers.saved_w
        started_at_s = time.perf_counter()
        actions: object = self.policy.decide(view)
        self.policy_s += time.perf_counter() - started_at_s
        if len(world.log.pending) > PENDING:
            world.log.compact()
        changed = False
        if not isinstance(actions, (tuple, list)) and not isinstance(actions, Iterable):
            self._refuse(now_s, -1, f"{self.policy.name}: {actions!r} are not actions")
            return False
        waiting, kind, choices = self._waiting, world.kind, world.choices
        for action in actions:
            if type(action) is Start:
                job, option = action
                # The usual case; `_start` finds the fault of any other.
                if (
                    type(job) is int
                    and type(option) is int
                    and job in waiting
                    and 0 <= option < len(choices[kind[job]])
                    and world.start(now_s, job, option)
                ):
                    changed = True
                    continue
                why = self._start(now_s, action)
            else:
                why = self._other(now_s, action)
            if why:
                job = getattr(action, "job", -1)
                why = f"{self.policy.name}: {action}: {why}"
                self._refuse(now_s, job if type(job) is int else -1, why)
            elif type(action) is not Wake:
                changed = True
        return changed

    def _start(self, now_s: float, action: Start) -> str:
        """Start a job; return why that is impossible, or an empty text."""
        world = self._world
        job, option = action
        if type(job) is not int or type(option) is not int:
            try:
                job, option = index(job), index(option)
            except TypeError:
                return "a job and an option are whole numbers"
        if job not in self._waiting:
            return f"job {job} does not wait"
        choices = world.choices[world.kind[job]]
        if not 0 <= option < len(choices):
            return f"job {job} has {len(choices)} options"
        if world.start(now_s, job, option):
            return ""
        type_index, gpus, spread = choices[option].shape
        name = world.cluster.types[type_index].name
        free = sum(
            count * len(nodes) for count, nodes in enumerate(world.machines.nodes_with[type_index])
        )
        together = "" if spread else " together"
        return f"needs {gpus} {name}{together}, {free} are free"

    def _other(self, now_s: float, action: Action) -> str:
        """Execute any other action; return why that is impossible, or an empty text."""
        world = self._world
        try:
            if isinstance(action, Preempt):
                segment = world.running.get(index(action.job))
                if segment is None:
                    return f"job {action.job} does not run"
                if segment.is_ending:
                    return f"job {action.job} has done its work"
                world.stop(now_s, segment, EventKind.PREEMPT)
                return ""
            if isinstance(action, Recap | Resize):
                return self._change(now_s, action)
            if isinstance(action, Wake):
                if not now_s < action.at_s < float("inf"):
                    return f"it is {now_s:g} s, and a later time was expected"
                at_s = float(action.at_s)
                if at_s not in self.wakes:
                    self.wakes.add(at_s)
                    heappush(world.heap, (at_s, WAKE, 0, 0))
                return ""
        except TypeError:
            return "jobs and options are whole numbers, times are seconds"
        return "is not an action"

    def _change(self, now_s: float, action: Recap | Resize) -> str:
        world, job, option = self._world, index(action.job), index(action.option)
        segment = world.running.get(job)
        if segment is None:
            return f"job {job} does not run"
        if segment.is_ending:
            return f"job {job} has done its work"
        choices = world.choices[world.kind[job]]
        if not 0 <= option < len(choices):
            return f"job {job} has {len(choices)} options"
        old, new = choices[segment.option], choices[option]
        is_same = new.shape == old.shape and new.step_work == old.step_work
        if isinstance(action, Recap):
            if not is_same:
                return f"option {option} differs from option {segment.option} by more than its cap"
            world.recap(now_s, segment, option)
            return ""
        if world.settings.preemption.resize_s is None:
            return "jobs cannot be resized here; give engine.preemption a resize time"
        if is_same:
            return f"option {option} differs from option {segment.option} by its cap at most"
        if not world.resize(now_s, segment, option):
            return f"the GPUs of option {option} are not free"
        return ""

    def _refuse(self, now_s: float, job: int, why: str) -> None:
        self.refusals += 1
        self._world.log.add(now_s, EventKind.REFUSE, job)
        why = f"at {now_s:g} s: {why}"
        if self._world.settings.strict:
            raise ImpossibleAction(why)
        if len(self.refused) < REFUSALS_KEPT:
            self.refused.append(why)
