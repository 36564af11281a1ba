"""Jobs of a second or a few through a real Slurm, with and without a driver, in turns.

Part of `slurm_driver.py`. Slurm's own throughput differs by a tenth from run to run, so there are
many pairs, every second one the other way round, and the median has an interval.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from bars import Bar, Table
from support.slurm_lab import SlurmLab
from wattloop.schedule.slurm.replay.latency import JobTimes, read_times

__all__ = ["throughput"]

GPUS = 16
SURE = 0.9


class _Run(NamedTuple):
    """One batch of jobs.

    Attributes:
        makespan_s: from the first submission until no job is left.
        first_s: from the first submission to the first start.
        idle_gpu_s: of free GPUs between the first and the last start.
    """

    makespan_s: float
    first_s: float
    idle_gpu_s: float


def throughput(
    lab: SlurmLab,
    driving: Callable[[], AbstractContextManager[object]],
    *,
    pairs: int,
    jobs: int,
    seconds: int,
) -> tuple[Table, Bar]:
    """Measure the cost of a first-in-first-out driver.

    Args:
        lab: Slurm.
        driving: starts a driver.
        pairs: of runs, one with and one without.
        jobs: of each run.
        seconds: that each of them sleeps.
    """
    stock: list[_Run] = []
    driven: list[_Run] = []
    for number in range(pairs):
        for is_driven in (False, True) if number % 2 == 0 else (True, False):
            if is_driven:
                with driving():
                    driven.append(_run(lab, jobs, seconds))
            else:
                stock.append(_run(lab, jobs, seconds))
    losses = [
        100 * (mine.makespan_s / its.makespan_s - 1)
        for its, mine in zip(stock, driven, strict=True)
    ]
    rows: list[tuple[str, ...]] = [
        (
            f"{number}, {'stock' if number % 2 else 'driven'} first",
            f"{its.makespan_s:.2f}", f"{mine.makespan_s:.2f}", f"{loss:+.1f}",
            f"{its.first_s:.2f}", f"{mine.first_s:.2f}",
            f"{its.idle_gpu_s:.0f}", f"{mine.idle_gpu_s:.0f}",
        )
        for number, (its, mine, loss) in enumerate(zip(stock, driven, losses, strict=True), 1)
    ]  # fmt: skip
    rows.append(("median", *_medians(stock, driven, losses)))
    what = f"{jobs} jobs of {seconds} s on {GPUS} GPUs"
    header = (
        "pair", "stock s", "driven s", "lost %", "first start after s: stock", "driven",
        "GPU s free while jobs wait: stock", "driven",
    )  # fmt: skip
    note = f"median of {pairs} pairs; {_sure(losses)}; {_together(stock, driven)}"
    name = f"throughput lost to the driver, {what}"
    return Table(what, header, rows), Bar(name, statistics.median(losses), "%", 5.0, note=note)


def _run(lab: SlurmLab, jobs: int, seconds: int) -> _Run:
    begun_s = time.monotonic()
    numbers = [lab.submit(f"sleep {seconds}", "--gres=gpu:1", "--time=1") for _ in range(jobs)]
    lab.wait_for_jobs(300)
    makespan_s = time.monotonic() - begun_s
    times = read_times(lab.run)
    first_s = min(times.started_s[number] for number in numbers)
    return _Run(makespan_s, first_s - begun_s, _idle_gpu_s(times, numbers))


def _idle_gpu_s(times: JobTimes, numbers: Sequence[int]) -> float:
    starts = sorted(times.started_s[number] for number in numbers)
    last_s = starts[-1]
    busy_s = sum(min(times.ended_s[number], last_s) - times.started_s[number] for number in numbers)
    return GPUS * (last_s - starts[0]) - busy_s


def _medians(stock: Sequence[_Run], driven: Sequence[_Run], losses: Sequence[float]) -> list[str]:
    its = [statistics.median(values) for values in zip(*stock, strict=True)]
    mine = [statistics.median(values) for values in zip(*driven, strict=True)]
    return [
        f"{its[0]:.2f}", f"{mine[0]:.2f}", f"{statistics.median(losses):+.1f}",
        f"{its[1]:.2f}", f"{mine[1]:.2f}", f"{its[2]:.0f}", f"{mine[2]:.0f}",
    ]  # fmt: skip


def _together(stock: Sequence[_Run], driven: Sequence[_Run]) -> str:
    found = []
    for name, middle in (("medians", statistics.median), ("means", statistics.fmean)):
        ratio = middle([r.makespan_s for r in driven]) / middle([r.makespan_s for r in stock])
        found.append(f"{name} of all driven and all stock runs differ by {100 * (ratio - 1):+.1f}%")
    return ", ".join(found)


def _sure(losses: Sequence[float]) -> str:
    """Return the interval that has the true median with a chance of 90%, by order statistics."""
    ordered, count = sorted(losses), len(losses)
    cut, chance = 0, 1.0
    # P(the true median is outside the cut-th from either end) = 2 * sum of C(n, k) / 2^n, k < cut
    while cut < count // 2:
        chance -= 2 * math.comb(count, cut) / 2**count
        if chance < SURE:
            break
        cut += 1
    if cut == 0:
        return f"{count} pairs are too few to say how sure that is"
    return (
        f"with a chance of {SURE:.0%} that of many more lies between {ordered[cut - 1]:+.1f} and "
        f"{ordered[-cut]:+.1f}%"
    )
