"""Plan execution through scontrol: release, restore, requeue and cap jobs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.fleet.slurm_text import format_notes
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob, Why
from wattloop.schedule.driver.managed_cluster import ManagedCluster
from wattloop.schedule.driver.planner import PlannedStart, RoundPlan
from wattloop.schedule.driver.poller import Snapshot
from wattloop.schedule.driver.view import LiveView
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.state import DriverState

FIRST_S = 30.0
MOST_S = 600.0
SOON = "now+3seconds"
"""Delay after which a requeued job may start again.

Slurm's own delay is two minutes. A start in the second in which Slurm revokes the old start on a
node would be revoked with it."""
Release = tuple[ReleasedJob, SchedulerJob]


class PlanExecutor:
    """Executor of the plan of a round.

    Args:
        gate: reservation that released jobs name.
        backoff: jobs that Slurm refuses.
        most_releases: most jobs released in one round.
    """

    def __init__(
        self,
        policy: Policy,
        state: DriverState,
        log: DriverLog,
        gate: ReservationGate,
        control: "JobControl",
        backoff: "BackOff",
        most_releases: int,
    ) -> None:
        self._policy, self._state, self._log, self._gate = policy, state, log, gate
        self._control, self._backoff, self._most_releases = control, backoff, most_releases

    def execute(
        self,
        plan: RoundPlan,
        live: LiveView,
        snapshot: Snapshot,
        site: ManagedCluster,
        report: RoundReport,
    ) -> None:
        """Execute a plan and fill in the report."""
        now_s = report.at_s
        for number in plan.preempts:
            if self._control.preempt(live.jobs[number]):
                report.preempts.append(live.jobs[number].key)
        wanted = [
            *((ReleasedJob(key=j.key, user=j.user, why="pass", at_s=now_s), j)
              for j in snapshot.passing),
            *self._planned(plan, live, site),
        ]  # fmt: skip
        kept = {each.key for each, _ in wanted}
        kept.update(live.jobs[number].key for number in live.coming)
        stale = stale_releases(self._state.released, kept)
        if stale:
            self._control.restore(stale, snapshot.by_key)
            budget_w = site.budget_w.at(now_s)
            wanted = releases_within_budget(wanted, stale, self._state.released, budget_w)
        self._release(wanted, report)
        for number, option in plan.recaps:
            cap_w = float(live.view.queue.options(number).cap_w[option])
            self._control.recap(live.jobs[number], cap_w)
            report.recaps.append(live.jobs[number].key)

    def users(self) -> set[str]:
        return {each.user for each in self._state.released.values() if each.why != "ran"}

    def _release(self, wanted: list[Release], report: RoundReport) -> None:
        unknown = self._gate.unknown_users
        for name in unknown & {each.user for each, _ in wanted}:
            self._log.add("refused", f"user {name}: not admitted to the reservation by Slurm")
        wanted = [pair for pair in wanted if pair[0].user not in unknown][: self._most_releases]
        needed = {each.user for each, _ in wanted}
        if not needed <= self._gate.users:
            self._gate.extend({*self.users(), *needed})
        for key in self._control.release(wanted):
            self._backoff.add(key, report.at_s)
        report.starts = [each.key for each, _ in wanted if each.why == "start"]
        report.standby = [each.key for each, _ in wanted if each.why == "standby"]

    def _planned(self, plan: RoundPlan, live: LiveView, site: ManagedCluster) -> list[Release]:
        """Return the plan's starts and standbys. A job just requeued starts in the next round."""
        starts: list[tuple[Why, PlannedStart]] = [
            *(("start", each) for each in plan.starts),
            *(("standby", each) for each in plan.standby),
        ]
        wanted: list[Release] = []
        for why, start in starts:
            job = live.jobs[start.job]
            if job.is_pending:
                release = planned_release(
                    live,
                    site,
                    start,
                    why,
                    before=self._state.released.get(job.key),
                    sets_caps=self._policy.sets_caps,
                    may_pin=not self._backoff.times(job.key),
                )
                wanted.append((release, job))
        return wanted


