"""Plan execution through scontrol: release, restore, requeue and cap jobs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient, update_words
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.planner import PlannedRound, PlannedStart
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.squeue import SlurmJob, format_notes
from wattloop.schedule.slurm.state import DriverState, ReleasedJob, Why
from wattloop.schedule.slurm.view import SlurmView, Snapshot

FIRST_S = 30.0
MOST_S = 600.0


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
        """Return the number of back-offs of a job."""
        return self._times.get(key, 0)

    def forget_all_but(self, keys: set[str]) -> None:
        """Drop jobs that have left the queue."""
        for gone in self.until_s.keys() - keys:
            del self.until_s[gone]
        for gone in self._times.keys() - keys:
            del self._times[gone]


def planned_release(
    live: SlurmView,
    site: ManagedCluster,
    planned: PlannedStart,
    why: Why,
    *,
    before: ReleasedJob | None,
    sets_caps: bool,
    may_pin: bool = True,
) -> ReleasedJob:
    """Return the release that a planned start needs.

    Nodes are named for jobs that leave the choice open. On standby, Slurm chooses among GPUs of
    one type, because it knows first which of them becomes free.

    Args:
        live: the view.
        site: the managed cluster.
        planned: the start.
        why: start now, or standby.
        before: earlier release of the same job.
        sets_caps: the policy chooses power limits.
        may_pin: nodes may be named; Slurm did not refuse them before.
    """
    job, view = live.jobs[planned.job], live.view
    options = view.queue.options(planned.job)
    gpus = int(options.gpus[planned.option])
    names = _names(site, planned.nodes)
    names_own = job.required_nodes and not (before is not None and before.nodes)
    is_free_choice = not (names_own or job.features or job.is_exclusive or not may_pin)
    if len(names) != job.nodes and job.gpus_per_node:
        is_free_choice = False  # the job asks for more than the fewest nodes
    one_type = len(view.cluster.types) == 1
    if one_type and (why == "standby" or (before is not None and not before.nodes)):
        is_free_choice = False
    said = site.believed.of(job)
    caps = sets_caps or said.low_power
    return ReleasedJob(
        key=job.key,
        user=job.user,
        why=why,
        nodes=names if is_free_choice else (),
        gpus=gpus,
        cap_w=float(options.cap_w[planned.option]) if caps else None,
        at_s=view.now_s,
    )


def release_fields(
    wanted: ReleasedJob, job: SlurmJob, gate_name: str, before: ReleasedJob | None
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


def restore_fields(wanted: ReleasedJob, job: SlurmJob) -> dict[str, str]:
    """Return the fields to restore if a released job does not start."""
    undo = {}
    if wanted.nodes:
        undo["ReqNodeList"] = job.required_nodes
    if wanted.gpus != job.gpus and job.gpus_per_node and job.nodes == 1:
        undo["Gres"] = _gres(job, job.gpus)
    return undo


def _gres(job: SlurmJob, gpus: int) -> str:
    return f"gpu:{job.gpu_type}:{gpus}" if job.gpu_type else f"gpu:{gpus}"


def _names(site: ManagedCluster, nodes: Nodes) -> tuple[str, ...]:
    return tuple(site.known.names[node] for node, _ in nodes)


Wanted = tuple[ReleasedJob, SlurmJob]


def stale_releases(opened: Mapping[str, ReleasedJob], kept: Collection[str]) -> list[str]:
    """Return the keys of earlier releases that this round's plan no longer contains."""
    return [
        key for key, each in opened.items() if each.why in ("standby", "start") and key not in kept
    ]


def releases_within_budget(
    wanted: Sequence[Wanted],
    stale: Collection[str],
    opened: Mapping[str, ReleasedJob],
    budget_w: float,
) -> list[Wanted]:
    """Return the releases that are safe after an attempt to restore `stale`.

    A stale job that is still in the state file has started since the poll. It uses power that the
    plan gives to other jobs, so under a budget those wait for the next round.

    Args:
        wanted: releases of this round's plan.
        stale: keys of releases to restore.
        opened: releases in the state file after the attempt.
        budget_w: current budget; infinite without one.
    """
    if math.isinf(budget_w) or not any(key in opened for key in stale):
        return list(wanted)
    return [each for each in wanted if each[0].why == "pass"]


SOON = "now+3seconds"
"""Delay after which a requeued job may start again.

Slurm's own delay is two minutes. A start in the second in which Slurm revokes the old start on a
node would be revoked with it."""


