"""The baseline: every operation takes what its FLOPs or its bytes take, whichever is longer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from wattloop.core.errors import ConfigError
from wattloop.predict.models.model import Model, Point
from wattloop.predict.models.peaks import peak_flops_s
from wattloop.predict.models.roofline_fit import Intensities, fit_powers, fit_shares
from wattloop.predict.placement import Placement
from wattloop.predict.prediction import Prediction, Regime
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["Roofline", "RooflineConstants"]


@dataclass(frozen=True, slots=True)
class RooflineConstants:
    """How much of the published figures is reached.

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

    Power is the mean of two wattages over the time bound by either. Nothing else is known to it:
    no launches, no shapes, no clocks.
    """

    name: ClassVar[str] = "roofline"

    def __init__(self, constants: RooflineConstants | None = None) -> None:
        self._constants = constants

    @classmethod
    def from_constants(cls, constants: Mapping[str, object]) -> Self:
        """A model from what `constants()` gave."""
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
        """The textbook's: peaks are reached, at the factory's power limit. Optimistic always."""
        shares = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), 1.0)
        return cls(RooflineConstants(shares, 1.0, 1.0, 1.0))

    def fit(self, points: Sequence[Point]) -> Self:
        """Shares with the least mean relative error of time, then of power."""
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
        """Time and power of one step; caps, clocks and other GPUs are not known to it."""
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

    def explain(self, workload: Workload, placement: Placement) -> Mapping[str, float]:
        """FLOPs, bytes, and the time bound by either."""
        step = _intensities(workload, placement)
        compute_s, memory_s, _ = self._halves(workload, placement)
        return {
            "peak_compute_s": step.compute_s,
            "peak_memory_s": step.memory_s,
            "compute_bound_s": compute_s,
            "memory_bound_s": memory_s,
            "step_s": compute_s + memory_s,
            "power_w": self.predict(workload, placement).power_w,
        }

    def constants(self) -> Mapping[str, object]:
        """The shares."""
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
    """Seconds at the peaks of each operation of the step."""
    compute, memory = [], []
    for op in workload.operations:
        times = op.count * (1 if op.phase is Phase.OPTIMIZER else workload.accumulate)
        compute.append(times * op.flops / peak_flops_s(placement.gpu, op.kind, op.dtype))
        memory.append(times * op.bytes_moved / placement.gpu.memory_bytes_s)
    step = Intensities(compute, memory)
    if step.compute_s + step.memory_s <= 0:
        raise ConfigError(f"{workload.name}: the workload has neither FLOPs nor bytes")
    return step
