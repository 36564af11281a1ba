"""Metrics of one simulation, and paired comparison of two policies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.repeats import Estimate, estimate
from wattloop.schedule.engine.result import SimulationResult


def jain(values: NDArray[np.float64]) -> float | None:
    """Compute Jain's index: 1 for equal values, 1/n for a single nonzero one; None if empty.

    J = (sum x)^2 / (n sum x^2)
    """
    if not len(values):
        return None
    squares = float(np.sum(values**2))
    if squares == 0.0:
        return 1.0
    return float(np.sum(values)) ** 2 / (len(values) * squares)


JOULES_PER_KWH = 3.6e6
SECONDS_PER_H = 3_600.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one policy, scenario and seed. Energy and power are of the whole cluster.

    Attributes:
        jobs, jobs_done, jobs_unfinished, jobs_never: arrived; finished; running or waiting at the
            end; unable to run.
        makespan_s: from the first arrival to the last end of a job; None when none finished.
        jct_*_s: job completion time, arrival to end, of finished jobs; None when none finished.
        age_mean_s: the same with unfinished jobs counted up to the end of the simulation, so that
            a policy does not gain by postponing long jobs.
        queue_mean_s, queue_p95_s: arrival to first start, of jobs that started.
        energy_kwh: total energy; `active`, `idle`, `host` and `network` are its parts.
        idle_share: share of the energy drawn by idle GPUs.
        edp_kwh_h: energy times mean completion time.
        wasted_kwh: energy of lost work; part of `active_kwh`.
        miss_rate: share of missed deadlines, of those that were due or met; None without any.
        deadlines, misses: number of those deadlines, and of missed ones.
        jain_jct: Jain's index of users' mean completion times.
        jain_share: Jain's index of users' GPU seconds.
        preemptions, interruptions: stops by the policy, and by failed nodes.
        utilisation: GPU type -> share of its GPU seconds with a job, failures left out.
        carbon_kg, cost: None without a carbon intensity or price of electricity.
        resizes: moves of running jobs to other GPUs or another batch.
        asleep_share: share of all GPU seconds in power-down states; None if the policy uses none.
        event_hash: hash of all events, equal for equal simulations.
    """

    jobs: int
    jobs_done: int
    jobs_unfinished: int
    jobs_never: int
    throughput_per_h: float
    makespan_s: float | None
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p95_s: float | None
    jct_p99_s: float | None
    age_mean_s: float | None
    queue_mean_s: float | None
    queue_p95_s: float | None
    energy_kwh: float
    active_kwh: float
    idle_kwh: float
    host_kwh: float
    network_kwh: float
    energy_per_job_kwh: float | None
    idle_share: float | None
    edp_kwh_h: float | None
    wasted_kwh: float
    miss_rate: float | None
    deadlines: int
    misses: int
    peak_power_w: float
    mean_power_w: float | None
    over_budget_s: float
    over_budget_kwh: float
    jain_jct: float | None
    jain_share: float | None
    preemptions: int
    interruptions: int
    utilisation: Mapping[str, float]
    carbon_kg: float | None
    cost: float | None
    refusals: int
    event_hash: str
    wall_s: float
    resizes: int = 0
    asleep_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def metrics_of(result: SimulationResult) -> Metrics:
    jobs = result.jobs
    came = jobs.arrival_s <= result.end_s
    done = result.is_done
    never = np.zeros(len(jobs), dtype=bool)
    never[list(result.never)] = True
    jct_s = (result.finished_s - jobs.arrival_s)[done]
    ages_s = np.where(done, result.finished_s, result.end_s) - jobs.arrival_s
    waits_s = (result.started_s - jobs.arrival_s)[np.isfinite(result.started_s)]
    deadlines, misses = _deadlines(result, came & ~never)
    total_kwh = result.total_j / JOULES_PER_KWH
    jct_mean_s = _mean(jct_s)
    return Metrics(
        jobs=int(came.sum()),
        jobs_done=int(done.sum()),
        jobs_unfinished=int((came & ~done & ~never).sum()),
        jobs_never=len(result.never),
        throughput_per_h=float(done.sum()) / result.end_s * SECONDS_PER_H if result.end_s else 0.0,
        makespan_s=float(np.nanmax(result.finished_s) - jobs.arrival_s[0]) if done.any() else None,
        jct_mean_s=jct_mean_s,
        jct_p50_s=_quantile(jct_s, 0.5),
        jct_p95_s=_quantile(jct_s, 0.95),
        jct_p99_s=_quantile(jct_s, 0.99),
        age_mean_s=_mean(ages_s[came & ~never]),
        queue_mean_s=_mean(waits_s),
        queue_p95_s=_quantile(waits_s, 0.95),
        energy_kwh=total_kwh,
        active_kwh=result.active_j / JOULES_PER_KWH,
        idle_kwh=result.idle_j / JOULES_PER_KWH,
        host_kwh=result.host_j / JOULES_PER_KWH,
        network_kwh=result.network_j / JOULES_PER_KWH,
        energy_per_job_kwh=total_kwh / int(done.sum()) if done.any() else None,
        idle_share=result.idle_j / result.total_j if result.total_j else None,
        edp_kwh_h=None if jct_mean_s is None else total_kwh * jct_mean_s / SECONDS_PER_H,
        wasted_kwh=float(result.wasted_j.sum()) / JOULES_PER_KWH,
        miss_rate=misses / deadlines if deadlines else None,
        deadlines=deadlines,
        misses=misses,
        peak_power_w=result.peak_w,
        mean_power_w=result.total_j / result.end_s if result.end_s else None,
        over_budget_s=result.over_budget_s,
        over_budget_kwh=result.over_budget_j / JOULES_PER_KWH,
        jain_jct=jain(_by_user(jobs.user[done], jct_s, mean=True)),
        jain_share=jain(_by_user(jobs.user[came], result.gpu_s[came], mean=False)),
        preemptions=int(result.preemptions.sum()),
        interruptions=int(result.interruptions.sum()),
        utilisation=_utilisation(result),
        carbon_kg=None if result.carbon_g is None else result.carbon_g / 1_000,
        cost=result.cost,
        refusals=result.refusals,
        event_hash=result.event_hash,
        wall_s=result.wall_s,
        resizes=int(result.resizes.sum()),
        asleep_share=sum(result.asleep_gpu_s) / (result.cluster.gpus * result.end_s)
        if result.asleep_gpu_s and result.end_s
        else None,
    )