class PlanExecutor:
    """Executor of single changes, which records what has to be restored.

    Args:
        client: Slurm.
        state: state file, written before Slurm is called.
        log: receives actions and refusals.
        gate_name: name of the reservation.
    """

    def __init__(
        self, client: SlurmClient, state: DriverState, log: DriverLog, gate_name: str
    ) -> None:
        self._client, self._state, self._log = client, state, log
        self._gate_name = gate_name

    def open(self, wanted: Iterable[tuple[ReleasedJob, SlurmJob]]) -> list[str]:
        """Release jobs; return the keys of those that Slurm refuses."""
        wanted = list(wanted)
        # Slurm reads a node list for a running job as a request to shrink it, and the job may have
        # started since the poll. So a list of several nodes is cleared first, which Slurm refuses
        # for a running job, and then set again.
        moved = [
            (each, job)
            for each, job in wanted
            if (before := self._state.opened.get(each.key)) is not None
            and max(len(each.nodes), len(before.nodes)) > 1
            and each.nodes != before.nodes
        ]
        if moved:
            self.close([each.key for each, _ in moved], {job.key: job for _, job in moved})
            wanted = [pair for pair in wanted if pair not in moved]
        changes: dict[tuple[tuple[str, str], ...], list[tuple[ReleasedJob, SlurmJob]]] = {}
        known = set(self._state.opened)
        for each, job in wanted:
            before = self._state.opened.get(each.key)
            fields = release_fields(each, job, self._gate_name, before)
            if fields:
                changes.setdefault(tuple(fields.items()), []).append((each, job))
                # Restore to the values before the driver's first change.
                undo = {**restore_fields(each, job), **(before.undo if before is not None else {})}
                self._state.opened[each.key] = replace(each, undo=undo)
            elif before is not None and before.why != each.why:  # no change in Slurm
                self._state.opened[each.key] = replace(before, why=each.why, at_s=each.at_s)
        self._state.save()
        refused: list[str] = []
        for items, pairs in changes.items():
            failed = self._client.update_jobs([each.key for each, _ in pairs], dict(items))
            for each, job in pairs:
                if each.key not in failed:
                    self._log.add(each.why, **_facts(each, job))
                elif each.key not in known:  # otherwise it has started since the poll
                    said = f"job {each.key}: {failed[each.key]}"
                    self._log.add("refused", said, job=each.key)
                    refused.append(each.key)
        if refused:
            self.close(refused, {job.key: job for _, job in wanted})
        return refused

    def close(self, keys: Iterable[str], jobs: Mapping[str, SlurmJob]) -> None:
        """Restore released jobs that have not started."""
        for key in list(keys):
            opened = self._state.opened.get(key)
            job = jobs.get(key)
            if job is not None and job.is_pending:
                fields = {"ReservationName": "", **(opened.undo if opened is not None else {})}
                if not job.required_nodes:
                    # Slurm refuses this for a job that has started since the poll.
                    fields.setdefault("ReqNodeList", "")
                try:
                    self._client.update_job(update_words(key, fields))
                except SlurmAway:
                    raise
                except SlurmError as error:
                    # The job started or finished since the poll; the next poll shows which.
                    self._log.add("late", f"job {key}: not restored: {error}", job=key)
                    continue
            self._state.opened.pop(key, None)
        self._state.save()

    def preempt(self, job: SlurmJob) -> bool:
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

    def set_free(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Clear Slurm's start delay of preempted jobs that are back in the queue."""
        for key in list(self._state.preempting):
            job = jobs.get(key)
            if job is not None and not job.is_pending:
                continue  # still stopping
            if job is not None and job.is_pending:
                opened = self._state.opened.pop(key, None)
                undo = dict(opened.undo) if opened is not None else {}
                fields = {"StartTime": SOON, "ReservationName": "", **undo}
                try:
                    self._client.update_job(update_words(key, fields))
                except SlurmAway:
                    raise
                except SlurmError as error:
                    self._log.add(
                        "refused", f"job {key}: start delay not cleared: {error}", job=key
                    )
            del self._state.preempting[key]
            self._state.save()

    def nudge(self, waiting: Iterable[SlurmJob]) -> None:
        """Trigger Slurm's scheduler now, by changing a job."""
        job = next((each for each in waiting if each.key not in self._state.opened), None)
        if job is not None:
            with suppress(SlurmError):  # Slurm's scheduler also runs by itself, later
                self._client.update_job(update_words(job.key, {"ReservationName": ""}))

    def recap(self, job: SlurmJob, cap_w: float) -> None:
        """Write a new cap for a running job; the agents on its nodes apply it."""
        text = format_notes(job.admin_comment, {"cap_w": round(cap_w, 1)})
        try:
            self._client.update_job(update_words(job.key, {"AdminComment": text}))
        except SlurmAway:
            raise
        except SlurmError as error:
            self._log.add("refused", f"job {job.key}: cap not changed: {error}", job=job.key)
            return
        self._log.add("recap", job=job.key, cap_w=round(cap_w, 1))


def _facts(each: ReleasedJob, job: SlurmJob) -> dict[str, Any]:
    facts: dict[str, Any] = {"job": each.key, "user": job.user, "gpus": each.gpus}
    if each.nodes:
        facts["nodes"] = ",".join(each.nodes)
    if each.cap_w is not None:
        facts["cap_w"] = round(each.cap_w, 1)
    return facts


class RoundExecutor:
    """Executor of whole plans.

    Args:
        policy: the scheduling policy.
        state: state file of the driver.
        log: receives refusals.
        gate: reservation that released jobs name.
        carrying_out: executor of single changes.
        backoff: jobs that Slurm refuses.
        most_openings: most jobs released in one round.
    """

    def __init__(
        self,
        policy: Policy,
        state: DriverState,
        log: DriverLog,
        gate: ReservationGate,
        carrying_out: PlanExecutor,
        backoff: BackOff,
        most_openings: int,
    ) -> None:
        self._policy, self._state, self._log, self._gate = policy, state, log, gate
        self._carrying_out, self._backoff = carrying_out, backoff
        self._most_openings = most_openings

    def carry_out(
        self,
        found: PlannedRound,
        snapshot: Snapshot,
        site: ManagedCluster,
        now_s: float,
        report: RoundReport,
    ) -> None:
        """Execute a plan and fill in the report.

        Raises:
            SlurmError: Slurm does not answer.
        """
        live, plan = found.live, found.plan
        for number in plan.preempts:
            if self._carrying_out.preempt(live.jobs[number]):
                report.preempts.append(live.jobs[number].key)
        wanted = [
            *((_passed(job, now_s), job) for job in snapshot.passing),
            *self._wanted(found, site),
        ]
        kept = {each.key for each, _ in wanted}
        kept.update(live.jobs[number].key for number in live.coming)
        stale = stale_releases(self._state.opened, kept)
        if stale:
            self._carrying_out.close(stale, snapshot.by_key)
            budget_w = site.budget_w.at(now_s)
            wanted = releases_within_budget(wanted, stale, self._state.opened, budget_w)
        self._open(wanted, now_s, report)
        for job, option in plan.recaps:
            cap_w = float(live.view.queue.options(job).cap_w[option])
            self._carrying_out.recap(live.jobs[job], cap_w)
            report.recaps.append(live.jobs[job].key)

    def users(self) -> set[str]:
        """Return the users of released jobs."""
        return {each.user for each in self._state.opened.values() if each.why != "ran"}

    def _open(
        self, wanted: list[tuple[ReleasedJob, SlurmJob]], now_s: float, report: RoundReport
    ) -> None:
        unknown = self._gate.unknown_users
        for name in unknown & {each.user for each, _ in wanted}:
            self._log.add("refused", f"user {name}: not admitted to the reservation by Slurm")
        wanted = [pair for pair in wanted if pair[0].user not in unknown][: self._most_openings]
        needed = {each.user for each, _ in wanted}
        if not needed <= self._gate.is_open_for:
            self._gate.keep({*self.users(), *needed})
        for key in self._carrying_out.open(wanted):
            self._backoff.add(key, now_s)
        report.starts = [each.key for each, _ in wanted if each.why == "start"]
        report.standby = [each.key for each, _ in wanted if each.why == "standby"]

    def _wanted(
        self, found: PlannedRound, site: ManagedCluster
    ) -> list[tuple[ReleasedJob, SlurmJob]]:
        """Return the plan's starts and standbys. A job just requeued starts in the next round."""
        starts: list[tuple[Why, PlannedStart]] = [
            *(("start", each) for each in found.plan.starts),
            *(("standby", each) for each in found.standby),
        ]
        wanted: list[tuple[ReleasedJob, SlurmJob]] = []
        for why, each in starts:
            job = found.live.jobs[each.job]
            if job.is_pending:
                opened = planned_release(
                    found.live,
                    site,
                    each,
                    why,
                    before=self._state.opened.get(job.key),
                    sets_caps=self._policy.sets_caps,
                    may_pin=not self._backoff.times(job.key),
                )
                wanted.append((opened, job))
        return wanted


def _passed(job: SlurmJob, now_s: float) -> ReleasedJob:
    return ReleasedJob(key=job.key, user=job.user, why="pass", at_s=now_s)
