"""Result of a replay: records of jobs, power samples, figures and their differences."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from wattloop.core.clock import RealClock
from wattloop.core.process import BackgroundThread
from wattloop.core.records import Gap
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.meter import VirtualEnergy

PERIOD_S = 0.1
"""Update interval of the GPUs' energy counters: ten times a second."""
RAMPS_S = (0.0, 0.001, 0.003, 0.006, 0.012, 0.025)
"""Time that GPUs need to reach their power after a change; their changes may overlap."""


class GpuPowerSample(NamedTuple):
    """Mean power of all GPUs since the previous sample."""

    at_s: float
    power_w: float


class PowerWatch(BackgroundThread):
    """Background thread that reads the energy counters of all GPUs ten times a second."""

    def __init__(self, cards: Mapping[str, Sequence[VirtualGpu]]) -> None:
        super().__init__("power")
        clock = RealClock()
        self._meters = [VirtualEnergy(gpus, clock) for gpus in cards.values()]
        self._readings: list[tuple[float, float]] = []
        self.gaps = 0

    def __enter__(self) -> Self:
        self._read()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for meter in self._meters:
            meter.close()

    @property
    def power_now_w(self) -> float:
        samples = self.samples()
        return samples[-1].power_w if samples else 0.0

    def samples(self, begin_s: float = 0.0, end_s: float = float("inf")) -> list[GpuPowerSample]:
        """Return power over time, on the clock of `time.monotonic`."""
        between = [each for each in tuple(self._readings) if begin_s <= each[0] <= end_s]
        return [
            GpuPowerSample(after_s, (after_j - before_j) / (after_s - before_s))
            for (before_s, before_j), (after_s, after_j) in pairwise(between)
            if after_s > before_s
        ]

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            next_s = max(next_s + PERIOD_S, time.monotonic())
            self._stop.wait(next_s - time.monotonic())
            self._read()

    def _read(self) -> None:
        # A counter shows its value at the last tenth of a second, at the same ticks on all nodes.
        tick_s = int(time.monotonic() / PERIOD_S) * PERIOD_S
        values = [value for meter in self._meters for value in meter.read()]
        if int(time.monotonic() / PERIOD_S) * PERIOD_S != tick_s:
            self.gaps += 1
            return
        joules = [value for value in values if not isinstance(value, Gap)]
        if len(joules) < len(values):
            self.gaps += 1
        elif not self._readings or tick_s > self._readings[-1][0]:
            self._readings.append((tick_s, sum(joules)))


def exact_peak_w(cards: Mapping[str, Sequence[VirtualGpu]], begin_s: float, end_s: float) -> float:
    """Return the peak power of all GPUs together, evaluated after every change.

    Virtual GPUs record their whole history, so peaks between two samples are included.
    """
    gpus = [gpu for each in cards.values() for gpu in each]
    times_s = {begin_s, end_s}
    for gpu in gpus:
        changes = gpu.changes_s(begin_s, end_s)
        times_s.update(at_s + ramp_s for at_s in changes for ramp_s in RAMPS_S)
    return max(sum(gpu.power_w(at_s) for gpu in gpus) for at_s in times_s if at_s <= end_s)


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """One run of a job, until its end or its preemption.

    Attributes:
        gpus: (node, GPU) of all its GPUs.
        begin_s, end_s: start and end of its work, on the clock of `time.monotonic`.
        done: share of its work that is completed.
    """

    job: int
    slurm_job: int
    gpus: tuple[tuple[str, int], ...]
    begin_s: float
    end_s: float
    done: float


def read_records(folder: Path) -> list[ReplayedRun]:
    """Read the records of all jobs, ordered by start.

    A job on several nodes is one record, with the duration of its longest part.
    """
    parts: dict[tuple[int, int], list[ReplayedRun]] = defaultdict(list)
    for path in (folder / "notes").iterdir():
        name, _, node = path.name.partition(".")
        for turn, line in enumerate(path.read_text("utf-8").splitlines()):
            parts[int(name), turn].append(_ran(int(name), node, line))
    return sorted(map(_whole, parts.values()), key=lambda ran: ran.begin_s)


def _ran(job: int, node: str, line: str) -> ReplayedRun:
    data = json.loads(line)
    gpus = tuple((node, int(gpu)) for gpu in data["gpus"])
    return ReplayedRun(job, data["slurm_job"], gpus, data["begin_s"], data["end_s"], data["done"])


