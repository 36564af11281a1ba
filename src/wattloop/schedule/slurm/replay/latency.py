"""What this Slurm took to start a job, and to give the GPUs of one to the next.

Slurm's own times are whole seconds; its controller's log has milliseconds. Where the log cannot be
read, a start is taken in the middle of its second, which is right on average.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wattloop.schedule.slurm.replay.outcome import Ran

# sched: Allocate JobId=5 NodeList=n1 ... | sched/backfill: _start_job: Started JobId=7 in all on n1
STARTED = re.compile(
    r"^\[(\S+?)\] (?:sched: Allocate|sched/(backfill): _start_job: Started) JobId=(\d+)"
)
ENDED = re.compile(r"^\[(\S+?)\] _job_complete: ()JobId=(\d+) done")
MANY = 10
LONGEST_S = 30.0
"""A start that took longer was put off, not slow."""
PASS_S = 0.05
"""Starts that are closer than this were decided together."""


class Times(NamedTuple):
    """Slurm's times of jobs, by its numbers, on the clock of `time.monotonic`.

    Attributes:
        started_s: when it decided to start each, last.
        ended_s: when it knew that each had ended; empty without its log.
        source: who says so.
        backfilled: jobs that its backfill scheduler started; empty without its log.
    """

    started_s: Mapping[int, float]
    ended_s: Mapping[int, float]
    source: str
    backfilled: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Latency:
    """Means over the jobs of a run.

    Attributes:
        start_s: from Slurm's decision to start a job until it worked.
        end_s: from the end of work on a job's GPUs until Slurm gave them to one that had waited
            for them, its next look at the queue included; None when no job had.
        starts, ends: how many of each were seen.
        source: where Slurm's times come from.
    """

    start_s: float
    end_s: float | None
    starts: int
    ends: int
    source: str


def latency_of(
    ran: Sequence[Ran],
    submitted_s: Mapping[int, float],
    times: Times,
    *,
    with_backfilled: bool = True,
) -> Latency:
    """Latencies of a run.

    Args:
        ran: what jobs noted.
        submitted_s: job number -> when it was submitted.
        times: Slurm's.
        with_backfilled: jobs that Slurm backfilled count for `end_s`. Not where the simulator knows
            when Slurm looks for gaps: until then they waited for that.
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


def steered_end_s(
    ran: Sequence[Ran], times: Times, rounds_s: Sequence[tuple[float, Sequence[int]]]
) -> float | None:
    """The latency after a job under a driver that had to wait for power, not for GPUs.

    Three parts: until Slurm knew that a job had ended, until the driver looked (half the time
    between two looks), and until Slurm did what the driver said. None when one of them was not
    seen.

    Args:
        ran: what jobs noted.
        times: Slurm's.
        rounds_s: when the driver looked, and which jobs it started then.
    """
    noticed_s = [times.ended_s[each.slurm_job] - each.end_s for each in ran
                 if each.slurm_job in times.ended_s]  # fmt: skip
    carried_s = []
    for looked_s, jobs in rounds_s:
        for job in jobs:
            waited_s = times.started_s.get(job, -math.inf) - looked_s
            if 0.0 <= waited_s < LONGEST_S:
                carried_s.append(waited_s)
    if len(rounds_s) < MANY or not noticed_s or not carried_s:
        return None
    between_s = (rounds_s[-1][0] - rounds_s[0][0]) / (len(rounds_s) - 1)
    return max(0.0, fmean(noticed_s)) + between_s / 2 + fmean(carried_s)


def _least_of_each_pass(turns: list[tuple[float, float]]) -> list[float]:
    """Of jobs that one look at the queue has started, one had waited for the last GPUs to become
    free; the others had waited for it, or for their turn.
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


def read_times(slurm: Callable[..., str]) -> Times:
    """When Slurm decided to start each job, and when it knew of its end."""
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
            return Times(started, ended, source, frozenset(backfilled))
    found: dict[int, float] = {}
    for line in slurm("squeue", "-h", "-t", "all", "-o", "%A %S").splitlines():
        number, _, start = line.partition(" ")
        if start[:1].isdigit():
            found[int(number)] = datetime.fromisoformat(start).timestamp() + 0.5 - offset_s
    return Times(found, {}, "squeue, whole seconds")


def _log_file(slurm: Callable[..., str]) -> Path | None:
    """The controller's log, if it is on this machine and we may read it."""
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "SlurmctldLogFile":
            path = Path(value.strip())
            try:
                with path.open("rb"):
                    return path
            except OSError:
                return None
    return None
