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

from wattloop.schedule.slurm.replay.notes import Ran

__all__ = ["Latency", "latency_of", "read_starts"]

# sched: Allocate JobId=5 NodeList=n1 ... | sched/backfill: _start_job: Started JobId=7 in all on n1
STARTED = re.compile(
    r"^\[(\S+?)\] (?:sched: Allocate|sched/backfill: _start_job: Started) JobId=(\d+)"
)
PASS_S = 0.05
"""Starts that are closer than this were decided together."""


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
    started_s: Mapping[int, float],
    source: str,
) -> Latency:
    """Latencies of a run.

    Args:
        ran: what jobs noted.
        submitted_s: job number -> when it was submitted.
        started_s: Slurm's job number -> when Slurm decided to start it, last.
        source: of `started_s`.
    """
    starts: list[float] = []
    turns: list[tuple[float, float]] = []
    free_s: dict[tuple[str, int], float] = {}
    for each in sorted(ran, key=lambda each: each.begin_s):
        decided_s = started_s.get(each.slurm_job)
        if decided_s is not None and decided_s <= each.begin_s:
            starts.append(each.begin_s - decided_s)
            left_s = max((free_s.get(gpu, 0.0) for gpu in each.gpus), default=0.0)
            if submitted_s.get(each.job, 0.0) < left_s <= decided_s:
                turns.append((decided_s, decided_s - left_s))
        for gpu in each.gpus:
            free_s[gpu] = max(free_s.get(gpu, 0.0), each.end_s)
    ends = _least_of_each_pass(turns)
    return Latency(
        start_s=fmean(starts) if starts else 0.0,
        end_s=fmean(ends) if ends else None,
        starts=len(starts),
        ends=len(ends),
        source=source,
    )


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


def read_starts(slurm: Callable[..., str]) -> tuple[dict[int, float], str]:
    """When Slurm decided to start each job, on the clock of `time.monotonic`; and who says so."""
    offset_s = time.time() - time.monotonic()
    log = _log_file(slurm)
    if log is not None:
        found: dict[int, float] = {}
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                match = STARTED.match(line)
                if match:
                    at_s = datetime.fromisoformat(match[1]).timestamp()
                    found[int(match[2])] = at_s - offset_s
        if found:
            return found, "log of slurmctld, milliseconds"
    found = {}
    for line in slurm("squeue", "-h", "-t", "all", "-o", "%A %S").splitlines():
        number, _, start = line.partition(" ")
        if start[:1].isdigit():
            found[int(number)] = datetime.fromisoformat(start).timestamp() + 0.5 - offset_s
    return found, "squeue, whole seconds"


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
