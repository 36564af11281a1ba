"""Roofline baseline: each operation takes the longer of its FLOP time and its byte time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.predict.models.model import MeasuredStep, Model, peak_flops_s
from wattloop.predict.prediction import Placement, Prediction, Regime
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

Array = NDArray[np.float64]
ZOOMS = 12
POINTS = 25
SHARES = (1e-3, 1.0)


class Intensities:
    """Operations of one step, sorted by the share ratio at which bytes stop to be the bound.

    With c and m the shares of peak and bandwidth, an operation of f and b seconds at the peaks
    takes max(f / c, b / m): FLOPs bind it where b / f <= m / c. Sums over the sorted operations
    make the step's time one look-up for any pair of shares.
    """

    def __init__(self, compute_s: Sequence[float], memory_s: Sequence[float]) -> None:
        f, b = np.asarray(compute_s, float), np.asarray(memory_s, float)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(f > 0, b / f, np.inf)
        order = np.argsort(ratio, kind="stable")
        self._ratio = ratio[order]
        self._compute_below = np.concatenate([[0.0], np.cumsum(f[order])])
        self._memory_above = np.concatenate([np.cumsum(b[order][::-1])[::-1], [0.0]])
        self.compute_s = float(f.sum())
        self.memory_s = float(b.sum())

    def halves(self, compute_share: float, memory_share: float) -> tuple[float, float]:
        """Return seconds of the operations bound by FLOPs, and of those bound by bytes."""
        compute, memory = self._halves(np.float64(compute_share), np.float64(memory_share))
        return float(compute), float(memory)

    def times(self, compute_share: Array, memory_share: Array) -> Array:
        compute, memory = self._halves(compute_share, memory_share)
        return compute + memory

    def _halves(
        self, compute_share: Array | np.float64, memory_share: Array | np.float64
    ) -> tuple[Array, Array]:
        below = np.searchsorted(self._ratio, memory_share / compute_share, side="right")
        return (
            self._compute_below[below] / compute_share,
            self._memory_above[below] / memory_share,
        )


def fit_shares(
    steps: Sequence[Intensities], precisions: Sequence[str], step_s: Sequence[float]
) -> tuple[dict[str, float], float]:
    """Fit shares of the peak by precision and of the bandwidth to the least mean relative error.

    For a given share of bandwidth the precisions are independent, so each has its own search on a
    grid that narrows around the best point.
    """
    kinds = sorted(set(precisions))
    rows = {
        kind: [(steps[i], step_s[i]) for i, of in enumerate(precisions) if of == kind]
        for kind in kinds
    }
    span, spans = SHARES, dict.fromkeys(kinds, SHARES)
    best: tuple[float, float, dict[str, float]] = (np.inf, 1.0, {})
    for _ in range(ZOOMS):
        memory = np.geomspace(*span, POINTS)
        error = np.zeros(POINTS)
        chosen: dict[str, Array] = {}
        for kind in kinds:
            compute = np.geomspace(*spans[kind], POINTS)
            errors = _error(rows[kind], compute[:, None], memory[None, :])
            chosen[kind] = compute[errors.argmin(axis=0)]
            error += errors.min(axis=0)
        at = int(error.argmin())
        if error[at] < best[0]:
            best = (error[at], memory[at], {kind: chosen[kind][at] for kind in kinds})
        span = _closer(span, best[1])
        spans = {kind: _closer(spans[kind], best[2][kind]) for kind in kinds}
    return {kind: float(share) for kind, share in best[2].items()}, float(best[1])


def fit_powers(
    halves: Sequence[tuple[float, float]], power_shares: Sequence[float | None]
) -> tuple[float, float]:
    """Fit two wattages, as shares of the limit, whose time-weighted mean has the least relative
    error.
    """
    known = [
        (compute / (compute + memory), share)
        for (compute, memory), share in zip(halves, power_shares, strict=True)
        if share
    ]
    if not known:
        return 1.0, 1.0
    bound, share = (np.array(column) for column in zip(*known, strict=True))
    computing = moving = SHARES
    best = (np.inf, 1.0, 1.0)
    for _ in range(ZOOMS):
        c = np.geomspace(*computing, POINTS)[:, None, None]
        m = np.geomspace(*moving, POINTS)[None, :, None]
        errors = abs((c * bound + m * (1 - bound)) / share - 1).sum(axis=2)
        row, column = np.unravel_index(errors.argmin(), errors.shape)
        if errors[row, column] < best[0]:
            best = (errors[row, column], c[row, 0, 0], m[0, column, 0])
        computing, moving = _closer(computing, best[1]), _closer(moving, best[2])
    return float(best[1]), float(best[2])


def _error(rows: Sequence[tuple[Intensities, float]], compute: Array, memory: Array) -> Array:
    total = np.zeros(np.broadcast_shapes(compute.shape, memory.shape))
    for step, true_s in rows:
        total += abs(step.times(compute, memory) / true_s - 1)
    return total


def _closer(span: tuple[float, float], at: float) -> tuple[float, float]:
    """A third of the range around the best point, on a logarithmic scale and within SHARES."""
    half = (span[1] / span[0]) ** (1 / 6)
    return max(at / half, SHARES[0]), min(at * half, SHARES[1])


@dataclass(frozen=True, slots=True)
class RooflineConstants:
    """Shares of the published figures that are reached.

    Attributes:
        compute_share: precision of the workload -> share of the peak FLOP/s.
        memory_share: share of the memory's bandwidth.
        compute_power_share, memory_power_share: mean power, as shares of the factory's limit,
            while FLOPs and while bytes are what takes time.
    """

    compute_share: Mapping[str, float]
    memory_share: float
    compute_power_share: float
    memory_power_share: float


class Roofline(Model):
    """step = sum of max(FLOPs / (share x peak), bytes / (share x bandwidth)) over operations.

    Power is the mean of two wattages over the time bound by either. The model has no launches,
    shapes or clocks.
    """

    name: ClassVar[str] = "roofline"

    def __init__(self, constants: RooflineConstants | None = None) -> None:
        self._constants = constants

    @classmethod
    def from_constants(cls, constants: Mapping[str, object]) -> Self:
        try:
            found = RooflineConstants(**constants)  # type: ignore[arg-type] # checked by the next lines
            shares = {str(key): float(share) for key, share in dict(found.compute_share).items()}
            others = [
                float(found.memory_share),
                float(found.compute_power_share),
                float(found.memory_power_share),
            ]
            if not shares or not all(0 < each < math.inf for each in (*shares.values(), *others)):
                raise ValueError("every share has to be a number above 0")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"constants of roofline: {error}; fit them again") from None
        return cls(RooflineConstants(shares, *others))

    @classmethod
    def of_peaks(cls) -> Self:
        """Return the textbook roofline: full peaks, at the factory's power limit. Always
        optimistic.
        """
        shares = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), 1.0)
        return cls(RooflineConstants(shares, 1.0, 1.0, 1.0))

    def fit(self, points: Sequence[MeasuredStep]) -> Self:
        if not points:
            raise ConfigError("roofline: no points to fit to")
        steps = [_intensities(point.workload, point.placement) for point in points]
        compute, memory = fit_shares(
            steps, [p.workload.precision for p in points], [p.step_s for p in points]
        )
        halves = [
            step.halves(compute[point.workload.precision], memory)
            for step, point in zip(steps, points, strict=True)
        ]
        powers = [p.power_w and p.power_w / p.placement.gpu.tdp_w for p in points]
        return type(self)(RooflineConstants(compute, memory, *fit_powers(halves, powers)))

    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        compute_s, memory_s, warnings = self._halves(workload, placement)
        known = self._known()
        step_s = compute_s + memory_s
        power_share = (
            compute_s * known.compute_power_share + memory_s * known.memory_power_share
        ) / step_s
        return Prediction(
            step_s=step_s,
            power_w=power_share * placement.gpu.tdp_w,
            gpus=placement.gpus,
            regime=Regime.COMPUTE if compute_s >= memory_s else Regime.MEMORY,
            terms_s={"compute": compute_s, "memory": memory_s},
            gpu_s=step_s,
            model=f"roofline ({placement.gpu.name})",
            warnings=warnings,
        )

    def constants(self) -> Mapping[str, object]:
        return asdict(self._known())

    def _known(self) -> RooflineConstants:
        if self._constants is None:
            raise ConfigError(
                "roofline has no constants yet: fit it, or take Roofline.of_peaks() for the peaks"
            )
        return self._constants

    def _halves(
        self, workload: Workload, placement: Placement
    ) -> tuple[float, float, tuple[str, ...]]:
        known = self._known()
        warnings = []
        share = known.compute_share.get(workload.precision)
        if share is None:
            share = sum(known.compute_share.values()) / len(known.compute_share)
            warnings.append(
                f"roofline was fitted without {workload.precision}: the mean share of "
                f"{', '.join(known.compute_share)} is taken"
            )
        ignored = [
            word
            for word, given in (
                ("power cap", placement.cap_w),
                ("locked clock", placement.clock_mhz),
                ("other GPUs", placement.gpus > 1),
                ("data rate", placement.samples_s),
            )
            if given
        ]
        if ignored:
            warnings.append(f"roofline ignores: {', '.join(ignored)}")
        compute_s, memory_s = _intensities(workload, placement).halves(share, known.memory_share)
        return compute_s, memory_s, tuple(warnings)


def _intensities(workload: Workload, placement: Placement) -> Intensities:
    """Return the seconds at the peaks of each operation of the step."""
    compute, memory = [], []
    for op in workload.operations:
        times = op.count * (1 if op.phase is Phase.OPTIMIZER else workload.accumulate)
        compute.append(times * op.flops / peak_flops_s(placement.gpu, op.kind, op.dtype))
        memory.append(times * op.bytes_moved / placement.gpu.memory_bytes_s)
    step = Intensities(compute, memory)
    if step.compute_s + step.memory_s <= 0:
        raise ConfigError(f"{workload.name}: the workload has neither FLOPs nor bytes")
    return step
