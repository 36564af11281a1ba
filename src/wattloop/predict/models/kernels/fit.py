"""Fit of the kernels model to measured training steps: time, power and the host."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.predict.models.kernels.constants import KernelConstants, Values
from wattloop.predict.models.kernels.kernel_cost import MEMORY, WORK, operation_times, scale_scopes
from wattloop.predict.models.kernels.operation_table import Floats
from wattloop.predict.models.kernels.step import (
    Prepared,
    StepProfile,
    all_pairs,
    phase_of,
    profile_of,
    step_results,
    voltage_of,
)
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

STEP = 1e-4


def minimise(
    residuals: Callable[[Floats], Floats],
    start: Floats,
    prior: Floats,
    *,
    soft: float = 0.1,
    rounds: int = 60,
) -> Floats:
    """Minimise `residuals` with a prior of width `prior` around `start`.

    Levenberg-Marquardt on the soft-L1 loss, 2 s^2 (sqrt(1 + (r/s)^2) - 1): residuals beyond
    `soft` count linearly. `prior` is the standard deviation, in units of the parameters, that a
    departure from `start` may have where residuals have one of `soft`.
    """
    x = start.copy()
    damping = 1e-3
    pull = soft / prior

    def cost(at: Floats, r: Floats) -> float:
        robust = 2 * soft**2 * (np.sqrt(1 + (r / soft) ** 2) - 1)
        return float(robust.sum() + ((pull * (at - start)) ** 2).sum())

    r = residuals(x)
    best = cost(x, r)
    for _ in range(rounds):
        jacobian = np.stack(
            [(residuals(x + STEP * unit) - r) / STEP for unit in np.eye(len(x))], axis=1
        )
        weight = 1 / np.sqrt(1 + (r / soft) ** 2)
        normal = (jacobian * weight[:, None]).T @ jacobian + np.diag(pull**2)
        gradient = jacobian.T @ (weight * r) + pull**2 * (x - start)
        improved = False
        for _ in range(8):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = x + np.clip(move, -1.0, 1.0)
            trial_r = residuals(trial)
            trial_cost = cost(trial, trial_r)
            if trial_cost < best:
                improved = best - trial_cost > 1e-7 * best
                x, r, best = trial, trial_r, trial_cost
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if not improved:
            break
    return x


# Watts and joules of work from any measured mean power.
#
#     power = idle + static + sum over kinds of work (joules of one x how much) / time
#
# Solved in logarithms, so that constants stay positive and a 100 W row counts like a 700 W one.

PRIOR = 0.5
"""Standard deviation, in logarithms, of a constant around its start."""
SOFT = 0.05
AT_CAP = 0.96
"""Above this share of the cap, the demand may exceed the measured power."""


@dataclass(frozen=True, slots=True)
class PowerSample:
    """Mean power over a time in which some work was done.

    Attributes:
        work: how much of each kind (`work.WORK`).
        seconds: duration.
        power_w: mean power.
        clock_share: clock over the highest.
        cap_w: power limit.
    """

    work: Mapping[str, float]
    seconds: float
    power_w: float
    clock_share: float
    cap_w: float


def with_power(values: Values, draws: Sequence[PowerSample]) -> Values:
    if not draws:
        return values
    work = np.array([[draw.work.get(name, 0.0) for name in WORK] for draw in draws])
    share = np.array([draw.clock_share for draw in draws])
    slows = np.array([name != MEMORY for name in WORK])
    slowed = voltage_of(values).squared(share)[:, None]
    work = work * np.where(slows[None, :], slowed, 1.0)
    seconds = np.array([draw.seconds for draw in draws])
    measured_w = np.array([draw.power_w for draw in draws])
    cap_w = np.array([draw.cap_w for draw in draws])
    used = np.asarray((work > 0).any(axis=0), dtype=np.bool_)
    names = ["power.static_w"] + [
        f"power.{name}" for name, use in zip(WORK, used.tolist(), strict=True) if use
    ]
    rates = work[:, used] / seconds[:, None]
    start = np.log([values.find(name) for name in names])

    def residuals(x: Floats) -> Floats:
        watts = np.exp(x)
        power_w = values["power.idle_w"] + watts[0] + rates @ watts[1:]
        # A cap hides the excess demand: there only too low a prediction is an error.
        hidden = (measured_w > AT_CAP * cap_w) & (power_w > measured_w)
        off = np.log(power_w / measured_w)
        return np.asarray(np.where(hidden, 0.1 * off, off), dtype=np.float64)

    found = minimise(residuals, start, np.full(len(start), PRIOR), soft=SOFT)
    return values.with_changes(
        {name: float(x) for name, x in zip(names, np.exp(found), strict=True)}
    )


# Host part of a fit: cost of calls, and the host speed of each session. Costs are factors on their
# start values: one per phase, then one per cost. A step shows only their sum, and only where the
# GPU waits; a measured dispatch time of a phase (`Point.host_s`) shows it for every step.

PRIOR_ONE = 0.5
"""Standard deviation, in logarithms, of a single cost relative to the others of its phase."""
PRIOR_SHARED = 0.6
"""Standard deviation of the common factor of a phase: hosts differ."""
PRIOR_SPEED = 0.3
"""Standard deviation of another session's speed."""
PHASES = tuple(Phase)
QUEUE = 1000
"""Kernels that the GPU can queue: for more, the host may have waited too."""