def _whole(parts: list[ReplayedRun]) -> ReplayedRun:
    first = parts[0]
    gpus = tuple(sorted(gpu for part in parts for gpu in part.gpus))
    begin_s, end_s = min(p.begin_s for p in parts), max(p.end_s for p in parts)
    return ReplayedRun(first.job, first.slurm_job, gpus, begin_s, end_s, min(p.done for p in parts))


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Figures of one policy. Times and energy are the scenario's (real ones times the speedup).

    Attributes:
        jobs, done: number of jobs, and of finished jobs.
        makespan_s: from the first submission to the last end.
        throughput_per_h: finished jobs per hour of the makespan.
        jct_mean_s: mean job completion time, from submission to end.
        wait_mean_s: mean time from submission to the first start.
        gpu_energy_j: energy of all GPUs over the makespan, idle ones included; simulated power.
        peak_w: peak power of all GPUs together; measured runs use the samples.
        over_budget_s: time above the budget; None without one.
        deadlines, misses: number of jobs with a deadline, and of missed deadlines.
    """

    jobs: int
    done: int
    makespan_s: float
    throughput_per_h: float
    jct_mean_s: float
    wait_mean_s: float
    gpu_energy_j: float
    peak_w: float
    over_budget_s: float | None
    deadlines: int
    misses: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def real_figures(
    plan: ReplayPlan,
    ran: Sequence[ReplayedRun],
    submitted_s: Mapping[int, float],
    samples: Sequence[GpuPowerSample],
    energy_j: float,
) -> ReplayFigures:
    """Compute the figures of a run on Slurm.

    `energy_j` covers all GPUs from the first submission to the last end.
    """
    begin_s = min(submitted_s.values())
    ends = {each.job: each.end_s for each in ran if each.done >= 1.0}
    begins: dict[int, float] = {}
    for each in ran:
        begins[each.job] = min(begins.get(each.job, math.inf), each.begin_s)
    first_s = np.array([begins.get(job, math.nan) for job in submitted_s])
    due = np.flatnonzero(np.isfinite(plan.asked.deadline_s))
    misses = 0
    for job in due.tolist():
        late_s = float(plan.asked.deadline_s[job] - plan.asked.arrival_s[job])
        misses += ends.get(job, math.inf) > submitted_s[job] + late_s
    return _figures(
        plan,
        jobs=len(submitted_s),
        jct_s=[end_s - submitted_s[job] for job, end_s in ends.items()],
        wait_s=float(np.nanmean(first_s - np.array(list(submitted_s.values())))),
        makespan_s=max(ends.values()) - begin_s,
        energy_j=energy_j,
        peak_w=max(sample.power_w for sample in samples),
        over_budget_s=_over_budget_s(plan, samples, begin_s),
        due=(len(due), misses),
    )


def simulated_figures(plan: ReplayPlan, result: SimulationResult) -> ReplayFigures:
    """Compute the figures of a simulation of the same jobs."""
    done = result.is_done
    jobs = result.jobs
    due = np.isfinite(jobs.deadline_s)
    missed = due & ~(result.finished_s <= jobs.deadline_s)
    budget = None if math.isinf(max(plan.settings.budget_w.values)) else result.over_budget_s
    wait_s = result.started_s - jobs.arrival_s + plan.settings.start_latency_s
    return _figures(
        plan,
        jobs=len(jobs),
        jct_s=(result.finished_s - jobs.arrival_s)[done].tolist(),
        wait_s=float(np.nanmean(wait_s)),
        makespan_s=float(np.nanmax(result.finished_s) - jobs.arrival_s[0]),
        energy_j=result.active_j + result.idle_j,
        peak_w=result.peak_w,
        over_budget_s=budget,
        due=(int(due.sum()), int(missed.sum())),
    )


def difference(real: float, simulated: float) -> float:
    """Return the relative difference of the simulated figure from the real one."""
    if real == simulated:
        return 0.0
    return simulated / real - 1.0 if real else math.inf


def _over_budget_s(
    plan: ReplayPlan, samples: Sequence[GpuPowerSample], begin_s: float
) -> float | None:
    budget = plan.settings.budget_w
    if math.isinf(max(budget.values)):
        return None
    found, before_s = 0.0, begin_s
    for at_s, power_w in samples:
        if power_w > budget.at(max(0.0, at_s - begin_s)):
            found += at_s - before_s
        before_s = at_s
    return found


def _figures(
    plan: ReplayPlan,
    *,
    jobs: int,
    jct_s: Sequence[float],
    wait_s: float,
    makespan_s: float,
    energy_j: float,
    peak_w: float,
    over_budget_s: float | None,
    due: tuple[int, int],
) -> ReplayFigures:
    speedup = plan.speedup
    return ReplayFigures(
        jobs=jobs,
        done=len(jct_s),
        makespan_s=makespan_s * speedup,
        throughput_per_h=len(jct_s) / (makespan_s * speedup) * 3_600.0 if makespan_s else 0.0,
        jct_mean_s=float(np.mean(jct_s)) * speedup if jct_s else math.nan,
        wait_mean_s=wait_s * speedup,
        gpu_energy_j=energy_j * speedup,
        peak_w=peak_w,
        over_budget_s=None if over_budget_s is None else over_budget_s * speedup,
        deadlines=due[0],
        misses=due[1],
    )
