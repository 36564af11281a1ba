"""Figures 1 and 2 of Geißler et al. for searches by `sm2`.

Figure 1: the loss over the learning rates of an exploratory epoch, with the window that was chosen.
Figure 2: performance, energy and learning rate of every configuration, epoch by epoch, exploratory
epochs marked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.report.figures.chart import (
    BEST,
    GREY,
    HEIGHT,
    PALETTE,
    Spec,
    channel,
    colour,
    layers,
    mark,
    styled,
)
from wattloop.tune.strategies.sm2.sm2 import Sm2

NARROW = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRates:
    """An exploratory epoch.

    Attributes:
        label: whose.
        losses: (rate, loss) from low to high; may be infinite.
        window: the smallest and largest rate of the window that was chosen; None for none.
        rate: what was chosen.
    """

    label: str
    losses: Sequence[tuple[float, float]]
    window: tuple[float, float] | None = None
    rate: float | None = None


def sm2_figures(strategy: Sm2, *, said: str = "") -> dict[str, Spec]:
    """Return figure 1 of each configuration's last exploratory epoch, and figure 2, by name.

    Args:
        strategy: after or during its search.
        said: whose energy it is and where it comes from.
    """
    labels = {name: _label(course.parameters) for name, course in strategy.histories.items()}
    figures = {}
    for name, course in strategy.histories.items():
        if course.swept:
            window = course.pick.window if course.pick is not None else None
            swept = SweptRates(
                label=labels[name],
                losses=[(point.rate, point.loss) for point in course.swept],
                window=None if window is None else (window.low, window.high),
                rate=None if course.pick is None else course.pick.rate,
            )
            figures[f"rates-{name}"] = rate_figure(swept)
    moments = [asdict(m) | {"label": labels[m.candidate]} for m in strategy.epoch_records]
    figures["course"] = course_figure(moments, strategy.problem.quality.metric, said=said)
    return {name: chart for name, chart in figures.items() if chart is not None}


def rate_figure(swept: SweptRates, *, said: str = "") -> Spec | None:
    """Draw loss over learning rates with the chosen window; None without finite losses."""
    rows = [{"rate": rate, "loss": loss} for rate, loss in swept.losses if math.isfinite(loss)]
    if not rows:
        return None
    style = {"color": PALETTE[0]}
    curve = layers(
        mark("line", style),
        mark("point", {"filled": True, "size": 35, **style}),
        rows=rows,
        x=channel(
            "rate:Q",
            "Learning rate",
            scale={"type": "log", "nice": False},
            axis={"format": "~g"},
        ),
        y=channel("loss:Q", "Loss", scale={"zero": False}),
        tooltip=["rate:Q", "loss:Q"],
    )
    parts = [curve]
    if swept.window is not None:
        dotted = {"strokeDash": [3, 3], "strokeWidth": 1.5, "color": PALETTE[1]}
        parts.append(
            mark("rule", dotted, rows=[{"edge": edge} for edge in swept.window], x="edge:Q")
        )
    chosen = [row for row in rows if row["rate"] == swept.rate]
    if chosen:
        ring = {"size": 200, "filled": False, "stroke": BEST, "strokeWidth": 1.6}
        parts.append(mark("point", ring, rows=chosen, x="rate:Q", y="loss:Q"))
    left_out = len(swept.losses) - len(rows)
    notes = [swept.label, "dotted: the chosen window; ring: the rate that is trained with"]
    if left_out:
        notes.append(f"{left_out} rates broke the model")
    return styled(
        layers(*parts), "Loss over learning rates", "; ".join(filter(None, (*notes, said)))
    )


def course_figure(
    moments: Sequence[Mapping[str, Any]], metric: str, *, said: str = ""
) -> Spec | None:
    """Draw performance, energy and learning rate of each configuration by epoch.

    Args:
        moments: rows with `label`, `place`, `exploring`, `quality`, `energy_j` and `rate`.
        metric: the name of the performance.
        said: whose energy it is and where it comes from.
    """
    rows = [{**moment, "epoch": moment["place"] + 1} for moment in moments]
    if not rows:
        return None
    order = list(dict.fromkeys(row["label"] for row in rows))
    explored = sorted({row["epoch"] for row in rows if row["exploring"]})
    panels = []
    wanted: tuple[tuple[str, str, Spec], ...] = (
        ("quality", metric.capitalize(), {"zero": False}),
        ("energy_j", "Energy per epoch (J)", {"zero": False}),
        ("rate", "Learning rate", {"type": "log"}),
    )
    for field, title, scale in wanted:
        there = [
            {"label": row["label"], "epoch": row["epoch"], field: row[field]}
            for row in rows
            if row[field] is not None and math.isfinite(row[field])
        ]
        if not there:
            continue
        lines = mark(
            "line",
            {"point": {"size": 18, "filled": True}, "strokeWidth": 1.5},
            rows=there,
            y=channel(f"{field}:Q", title, scale=scale),
            color=colour("label", order),
            tooltip=["label:N", "epoch:Q", f"{field}:Q"],
        )
        marks = [{"epoch": epoch} for epoch in explored]
        panel = layers(
            mark("rule", {"strokeDash": [2, 4], "color": GREY}, rows=marks),
            lines,
            size=(NARROW, HEIGHT),
            x=channel("epoch:Q", "Epoch", scale={"nice": False}, axis={"tickMinStep": 1}),
        )
        panels.append(panel)
    if not panels:
        return None
    note = "dotted: exploratory epochs, which leave no trace in the model"
    about = "; ".join(filter(None, (note, said)))
    return styled({"hconcat": panels}, "The course of the search", about)


def _label(parameters: Mapping[str, Any]) -> str:
    if "batch_size" in parameters:
        return f"batch {parameters['batch_size']}"
    return ", ".join(f"{name} {value}" for name, value in parameters.items())
