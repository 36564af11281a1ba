"""Four ways to keep Slurm from starting jobs by itself, compared on a real Slurm.

Part of `slurm_driver.py`. Each is kept up once a second, as a driver would, and then left alone, as
a driver that was killed does.
"""

import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bars import Table
from support.slurm_lab import SlurmLab

__all__ = ["gates_compared"]

LEASE_S = 10
NEWCOMERS = 16
PATIENCE_S = 45.0
RESERVATION = "ReservationName=compared"
FLAGS = "Flags=FLEX,IGNORE_JOBS,NO_HOLD_JOBS_AFTER,OVERLAP"


class _Way(NamedTuple):
    name: str
    keep: Callable[[SlurmLab, list[str]], None]
    undo: Callable[[SlurmLab], None]


def gates_compared(lab: SlurmLab, waiting: int) -> Table:
    """Table of the cost of each, the jobs it lets start, and its leftovers."""
    rows = [_compared(lab, way, waiting) for way in WAYS]
    header = (
        "way", f"ms to keep {waiting} jobs waiting", "requests for that",
        f"of {NEWCOMERS} new jobs, began unasked", "left alone: Slurm goes on after s",
        "jobs left held",
    )  # fmt: skip
    text = (
        f"Each is kept up once a second. `StartTime` and the reservation end {LEASE_S} s after "
        "they were last kept up; Slurm then starts jobs at its next look at the queue. `never` is "
        f"not within {PATIENCE_S:g} s."
    )
    return Table("Ways of steering", header, rows, text)


def _compared(lab: SlurmLab, way: _Way, waiting: int) -> tuple[str, ...]:
    way.keep(lab, [])
    stop, kept = threading.Event(), threading.Event()

    def keep_up() -> None:
        while not stop.is_set():
            way.keep(lab, _pending(lab))
            kept.set()
            stop.wait(1.0)

    thread = threading.Thread(target=keep_up)
    thread.start()
    kept.wait()
    newcomers = []
    for _ in range(NEWCOMERS):
        newcomers.append(lab.submit("sleep 600", "--gres=gpu:1", "--time=20"))
        time.sleep(0.23)
    time.sleep(2.0)
    began = _began(lab)
    for _ in range(waiting - NEWCOMERS):
        lab.submit("sleep 600", "--gres=gpu:1", "--time=20")
    stop.set()
    thread.join()
    times_s = []
    for _ in range(5):
        pending = _pending(lab)
        begun_s = time.perf_counter()
        way.keep(lab, pending)
        times_s.append(time.perf_counter() - begun_s)
    requests = "1" if way.name == "reservation" else str(len(pending))
    lab.run("scancel", "--state=RUNNING", "--user=root")
    way.keep(lab, _pending(lab))
    goes_on = _goes_on_s(lab)
    held = lab.run("squeue", "-h", "-t", "PD", "-o", "%Q").split().count("0")
    way.undo(lab)
    lab.run("scancel", "--user=root")
    lab.wait_for_jobs()
    shown = "never" if goes_on is None else f"{goes_on:.1f}"
    milliseconds = f"{1e3 * statistics.median(times_s):.0f}"
    return way.name, milliseconds, requests, str(began), shown, str(held)


def _goes_on_s(lab: SlurmLab) -> float | None:
    """Return the time until Slurm starts a job after the gate's last renewal; None if it does
    not.
    """
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < PATIENCE_S:
        if _began(lab):
            return time.monotonic() - begun_s
        time.sleep(0.2)
    return None


def _began(lab: SlurmLab) -> int:
    return len(lab.run("squeue", "-h", "-t", "R", "-o", "%i").split())


def _pending(lab: SlurmLab) -> list[str]:
    return lab.run("squeue", "-h", "-t", "PD", "-o", "%i").split()


def _reserve(lab: SlurmLab, jobs: list[str]) -> None:
    del jobs
    end = f"EndTime=now+{LEASE_S}seconds"
    if not lab.run("scontrol", "update", RESERVATION, end, check=False):
        nodes = f"Nodes={','.join(lab.node_names)}"
        words = (RESERVATION, "StartTime=now", end, nodes, "Users=root", FLAGS)
        lab.run("scontrol", "create", "reservation", *words)


def _release(lab: SlurmLab) -> None:
    lab.run("scontrol", "delete", RESERVATION, check=False)


def _defer(lab: SlurmLab, jobs: list[str]) -> None:
    if jobs:
        each = f"JobId={','.join(jobs)}"
        lab.run("scontrol", "update", each, f"StartTime=now+{LEASE_S}", check=False)


def _hold(lab: SlurmLab, jobs: list[str]) -> None:
    if jobs:
        lab.run("scontrol", "hold", ",".join(jobs), check=False)


def _rank(lab: SlurmLab, jobs: list[str]) -> None:
    if jobs:
        lab.run("scontrol", "update", f"JobId={','.join(jobs)}", "Priority=1", check=False)


def _nothing(lab: SlurmLab) -> None:
    del lab


WAYS = (
    _Way("reservation", _reserve, _release),
    _Way("StartTime, put off again and again", _defer, _nothing),
    _Way("hold", _hold, _nothing),
    _Way("priority only", _rank, _nothing),
)
