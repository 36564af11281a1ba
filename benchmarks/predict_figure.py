"""Figure of predicted against measured steps, for benchmark pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.report.figures.chart import (
    GREY,
    Spec,
    channel,
    colour,
    layers,
    mark,
    styled,
)

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
        name: model, batch and precision, shown as a tooltip.
        kind: its colour.
        precision: its shape.
        measured, predicted: time (s) and power (W).
    """

    name: str
    kind: str
    precision: str
    measured: tuple[float, float]
    predicted: tuple[float, float]


def predicted_figures(steps: Sequence[PredictedStep], said: str = "") -> dict[str, Spec]:
    """Return `predicted`: time, power and energy side by side."""
    if not steps:
        return {}
    panels = [_panel_predicted(steps, quantity) for quantity in _QUANTITIES]
    row = {"hconcat": panels, "spacing": 30}
    title = "Predicted against measured"
    return {"predicted": styled(row, title, "; ".join(filter(None, (said, "band: within 10%"))))}


def _panel_predicted(steps: Sequence[PredictedStep], quantity: str) -> Spec:
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
    scale = {"type": kind, "domain": [low, high], "nice": False}
    # a curve of many points: the band is straight on both kinds of axes
    ends = [low * (high / low) ** (n / 20) for n in range(21)]
    band = [{"x": x, "low": x * (1 - NEAR), "high": x * (1 + NEAR)} for x in ends]
    behind = layers(
        mark(
            "area",
            {"color": GREY, "opacity": 0.18, "clip": True},
            y=channel("low:Q", f"predicted {title}", scale=scale),
            y2={"field": "high"},
        ),
        mark(
            "line", {"color": GREY, "strokeWidth": 1, "clip": True}, y=channel("x:Q", scale=scale)
        ),
        rows=band,
        x=channel("x:Q", f"measured {title}", scale=scale),
    )
    points = mark(
        "point",
        {"opacity": 0.75, "size": 42, "filled": True},
        rows=data,
        x=channel("measured:Q", scale=scale),
        y=channel("predicted:Q", scale=scale),
        color=colour("kind", list(dict.fromkeys(step.kind for step in steps))),
        shape=channel("precision:N", None),
        tooltip=["step:N", "measured:Q", "predicted:Q"],
    )
    return layers(behind, points, size=(SIDE, SIDE))


def _value(pair: tuple[float, float], quantity: str) -> float:
    step_s, power_w = pair
    return {"time": step_s, "power": power_w, "energy": step_s * power_w}[quantity]
