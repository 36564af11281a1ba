"""Slurm's latencies: from its decision to the start of a job, and from one job's end to the next.

squeue shows whole seconds; the log of slurmctld has milliseconds. Where the log cannot be read, a
start is assumed in the middle of its second, which is right on average.
"""

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wattloop.schedule.slurm.replay.result import ReplayedRun

# sched: Allocate JobId=5 NodeList=n1 ... | sched/backfill: _start_job: Started JobId=7 in all on n1
STARTED = re.compile(
    r"^\[(\S+?)\] (?:sched: Allocate|sched/(backfill): _start_job: Started) JobId=(\d+)"
)
ENDED = re.compile(r"^\[(\S+?)\] _job_complete: ()JobId=(\d+) done")
MANY = 10
LONGEST_S = 30.0
"""Longest start latency; a longer one means that the start was postponed."""
PASS_S = 0.05
"""Starts closer together than this belong to one scheduling pass."""


class JobTimes(NamedTuple):
    """Slurm's times of jobs, by Slurm's job numbers, on the clock of `time.monotonic`.

    Attributes:
        started_s: last decision to start each job.
        ended_s: time at which slurmctld registered the end; empty without its log.
        backfilled: jobs started by the backfill scheduler; empty without the log.
    """

    started_s: Mapping[int, float]
    ended_s: Mapping[int, float]
    source: str
    backfilled: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Latency:
    """Mean latencies over the jobs of a run.

    Attributes:
        start_s: from Slurm's decision to start a job until the job works.
        end_s: from the end of work on GPUs until Slurm allocates them to a waiting job, including
            the wait for the next scheduling pass; None when no job waited for GPUs.
    """

    start_s: float
    end_s: float | None
    starts: int
    ends: int
    source: str


def measure_latency(
    ran: Sequence[ReplayedRun],
    submitted_s: Mapping[int, float],
    times: JobTimes,
    *,
    with_backfilled: bool = True,
) -> Latency:
    """Compute the latencies of a run.

    Without `with_backfilled`, backfilled jobs do not count for `end_s`: they waited for the
    backfill pass, whose interval the simulator models.
    """
    started_s = times.started_s
    starts: list[float] = []
    turns: list[tuple[float, float]] = []
    free_s: dict[tuple[str, int], float] = {}
    for each in sorted(ran, key=lambda each: each.begin_s):
        decided_s = started_s.get(each.slurm_job)
        if decided_s is not None and decided_s <= each.begin_s:
            starts.append(each.begin_s - decided_s)
            left_s = max((free_s.get(gpu, 0.0) for gpu in each.gpus), default=0.0)
            counts = with_backfilled or each.slurm_job not in times.backfilled
            if counts and submitted_s.get(each.job, 0.0) < left_s <= decided_s:
                turns.append((decided_s, decided_s - left_s))
        for gpu in each.gpus:
            free_s[gpu] = max(free_s.get(gpu, 0.0), each.end_s)
    ends = _least_of_each_pass(turns)
    return Latency(
        start_s=fmean(starts) if starts else 0.0,
        end_s=fmean(ends) if ends else None,
        starts=len(starts),
        ends=len(ends),
        source=times.source,
    )


def driver_end_latency(
    ran: Sequence[ReplayedRun], times: JobTimes, rounds_s: Sequence[tuple[float, Sequence[int]]]
) -> float | None:
    """Compute the latency after a job under a driver whose jobs wait for power, not for GPUs.

    It has three parts: until Slurm registers the end of a job, until the driver polls (half the
    interval between polls), and until Slurm executes the driver's start. None when one of them was
    not observed.

    `rounds_s` has the times of the driver's polls and the jobs started then.
    """
    noticed_s = [times.ended_s[each.slurm_job] - each.end_s for each in ran
                 if each.slurm_job in times.ended_s]  # fmt: skip
    carried_s = []
    for polled_s, jobs in rounds_s:
        for job in jobs:
            waited_s = times.started_s.get(job, -math.inf) - polled_s
            if 0.0 <= waited_s < LONGEST_S:
                carried_s.append(waited_s)
    if len(rounds_s) < MANY or not noticed_s or not carried_s:
        return None
    between_s = (rounds_s[-1][0] - rounds_s[0][0]) / (len(rounds_s) - 1)
    return max(0.0, fmean(noticed_s)) + between_s / 2 + fmean(carried_s)


def _least_of_each_pass(turns: list[tuple[float, float]]) -> list[float]:
    """Return the shortest wait of each scheduling pass.

    Of the jobs started in one pass, only one waited for the GPUs that became free last; the others
    waited longer, for that pass or for their turn.
    """
    found: list[float] = []
    last_s = -math.inf
    for decided_s, waited_s in sorted(turns):
        if decided_s - last_s > PASS_S:
            found.append(waited_s)
        else:
            found[-1] = min(found[-1], waited_s)
        last_s = decided_s
    return found


def read_times(slurm: Callable[..., str]) -> JobTimes:
    """Read from Slurm when it decided to start each job and when it registered its end."""
    offset_s = time.time() - time.monotonic()
    log = _log_file(slurm)
    if log is not None:
        started: dict[int, float] = {}
        ended: dict[int, float] = {}
        backfilled: set[int] = set()
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                for pattern, into in ((STARTED, started), (ENDED, ended)):
                    match = pattern.match(line)
                    if match:
                        at_s = datetime.fromisoformat(match[1]).timestamp()
                        into[int(match[3])] = at_s - offset_s
                        if match[2]:
                            backfilled.add(int(match[3]))
        if started:
            source = "log of slurmctld, milliseconds"
            return JobTimes(started, ended, source, frozenset(backfilled))
    found: dict[int, float] = {}
    for line in slurm("squeue", "-h", "-t", "all", "-o", "%A %S").splitlines():
        number, _, start = line.partition(" ")
        if start[:1].isdigit():
            found[int(number)] = datetime.fromisoformat(start).timestamp() + 0.5 - offset_s
    return JobTimes(found, {}, "squeue, whole seconds")


def _log_file(slurm: Callable[..., str]) -> Path | None:
    """Return the log file of slurmctld, if it is on this machine and readable."""
    found = re.search(r"^SlurmctldLogFile\s*= (.*)$", slurm("scontrol", "show", "config"), re.M)
    path = Path(found[1].strip()) if found else None
    return path if path is not None and os.access(path, os.R_OK) else None
