"""From a plan to scontrol: one call for each job, or for several that are changed alike."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.slurm.admin_comment import noted
from wattloop.schedule.slurm.client import SlurmClient, update_words
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.opening import open_fields, undo_fields
from wattloop.schedule.slurm.state import DriverState

__all__ = ["CarryingOut"]

SOON = "now+3seconds"
"""When a stopped job may start again: Slurm would say in two minutes, and in the very second in
which it revokes the old start on a node it revokes a new one with it."""


class CarryingOut:
    """Tells Slurm, and keeps note of what would have to be undone.

    Args:
        client: Slurm.
        state: notes, written before Slurm is told.
        log: what was done and refused.
        gate_name: of our reservation.
    """

    def __init__(
        self, client: SlurmClient, state: DriverState, log: EventLog, gate_name: str
    ) -> None:
        self._client, self._state, self._log = client, state, log
        self._gate_name = gate_name

    def open(self, wanted: Iterable[tuple[Opened, SlurmJob]]) -> list[str]:
        """Let jobs through; keys of those that Slurm refuses."""
        wanted = list(wanted)
        # Slurm takes a node list for a running job as a wish to shrink it, and a job may have
        # begun since we looked: several nodes are taken back (refused if it runs) and named anew.
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
        changes: dict[tuple[tuple[str, str], ...], list[tuple[Opened, SlurmJob]]] = {}
        known = set(self._state.opened)
        for each, job in wanted:
            before = self._state.opened.get(each.key)
            fields = open_fields(each, job, self._gate_name, before)
            if fields:
                changes.setdefault(tuple(fields.items()), []).append((each, job))
                # What was there before the first of our changes is what counts.
                undo = {**undo_fields(each, job), **(before.undo if before is not None else {})}
                self._state.opened[each.key] = replace(each, undo=undo)
            elif before is not None and before.why != each.why:  # nothing to tell Slurm
                self._state.opened[each.key] = replace(before, why=each.why, at_s=each.at_s)
        self._state.save()
        refused: list[str] = []
        for items, pairs in changes.items():
            failed = self._client.update_jobs([each.key for each, _ in pairs], dict(items))
            for each, job in pairs:
                if each.key not in failed:
                    self._log.add(each.why, **_facts(each, job))
                elif each.key not in known:  # else it began since we looked
                    said = f"job {each.key}: {failed[each.key]}"
                    self._log.add("refused", said, job=each.key)
                    refused.append(each.key)
        if refused:
            self.close(refused, {job.key: job for _, job in wanted})
        return refused

    def close(self, keys: Iterable[str], jobs: Mapping[str, SlurmJob]) -> None:
        """Take back what was asked for jobs that have not started."""
        for key in list(keys):
            opened = self._state.opened.get(key)
            job = jobs.get(key)
            if job is not None and job.is_pending:
                fields = {"ReservationName": "", **(opened.undo if opened is not None else {})}
                if not job.required_nodes:
                    # Refused for a job that has begun since we looked, which we want to know.
                    fields.setdefault("ReqNodeList", "")
                try:
                    self._client.update_job(update_words(key, fields))
                except SlurmAway:
                    raise
                except SlurmError as error:
                    # It began or ended since we looked; the next look tells.
                    self._log.add("late", f"job {key}: not taken back: {error}", job=key)
                    continue
            self._state.opened.pop(key, None)
        self._state.save()

    def preempt(self, job: SlurmJob) -> bool:
        """Stop a running job; it waits again. Slurm would keep it waiting for two minutes."""
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
        """Let preempted jobs start again at once, as soon as they are back in the queue."""
        for key in list(self._state.preempting):
            job = jobs.get(key)
            if job is not None and not job.is_pending:
                continue  # it is still being stopped
            if job is not None and job.is_pending:
                opened = self._state.opened.pop(key, None)
                undo = dict(opened.undo) if opened is not None else {}
                fields = {"StartTime": SOON, "ReservationName": "", **undo}
                try:
                    self._client.update_job(update_words(key, fields))
                except SlurmAway:
                    raise
                except SlurmError as error:
                    self._log.add("refused", f"job {key}: not set free: {error}", job=key)
            del self._state.preempting[key]
            self._state.save()

    def nudge(self, waiting: Iterable[SlurmJob]) -> None:
        """Make Slurm look at its queue now: it does after any change of a job."""
        job = next((each for each in waiting if each.key not in self._state.opened), None)
        if job is not None:
            with suppress(SlurmError):  # it looks by itself, if later
                self._client.update_job(update_words(job.key, {"ReservationName": ""}))

    def recap(self, job: SlurmJob, cap_w: float) -> None:
        """Write another cap for a running job; its nodes' agents set it."""
        text = noted(job.admin_comment, {"cap_w": round(cap_w, 1)})
        try:
            self._client.update_job(update_words(job.key, {"AdminComment": text}))
        except SlurmAway:
            raise
        except SlurmError as error:
            self._log.add("refused", f"job {job.key}: no other cap: {error}", job=job.key)
            return
        self._log.add("recap", job=job.key, cap_w=round(cap_w, 1))


def _facts(each: Opened, job: SlurmJob) -> dict[str, Any]:
    facts: dict[str, Any] = {"job": each.key, "user": job.user, "gpus": each.gpus}
    if each.nodes:
        facts["nodes"] = ",".join(each.nodes)
    if each.cap_w is not None:
        facts["cap_w"] = round(each.cap_w, 1)
    return facts
