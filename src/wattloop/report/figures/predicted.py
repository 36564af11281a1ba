"""Predicted against measured: time, power and energy of a step, one point each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import GREY, colour, styled

__all__ = ["PredictedStep", "predicted_figures"]

SIDE = 300
NEAR = 0.1
"""The band around the diagonal: predictions within a tenth of what was measured."""
_QUANTITIES = {
    "time": ("time of a step (ms)", 1e3, "log"),
    "power": ("power of the GPU (W)", 1.0, "linear"),
    "energy": ("energy of a step (J, scope: gpu)", 1.0, "log"),
}


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """One step as measured and as predicted.

    Attributes:
        name: model, batch and precision, for whoever points at it.
        kind: what it is coloured by.
        precision: what it is shaped by.
        measured, predicted: time (s) and power (W).
    """

    name: str
    kind: str
    precision: str
    measured: tuple[float, float]
    predicted: tuple[float, float]


def predicted_figures(steps: Sequence[PredictedStep], said: str = "") -> dict[str, Any]:
    """`predicted`: all three side by side."""
    import altair as alt

    if not steps:
        return {}
    panels = [_panel(steps, quantity) for quantity in _QUANTITIES]
    row = alt.hconcat(*panels, spacing=30)
    title = "Predicted against measured"
    return {"predicted": styled(row, title, "; ".join(filter(None, (said, "band: within 10%"))))}


def _panel(steps: Sequence[PredictedStep], quantity: str) -> Any:
    import altair as alt

    title, scale_by, kind = _QUANTITIES[quantity]
    data = [
        {
            "step": step.name,
            "kind": step.kind,
            "precision": step.precision,
            "measured": scale_by * _value(step.measured, quantity),
            "predicted": scale_by * _value(step.predicted, quantity),
        }
        for step in steps
    ]
    values = [
        scale_by * _value(pair, quantity)
        for step in steps
        for pair in (step.measured, step.predicted)
    ]
    low, high = 0.9 * min(values), 1.1 * max(values)
    scale = alt.Scale(type=kind, domain=[low, high], nice=False)
    # a curve of many points: the band is straight on both kinds of axes
    ends = [low * (high / low) ** (n / 20) for n in range(21)]
    band = [{"x": x, "low": x * (1 - NEAR), "high": x * (1 + NEAR)} for x in ends]
    x = alt.X("x:Q", scale=scale, title=f"measured {title}")
    behind = alt.Chart(alt.Data(values=band))
    area = behind.mark_area(color=GREY, opacity=0.18, clip=True).encode(
        x=x, y=alt.Y("low:Q", scale=scale, title=f"predicted {title}"), y2=alt.Y2("high:Q")
    )
    line = behind.mark_line(color=GREY, strokeWidth=1, clip=True).encode(
        x=x, y=alt.Y("x:Q", scale=scale)
    )
    kinds = list(dict.fromkeys(step.kind for step in steps))
    points = (
        alt.Chart(rows_data(data))
        .mark_point(opacity=0.75, size=42, filled=True)
        .encode(
            x=alt.X("measured:Q", scale=scale),
            y=alt.Y("predicted:Q", scale=scale),
            color=colour("kind", kinds, several=True),
            shape=alt.Shape("precision:N", title=None),
            tooltip=[alt.Tooltip("step:N"), alt.Tooltip("measured:Q"), "predicted:Q"],
        )
    )
    return alt.layer(area, line, points).properties(width=SIDE, height=SIDE)


def _value(pair: tuple[float, float], quantity: str) -> float:
    step_s, power_w = pair
    return {"time": step_s, "power": power_w, "energy": step_s * power_w}[quantity]
