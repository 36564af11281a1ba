"""Figures 1 and 2 of document 003 for searches by `sm2`.

Figure 1: the loss over the learning rates of an exploratory epoch, with the window that was chosen.
Figure 2: performance, energy and learning rate of every configuration, epoch by epoch, exploratory
epochs marked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.style import BEST, GREY, HEIGHT, PALETTE, WIDTH, colour, styled
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


def sm2_figures(strategy: Sm2, *, said: str = "") -> dict[str, Any]:
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


def rate_figure(swept: SweptRates, *, said: str = "") -> Any:
    """Draw loss over learning rates with the chosen window; None without finite losses."""
    import altair as alt

    rows = [{"rate": rate, "loss": loss} for rate, loss in swept.losses if math.isfinite(loss)]
    if not rows:
        return None
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X(
            "rate:Q",
            title="Learning rate",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format="~g"),
        ),
        y=alt.Y("loss:Q", title="Loss", scale=alt.Scale(zero=False)),
        tooltip=[alt.Tooltip("rate:Q"), "loss:Q"],
    )
    layers = [
        base.mark_line(color=PALETTE[0]),
        base.mark_point(filled=True, size=35, color=PALETTE[0]),
    ]
    if swept.window is not None:
        edges = alt.Chart(alt.Data(values=[{"edge": edge} for edge in swept.window]))
        layers.append(
            edges.mark_rule(strokeDash=[3, 3], strokeWidth=1.5, color=PALETTE[1]).encode(
                x=alt.X("edge:Q")
            )
        )
    chosen = [row for row in rows if row["rate"] == swept.rate]
    if chosen:
        ring = alt.Chart(alt.Data(values=chosen)).encode(x=alt.X("rate:Q"), y=alt.Y("loss:Q"))
        layers.append(ring.mark_point(size=200, filled=False, stroke=BEST, strokeWidth=1.6))
    left_out = len(swept.losses) - len(rows)
    notes = [swept.label, "dotted: the chosen window; ring: the rate that is trained with"]
    if left_out:
        notes.append(f"{left_out} rates broke the model")
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    return styled(chart, "Loss over learning rates", "; ".join(filter(None, (*notes, said))))


def course_figure(moments: Sequence[Mapping[str, Any]], metric: str, *, said: str = "") -> Any:
    """Draw performance, energy and learning rate of each configuration by epoch.

    Args:
        moments: rows with `label`, `place`, `exploring`, `quality`, `energy_j` and `rate`.
        metric: the name of the performance.
        said: whose energy it is and where it comes from.
    """
    import altair as alt

    rows = [{**moment, "epoch": moment["place"] + 1} for moment in moments]
    if not rows:
        return None
    order = list(dict.fromkeys(row["label"] for row in rows))
    explored = sorted({row["epoch"] for row in rows if row["exploring"]})
    marks = alt.Chart(alt.Data(values=[{"epoch": epoch} for epoch in explored]))
    panels = []
    wanted = (
        ("quality", metric.capitalize(), alt.Scale(zero=False)),
        ("energy_j", "Energy per epoch (J)", alt.Scale(zero=False)),
        ("rate", "Learning rate", alt.Scale(type="log")),
    )
    for field, title, scale in wanted:
        there = [
            {"label": row["label"], "epoch": row["epoch"], field: row[field]}
            for row in rows
            if row[field] is not None and math.isfinite(row[field])
        ]
        if not there:
            continue
        lines = (
            alt.Chart(alt.Data(values=there))
            .mark_line(point=alt.OverlayMarkDef(size=18, filled=True), strokeWidth=1.5)
            .encode(
                x=alt.X(
                    "epoch:Q",
                    title="Epoch",
                    scale=alt.Scale(nice=False),
                    axis=alt.Axis(tickMinStep=1),
                ),
                y=alt.Y(f"{field}:Q", title=title, scale=scale),
                color=colour("label", order),
                tooltip=[alt.Tooltip("label:N"), alt.Tooltip("epoch:Q"), f"{field}:Q"],
            )
        )
        dotted = marks.mark_rule(strokeDash=[2, 4], color=GREY).encode(x=alt.X("epoch:Q"))
        panels.append(alt.layer(dotted, lines).properties(width=NARROW, height=HEIGHT))
    if not panels:
        return None
    note = "dotted: exploratory epochs, which leave no trace in the model"
    return styled(
        alt.hconcat(*panels), "The course of the search", "; ".join(filter(None, (note, said)))
    )


def _label(parameters: Mapping[str, Any]) -> str:
    if "batch_size" in parameters:
        return f"batch {parameters['batch_size']}"
    return ", ".join(f"{name} {value}" for name, value in parameters.items())