@dataclass(frozen=True, slots=True)
class HostFit:
    """Known host costs before the fit, and how often each is paid.

    Attributes:
        names, prices: of the costs.
        counts: how often each point pays each of them.
        phases: which costs are of which phase.
        hosts: sittings whose speed is looked for.
        sitting: which of them each point is of; -1 for none.
        speed: of each point's host, as far as it is known.
        asked: point and phase (numbers) of each dispatch time that was measured.
        asked_s: these times.
    """

    names: list[str]
    prices: Floats
    counts: Floats
    phases: Floats
    hosts: list[str]
    sitting: list[int]
    speed: Floats
    asked: list[tuple[int, int]]
    asked_s: Floats

    @classmethod
    def of(cls, points: Sequence[tuple[MeasuredStep, Prepared]], values: Values) -> "HostFit":
        steps = [p.counts.of_step(p.workload.accumulate) for _, p in points]
        # Costs without a point belong to the same host: they scale with their phase.
        known = {name for name in values.numbers if name.startswith("host.") and phase_of(name)}
        names = sorted(known | {name for step in steps for name in step})
        counts = np.array([[step.get(name, 0.0) for name in names] for step in steps])
        phases = np.array([[float(phase_of(name) is phase) for phase in PHASES] for name in names])
        # A phase without calls costs nothing: no cost can explain its measured time.
        has_phase = counts @ phases > 0
        hosts = sorted({point.host for point, _ in points} - {""})
        measured = [
            (row, column, point.host_s[phase])
            for row, (point, _) in enumerate(points)
            for column, phase in enumerate(PHASES)
            if phase in point.host_s
            and has_phase[row, column]
            and _kernels(point.workload, phase) <= QUEUE
        ]
        return cls(
            names,
            np.array([values.find(name) for name in names]),
            counts,
            phases,
            hosts,
            [hosts.index(point.host) if point.host else -1 for point, _ in points],
            np.array([point.placement.host_speed for point, _ in points]),
            [(row, column) for row, column, _ in measured],
            np.array([seconds for *_, seconds in measured]),
        )

    @property
    def prior(self) -> Floats:
        """Prior of the unknowns: logarithms of phase factors, of each cost, of speeds."""
        return np.concatenate(
            [
                np.full(len(PHASES), PRIOR_SHARED),
                np.full(len(self.names), PRIOR_ONE),
                np.full(len(self.hosts), PRIOR_SPEED),
            ]
        )

    def priced(self, x: Floats) -> Floats:
        shared, own = x[: len(PHASES)], x[len(PHASES) : len(PHASES) + len(self.names)]
        return np.asarray(self.prices * np.exp(self.phases @ shared + own), dtype=np.float64)

    def speeds(self, x: Floats) -> Floats:
        found = np.append(x[len(x) - len(self.hosts) :], 0.0)
        return np.asarray(self.speed * np.exp(found[self.sitting]), dtype=np.float64)

    def seconds(self, x: Floats) -> Floats:
        each = (self.counts * self.priced(x)) @ self.phases
        return np.asarray(each / self.speeds(x)[:, None], dtype=np.float64)

    def asked_residuals(self, seconds: Floats) -> Floats:
        """Return logarithms of `seconds` over measured dispatch times."""
        if not self.asked:
            return np.zeros(0)
        rows, columns = zip(*self.asked, strict=True)
        return np.asarray(np.log(seconds[rows, columns] / self.asked_s), dtype=np.float64)

    def changes(self, x: Floats) -> dict[str, float]:
        return dict(zip(self.names, self.priced(x).tolist(), strict=True))


def _kernels(workload: Workload, phase: Phase) -> int:
    """Return the kernels of a phase; those of a pass as often as there are passes."""
    passes = 1 if phase is Phase.OPTIMIZER else workload.accumulate
    return passes * sum(op.kernels * op.count for op in workload.operations if op.phase is phase)


# Time: a factor per family and precision (with a prior at 1), and the host's costs. Power: watts
# and joules of work. Both in logarithms with a robust loss, alternating, because power decides the
# clock and time decides the power.