def planned_release(
    live: LiveView,
    site: ManagedCluster,
    start: PlannedStart,
    why: Why,
    *,
    before: ReleasedJob | None,
    sets_caps: bool,
    may_pin: bool = True,
) -> ReleasedJob:
    """Return the release that a planned start needs.

    Nodes are named for jobs that leave the choice open. On standby, Slurm chooses among GPUs of
    one type, because it knows first which of them becomes free.

    `before` is an earlier release of the job. Without `may_pin` no nodes are named: Slurm refused
    them before.
    """
    job, view = live.jobs[start.job], live.view
    options = view.queue.options(start.job)
    names = tuple(site.known.names[node] for node, _ in start.nodes)
    names_own = job.required_nodes and not (before is not None and before.nodes)
    is_free_choice = not (names_own or job.features or job.is_exclusive or not may_pin)
    if len(names) != job.nodes and job.gpus_per_node:
        is_free_choice = False  # the job asks for more than the fewest nodes
    one_type = len(view.cluster.types) == 1
    if one_type and (why == "standby" or (before is not None and not before.nodes)):
        is_free_choice = False
    caps = sets_caps or site.estimates.estimate(job).low_power
    return ReleasedJob(
        key=job.key,
        user=job.user,
        why=why,
        nodes=names if is_free_choice else (),
        gpus=int(options.gpus[start.option]),
        cap_w=float(options.cap_w[start.option]) if caps else None,
        at_s=view.now_s,
    )


def stale_releases(released: Mapping[str, ReleasedJob], kept: Collection[str]) -> list[str]:
    """Return the keys of earlier releases that this round's plan no longer contains."""
    return [
        key
        for key, each in released.items()
        if each.why in ("standby", "start") and key not in kept
    ]


def releases_within_budget(
    wanted: Sequence[Release],
    stale: Collection[str],
    released: Mapping[str, ReleasedJob],
    budget_w: float,
) -> list[Release]:
    """Return the releases that are safe after an attempt to restore `stale`.

    A stale job that is still in the state file has started since the poll. It uses power that the
    plan gives to other jobs, so under a budget those wait for the next round.
    """
    if math.isinf(budget_w) or not any(key in released for key in stale):
        return list(wanted)
    return [each for each in wanted if each[0].why == "pass"]


class JobControl:
    """Changes of single jobs. The state file has the values to restore before Slurm is called."""

    def __init__(self, client: SlurmClient, state: DriverState, log: DriverLog) -> None:
        self._client, self._state, self._log = client, state, log

    def release(self, wanted: Iterable[Release]) -> list[str]:
        """Release jobs; return the keys of those that Slurm refuses."""
        wanted, released = list(wanted), self._state.released
        # Slurm reads a node list for a running job as a request to shrink it, and the job may have
        # started since the poll. So a list of several nodes is cleared first, which Slurm refuses
        # for a running job, and then set again.
        moved = [
            (each, job)
            for each, job in wanted
            if (before := released.get(each.key)) is not None
            and max(len(each.nodes), len(before.nodes)) > 1
            and each.nodes != before.nodes
        ]
        if moved:
            self.restore([each.key for each, _ in moved], {job.key: job for _, job in moved})
            wanted = [pair for pair in wanted if pair not in moved]
        changes: dict[tuple[tuple[str, str], ...], list[Release]] = {}
        known = set(released)
        for each, job in wanted:
            before = released.get(each.key)
            fields = release_fields(each, job, self._state.gate_name, before)
            if fields:
                changes.setdefault(tuple(fields.items()), []).append((each, job))
                # Restore to the values before the driver's first change.
                undo = {**restore_fields(each, job), **(before.undo if before is not None else {})}
                released[each.key] = replace(each, undo=undo)
            elif before is not None and before.why != each.why:  # no change in Slurm
                released[each.key] = replace(before, why=each.why, at_s=each.at_s)
        self._state.save()
        refused: list[str] = []
        for items, pairs in changes.items():
            failed = self._client.update_jobs([each.key for each, _ in pairs], dict(items))
            for each, job in pairs:
                if each.key not in failed:
                    self._log.add(each.why, **_facts(each, job))
                elif each.key not in known:  # otherwise it has started since the poll
                    message = f"job {each.key}: {failed[each.key]}"
                    self._log.add("refused", message, job=each.key)
                    refused.append(each.key)
        if refused:
            self.restore(refused, {job.key: job for _, job in wanted})
        return refused

    def restore(self, keys: Iterable[str], jobs: Mapping[str, SchedulerJob]) -> None:
        """Restore released jobs that have not started."""
        for key in list(keys):
            job, released = jobs.get(key), self._state.released.get(key)
            if job is not None and job.is_pending:
                fields = {"ReservationName": "", **(released.undo if released is not None else {})}
                if not job.required_nodes:
                    # Slurm refuses this for a job that has started since the poll.
                    fields.setdefault("ReqNodeList", "")
                # A refusal: the job started or finished since the poll; the next poll shows which.
                if not self._change(key, fields, "late", "not restored"):
                    continue
            self._state.released.pop(key, None)
        self._state.save()

    def preempt(self, job: SchedulerJob) -> bool:
        """Requeue a running job. Slurm alone would delay its next start by two minutes."""
        self._state.preempting[job.key] = job.submit_s
        self._state.save()
        try:
            self._client.requeue(job.key)
        except SlurmAway:
            raise
        except SlurmError as error:
            self._log.add("refused", f"job {job.key}: not requeued: {error}", job=job.key)
            del self._state.preempting[job.key]
            return False
        self._log.add("preempt", job=job.key, user=job.user)
        return True

    def clear_start_delays(self, jobs: Mapping[str, SchedulerJob]) -> None:
        """Clear Slurm's start delay of preempted jobs that are back in the queue."""
        for key in list(self._state.preempting):
            job = jobs.get(key)
            if job is not None:
                if not job.is_pending:
                    continue  # still stopping
                released = self._state.released.pop(key, None)
                undo = released.undo if released is not None else {}
                fields = {"StartTime": SOON, "ReservationName": "", **undo}
                self._change(key, fields, "refused", "start delay not cleared")
            del self._state.preempting[key]
            self._state.save()

    def nudge(self, waiting: Iterable[SchedulerJob]) -> None:
        """Trigger Slurm's scheduler now, by changing a job."""
        job = next((each for each in waiting if each.key not in self._state.released), None)
        if job is not None:
            with suppress(SlurmError):  # Slurm's scheduler also runs by itself, later
                self._client.update_job(job.key, {"ReservationName": ""})

    def recap(self, job: SchedulerJob, cap_w: float) -> None:
        """Write a new cap for a running job; the agents on its nodes apply it."""
        text = format_notes(job.admin_comment, {"cap_w": round(cap_w, 1)})
        if self._change(job.key, {"AdminComment": text}, "refused", "cap not changed"):
            self._log.add("recap", job=job.key, cap_w=round(cap_w, 1))

    def _change(self, key: str, fields: Mapping[str, str], event: str, failure: str) -> bool:
        """Change a job; log an event and return False when Slurm refuses."""
        error = self._client.update_jobs([key], fields).get(key)
        if error is not None:
            self._log.add(event, f"job {key}: {failure}: {error}", job=key)
        return error is None


