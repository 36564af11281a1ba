"""Slurm's jobs sorted by what a driver has to do with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.site import Site

__all__ = ["Snapshot", "snapshot_of"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The jobs at one moment.

    Attributes:
        waiting: ours to decide about; those on standby among them.
        coming: let through to free GPUs, and not running yet.
        running: on our nodes with GPUs, ours or not.
        ending: still on our nodes, but done.
        passing: waiting jobs that the gate keeps from our nodes and that are not ours to place.
        strangers: waiting jobs that name our gate although nobody let them through.
        by_key: every job.
    """

    waiting: list[SlurmJob] = field(default_factory=list)
    coming: list[SlurmJob] = field(default_factory=list)
    running: list[SlurmJob] = field(default_factory=list)
    ending: list[SlurmJob] = field(default_factory=list)
    passing: list[SlurmJob] = field(default_factory=list)
    strangers: list[SlurmJob] = field(default_factory=list)
    by_key: dict[str, SlurmJob] = field(default_factory=dict)


def snapshot_of(
    jobs: Sequence[SlurmJob],
    site: Site,
    *,
    gate_name: str,
    opened: Mapping[str, Opened],
) -> Snapshot:
    """Sort the jobs.

    Args:
        jobs: all that Slurm knows.
        site: what is ours.
        gate_name: of our reservation; empty when there is none.
        opened: jobs that were let through.
    """
    found, known = Snapshot(), site.known
    for job in jobs:
        found.by_key[job.key] = job
        if job.has_machines:
            if any(gpus and name in known.numbers for name, gpus in job.placed):
                (found.ending if job.state == "COMPLETING" else found.running).append(job)
        elif job.is_pending:
            _sort_pending(found, job, site, gate_name, opened)
    return found


def _sort_pending(
    found: Snapshot,
    job: SlurmJob,
    site: Site,
    gate_name: str,
    opened: Mapping[str, Opened],
) -> None:
    partitions = job.partition.split(",")
    names_gate = bool(gate_name) and job.reservation == gate_name
    was = opened.get(job.key)
    if names_gate and was is None:
        found.strangers.append(job)
        return
    if job.reservation and not names_gate:
        return  # it has machines of its own
    is_ours = all(name in site.managed for name in partitions) and job.gpus > 0
    if is_ours and was is not None and was.why == "start" and names_gate:
        found.coming.append(job)
    elif is_ours:
        if job.is_eligible:
            found.waiting.append(job)
    elif any(name in site.managed or name in site.shared for name in partitions) and not names_gate:
        found.passing.append(job)