TURNS = 2
PRIOR_UNCALIBRATED = 0.5
PRIOR_CALIBRATED = 0.12
"""Standard deviation, in logarithms, of a family's factor before and after microbenchmarks."""
PRIOR_TINY = 1.0
"""Prior of windows over tiny pictures in fp32: cuDNN's choices for them differ from all measured
ones.
"""
ASKED_WEIGHT = 0.5
"""Weight of a measured dispatch time, of which a step has three."""


def fitted_to_points(
    constants: KernelConstants,
    points: Sequence[MeasuredStep],
    prepare: Callable[[Workload], Prepared] = Prepared.of,
) -> KernelConstants:
    rows = [(point, prepare(point.workload)) for point in points]
    start = constants = constants.unfitted()
    calibrated = bool(constants.made.get("microbenchmarks"))
    for _ in range(TURNS):
        constants, rows = _with_time(constants, rows, calibrated=calibrated)
        values = with_power(constants.values, _draws(constants, rows))
        constants = replace(constants, values=values)
    hosts = {point.host: point.placement.host_speed for point, _ in rows if point.host}
    return replace(start.fitted(constants.values), made={**start.made, "hosts": hosts})


_Row = tuple[MeasuredStep, Prepared]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Points with the seconds of each family separately, for fast evaluation."""

    profiles: list[StepProfile]
    names: list[str]
    seconds: Floats
    stretch: Floats
    measured_s: Floats

    @classmethod
    def of(cls, constants: KernelConstants, points: Sequence[_Row]) -> "_Rows":
        values, residuals = constants.values, constants.residuals
        profiles, by_row, stretch = [], [], []
        for point, prepared in points:
            gpu, accumulate = point.placement.gpu, float(point.workload.accumulate)
            table = prepared.table
            times = operation_times(table, values, residuals, gpu)
            total = times.seconds * table.count * np.where(table.optimizer, 1.0, accumulate)
            profile = profile_of(prepared, gpu, values, residuals, times)
            steps = all_pairs([profile], [point.placement])
            share = float(step_results(steps, values).clock_share[0])
            sums: dict[str, float] = {}
            for scope, seconds, slows in zip(
                scale_scopes(table), total.tolist(), times.compute.tolist(), strict=True
            ):
                sums[scope] = sums.get(scope, 0.0) + seconds / (share if slows else 1.0)
            profiles.append(profile)
            by_row.append(sums)
            stretch.append(share)
        names = sorted({name for sums in by_row for name in sums})
        seconds = np.array([[sums.get(name, 0.0) for name in names] for sums in by_row])
        measured = np.array([point.step_s for point, _ in points])
        return cls(profiles, names, seconds, np.array(stretch), measured)


def _with_time(
    constants: KernelConstants, points: Sequence[_Row], *, calibrated: bool
) -> tuple[KernelConstants, list[_Row]]:
    """Return constants, and the points at the speeds of their hosts."""
    rows = _Rows.of(constants, points)
    values = constants.values
    known = np.array([values.find("scale", name) for name in rows.names])
    base = rows.seconds / np.exp(known)
    host = HostFit.of(points, values)
    sharpness = values["host.overlap"]
    prior_s = PRIOR_CALIBRATED if calibrated else PRIOR_UNCALIBRATED
    families = [PRIOR_TINY if name == "tiny.fp32" else prior_s for name in rows.names]
    prior = np.concatenate([families, host.prior])

    def residuals(x: Floats) -> Floats:
        gpu_s = base @ np.exp(x[: len(known)])
        asked_s = host.seconds(x[len(known) :])
        host_s = asked_s.sum(axis=1)
        longer, shorter = np.maximum(gpu_s, host_s), np.minimum(gpu_s, host_s)
        step_s = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
        steps = np.log(step_s / rows.measured_s)
        return np.concatenate([steps, ASKED_WEIGHT * host.asked_residuals(asked_s)])

    found = minimise(residuals, np.zeros(len(prior)), prior)
    changes = {f"scale.{name}": float(x) for name, x in zip(rows.names, found, strict=False)}
    asked = found[len(known) :]
    placed = [
        (replace(point, placement=replace(point.placement, host_speed=speed)), prepared)
        for (point, prepared), speed in zip(points, host.speeds(asked).tolist(), strict=True)
    ]
    return constants.with_values({**changes, **host.changes(asked)}), placed


def _draws(constants: KernelConstants, points: Sequence[_Row]) -> list[PowerSample]:
    """Return the points whose power is known, with the clock that the constants give them."""
    draws = []
    for point, prepared in points:
        if point.power_w is None:
            continue
        gpu, placement = point.placement.gpu, point.placement
        profile = profile_of(prepared, gpu, constants.values, constants.residuals)
        share = step_results(all_pairs([profile], [placement]), constants.values).clock_share[0]
        cap_w = placement.cap_w or gpu.tdp_w
        draws.append(PowerSample(profile.work, point.step_s, point.power_w, float(share), cap_w))
    return draws