def _deadlines(result: SimulationResult, counted: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the number of decided deadlines, and of missed ones."""
    urgent = result.jobs.urgent & counted
    late = result.finished_s > result.jobs.deadline_s
    overdue = ~result.is_done & (result.jobs.deadline_s <= result.end_s)
    decided = urgent & (result.is_done | overdue)
    return int(decided.sum()), int((urgent & (late | overdue)).sum())


def _by_user(user: NDArray[np.int64], values: Floats, *, mean: bool) -> Floats:
    """Return the sum or mean of the values of each user with any."""
    counts = np.bincount(user)
    sums: Floats = np.bincount(user, weights=values)[counts > 0].astype(float)
    return sums / counts[counts > 0] if mean else sums


def _utilisation(result: SimulationResult) -> dict[str, float]:
    cluster = result.cluster
    columns = (cluster.types, cluster.gpus_by_type, result.busy_gpu_s, result.down_gpu_s)
    found = {}
    for kind, gpus, busy_gpu_s, down_gpu_s in zip(*columns, strict=True):
        there_gpu_s = gpus * result.end_s - down_gpu_s
        if there_gpu_s > 0:
            found[kind.name] = busy_gpu_s / there_gpu_s
    return found


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantile(values: Floats, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


LEAST_PAIRS = 6
"""Fewest pairs for a p-value: with n pairs p is at least 2 / 2^n, above 0.05 for n = 5."""
EXACT_UP_TO = 14
DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference B - A over paired seeds.

    Attributes:
        mean, half_width: mean difference and its 95% t-interval; None for a single pair.
        relative, relative_half_width: the same as shares of the mean of A; None if that is not
            above 0, as the cost may be where prices fall below 0.
        p_value: two-sided sign-flip permutation test; None for less than `LEAST_PAIRS`.
    """

    mean: float
    half_width: float | None
    relative: float | None
    relative_half_width: float | None
    p_value: float | None
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float | None]) -> Estimate | None:
    """Compute mean and standard deviation over seeds; seeds without a value are left out."""
    return estimate([value for value in values if value is not None])


def compare(a: Sequence[float | None], b: Sequence[float | None]) -> Difference | None:
    """Compare B with A by seed; None when they have no common seed."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        return None
    differences = np.array([y - x for x, y in pairs])
    found = estimate(differences.tolist())
    base = float(np.mean([x for x, _ in pairs]))
    assert found is not None
    half = found.half_width
    return Difference(
        mean=found.mean,
        half_width=half,
        relative=found.mean / base if base > 0 else None,
        relative_half_width=None if half is None or base <= 0 else half / base,
        p_value=_p_value(differences) if len(pairs) >= LEAST_PAIRS else None,
        pairs=len(pairs),
    )


def _p_value(differences: NDArray[np.float64]) -> float:
    """Return the share of random sign flips with a mean difference at least as large.

    Uses all sign patterns if there are few enough, else a fixed sample of them.
    """
    n = len(differences)
    if n <= EXACT_UP_TO:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        signs = 1.0 - 2.0 * bits
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, n))
        signs[0] = 1.0  # include the observed pattern
    sums = np.abs(signs @ differences)
    seen = abs(float(differences.sum()))
    return float(np.mean(sums >= seen * (1 - 1e-12)))
