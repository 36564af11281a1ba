"""Figures of predictions: sweeps and comparisons."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.predict.comparison import Axis, ComparisonPoint
from wattloop.predict.prediction import AT_REST, Interval
from wattloop.report.figures.chart import (
    HEIGHT,
    PALETTE,
    Row,
    Spec,
    channel,
    colour,
    in_turn,
    layers,
    mark,
    styled,
)

PANEL_PX = 300
POINT_PX2 = 60
"""Area: what tells a diamond from a circle."""
DOUBLED = ("batch", "seq", "gpus", "accumulate")

TITLES = {
    "batch": "Samples per GPU and pass",
    "seq": "Tokens per sample",
    "image": "Pixels of a side",
    "gpus": "Number of GPUs",
    "accumulate": "Passes per step",
    "cap": "Power cap (W)",
    "clock": "SM clock (MHz)",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "gpu": "GPU",
}

PANELS = {
    "throughput": "Samples per second",
    "power_w": "Power per GPU (W)",
    "energy_j": "Energy per sample (J)",
}


MOST_PARTS, LEAST_SHARE = 6, 0.01
"""Parts of a bar, and the least of them; smaller ones are joined."""


def parts_figure(bars: Mapping[str, Mapping[str, float]], subtitle: str) -> Spec:
    """Draw where each quantity goes: a bar per quantity, of its parts as shares of the whole."""
    rows: list[Row] = []
    for what, parts in bars.items():
        whole = sum(parts.values())
        ordered = sorted(parts.items(), key=lambda item: -item[1])
        kept = [part for part in ordered[:MOST_PARTS] if part[1] >= LEAST_SHARE * whole]
        rest = sum(value for _, value in ordered[len(kept) :])
        rows += [
            {"quantity": what, "part": name, "share": value / whole, "rank": rank}
            for rank, (name, value) in enumerate([*kept, *([("other", rest)] if rest else [])])
            if value > 0
        ]
    order = list(dict.fromkeys(str(row["part"]) for row in rows))
    chart = mark(
        "bar",
        rows=rows,
        y=channel("quantity:N", None, sort=list(bars)),
        x=channel("share:Q", None, axis={"format": "%"}, scale={"domain": [0, 1]}),
        color=colour("part", order) | {"scale": _coloured(order)},
        order=channel("rank:Q"),
        tooltip=[channel("part:N", "Part"), channel("share:Q", "Share", format=".1%")],
    )
    return {**styled(chart, "Where it goes", subtitle), "height": {"step": 44}}


def _coloured(order: Sequence[str]) -> Spec:
    """Return a colour per part, grey for what a GPU takes whatever it does."""
    others = [name for name in order if name != AT_REST]
    scale = in_turn(others, PALETTE[:-1])
    rest = [AT_REST] * (len(others) < len(order))
    return {
        "domain": [*scale["domain"], *rest],
        "range": [*scale["range"], *PALETTE[-1:] * len(rest)],
    }


def forecast_figures(points: Sequence[ComparisonPoint], axes: Sequence[Axis]) -> dict[str, Spec]:
    """Draw three panels with 90% intervals.

    Points that do not fit are hollow, those of uncalibrated GPUs are diamonds.
    """
    x = axes[0]
    others = [axis.name for axis in axes[1:]]
    data = [_row(point, x.name, others) for point in points]
    order = list(dict.fromkeys(row["curve"] for row in data))
    panels = [_panel(data, x, quantity, title, order) for quantity, title in PANELS.items()]
    first = points[0].forecast
    has_intervals = first.prediction.energy_interval is not None
    said = f"predicted by {first.estimator}, energy of the GPUs"
    said += "; bars: 90% intervals" if has_intervals else ""
    said += "" if all(p.forecast.fits for p in points) else "; hollow: does not fit into memory"
    unmeasured = dict.fromkeys(_gpu(p) for p in points if not p.forecast.is_calibrated)
    said += f"; diamonds: spec-only, not calibrated ({', '.join(unmeasured)})" * bool(unmeasured)
    chart = {"hconcat": panels}
    return {"predictions": styled(chart, f"{first.workload.name}: predictions", said)}


def _row(point: ComparisonPoint, x: str, others: Sequence[str]) -> dict[str, Any]:
    forecast = point.forecast
    predicted = forecast.prediction
    samples = forecast.samples
    return {
        "x": point.setting[x],
        "curve": " ".join(f"{name} {point.setting[name]}" for name in others),
        "fits": forecast.fits,
        "shape": "circle" if forecast.is_calibrated else "diamond",
        "throughput": forecast.throughput_samples_s,
        "power_w": predicted.power_w,
        "energy_j": forecast.energy_j_per_sample,
        **_ends("throughput", predicted.step_interval, lambda s: samples / s),
        **_ends("power_w", predicted.power_interval, lambda w: w),
        **_ends("energy_j", predicted.energy_interval, lambda j: j / samples),
    }


def _gpu(point: ComparisonPoint) -> str:
    return str(point.setting.get("gpu", point.forecast.placement.gpu.name))


def _ends(name: str, interval: Interval | None, value: Any) -> dict[str, float]:
    if interval is None:
        return {}
    low, high = sorted((value(interval.low), value(interval.high)))
    return {f"{name}_low": low, f"{name}_high": high}


def _panel(data: Sequence[Row], axis: Axis, quantity: str, title: str, order: list[str]) -> Spec:
    numeric = not isinstance(axis.values[0], str)
    shown, several = TITLES.get(axis.name, axis.name), len(order) > 1
    if numeric:
        scale = {"type": "log", "base": 2} if axis.name in DOUBLED else {"zero": False}
        ticks = {"values": list(axis.values), "format": "d", "labelOverlap": True}
        places = {"x": channel("x:Q", shown, scale=scale, axis=ticks)}
    else:
        names = channel("x:N", shown, sort=list(axis.values), axis={"labelAngle": 0})
        offset = {"xOffset": channel("curve:N", sort=order)} if several else {}
        places = {"x": names, **offset}
    y = channel(f"{quantity}:Q", title, scale={"zero": True})
    parts = [mark("line", y=y)] if numeric else []
    if f"{quantity}_low" in data[0]:
        low = channel(f"{quantity}_low:Q", title)
        parts.append(mark("rule", {"opacity": 0.5}, y=low, y2={"field": f"{quantity}_high"}))
    shape = channel("shape:N", scale=None, legend=None)
    for filled, where in ((False, ""), (True, "datum.fits")):
        style = {"filled": filled, "size": POINT_PX2}
        parts.append(mark("point", style, where=where, y=y, shape=shape))
    color = colour("curve", order, several=several)
    return layers(*parts, rows=data, size=(PANEL_PX, HEIGHT), color=color, **places)
