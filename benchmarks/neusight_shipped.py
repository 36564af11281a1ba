"""The shipped rules: fitted to all GPUs, with their errors on GPUs that were left out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from neusight_power import PowerRow
from predict_fits import fitted_rules
from wattloop.predict.intervals import Intervals, Residual
from wattloop.predict.models.kernels.constants import reference_constants
from wattloop.predict.models.kernels.datasheet import SpecRules
from wattloop.predict.models.model import MeasuredStep

if TYPE_CHECKING:
    from predict_neusight import Outcome

__all__ = ["residuals", "shipped_rules_of"]

WIDER = 1.5
"""Power of two GPUs says little about others: it is stated wider than it was seen."""
OTHER_HOST = 0.3
"""Steps that wait for the host also differ by this much, from host to host (as a logarithm)."""


def shipped_rules_of(
    points: Sequence[MeasuredStep], outcomes: Sequence["Outcome"], powers: Sequence[PowerRow]
) -> SpecRules:
    """Fit to all `points`, with intervals from the residuals of GPUs that were left out."""
    rules = fitted_rules(points, *reference_constants(), SpecRules())
    seen = [*residuals(outcomes), *(_power_residual(row) for row in powers)]
    return replace(
        rules,
        intervals=_shipped(Intervals.exponential(seen)),
        made={
            "points": len(points),
            "gpus": sorted({point.placement.gpu.name for point in points}),
            "source": "NeuSight (ASPLOS 2025), MIT: rows without a flag, not compiled; intervals "
            "also from ResNet-50 in the Zeus traces (NSDI 2023), Apache-2.0",
            "day": f"{datetime.now(UTC):%Y-%m-%d}",
        },
    )


def residuals(outcomes: Sequence["Outcome"]) -> list[Residual]:
    """Return log(measured / predicted) of every row, by the rules of the other GPUs."""
    return [Residual(o.row.gpu, "gpu", -math.log(1 + o.error())) for o in outcomes]


def _power_residual(row: PowerRow) -> Residual:
    return Residual(
        row.gpu,
        "gpu",
        math.log(row.step_s / row.predicted_s),
        math.log(row.power_w / row.predicted_w),
    )


def _shipped(found: Intervals) -> dict[str, object]:
    """Return intervals as shipped: time as measured, wider power, and wider host-bound steps."""
    time, power = (found.sizes["all"][name] for name in ("time", "power"))
    power = [WIDER * size for size in power]
    energy = [math.hypot(a, b) for a, b in zip(time, power, strict=True)]
    sizes: Mapping[str, list[float]] = {"time": list(time), "power": power, "energy": energy}
    host = {
        name: [math.hypot(size, OTHER_HOST) for size in of] if name != "power" else list(of)
        for name, of in sizes.items()
    }
    return Intervals({"all": sizes, "host": host}).to_dict()