def release_fields(
    wanted: ReleasedJob, job: SchedulerJob, gate_name: str, before: ReleasedJob | None
) -> dict[str, str]:
    """Return the fields to change to release a job; empty when nothing has to change."""
    fields: dict[str, str] = {}
    if job.reservation != gate_name:
        fields["ReservationName"] = gate_name
    if wanted.nodes and wanted.nodes != (before.nodes if before is not None else ()):
        fields["ReqNodeList"] = ",".join(wanted.nodes)
    elif before is not None and before.nodes and not wanted.nodes:
        fields["ReqNodeList"] = before.undo.get("ReqNodeList", "")
    if job.gpus_per_node and wanted.gpus and job.nodes == 1 and wanted.gpus != job.gpus:
        fields["Gres"] = _gres(job, wanted.gpus)
    if wanted.cap_w is not None:
        text = format_notes(job.admin_comment, {"cap_w": round(wanted.cap_w, 1)})
        if text != job.admin_comment:
            fields["AdminComment"] = text
    return fields


def restore_fields(wanted: ReleasedJob, job: SchedulerJob) -> dict[str, str]:
    """Return the fields to restore if a released job does not start."""
    fields = {}
    if wanted.nodes:
        fields["ReqNodeList"] = job.required_nodes
    if wanted.gpus != job.gpus and job.gpus_per_node and job.nodes == 1:
        fields["Gres"] = _gres(job, job.gpus)
    return fields


def _gres(job: SchedulerJob, gpus: int) -> str:
    return f"gpu:{job.gpu_type}:{gpus}" if job.gpu_type else f"gpu:{gpus}"


def _facts(each: ReleasedJob, job: SchedulerJob) -> dict[str, Any]:
    facts: dict[str, Any] = {"job": each.key, "user": job.user, "gpus": each.gpus}
    if each.nodes:
        facts["nodes"] = ",".join(each.nodes)
    if each.cap_w is not None:
        facts["cap_w"] = round(each.cap_w, 1)
    return facts


class BackOff:
    """Back-off times during which a job is not offered to the policy.

    Attributes:
        until_s: end of the back-off, by job.
    """

    def __init__(self) -> None:
        self.until_s: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def add(self, key: str, now_s: float) -> float:
        """Back off from a job; return the duration in seconds."""
        times = self._times[key] = self._times.get(key, 0) + 1
        wait_s = min(FIRST_S * 2.0 ** (times - 1), MOST_S)
        self.until_s[key] = now_s + wait_s
        return wait_s

    def times(self, key: str) -> int:
        return self._times.get(key, 0)

    def keep_only(self, keys: set[str]) -> None:
        """Drop jobs that have left the queue."""
        for gone in self._times.keys() - keys:
            del self.until_s[gone], self._times[gone]
