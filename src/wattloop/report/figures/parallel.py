"""Parallel coordinates: every configuration a line across its parameters and results."""

import math
from typing import Any

import numpy as np

from wattloop.analyze.roles import usual_target
from wattloop.analyze.table import RunTable
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.scatter import drawn_rows, titled
from wattloop.report.figures.style import GREY, HEIGHT, WIDTH, styled

__all__ = ["parallel_figure"]

MOST_AXES = 10
MOST_LINES = 600
"""More lines than this are one grey band."""


def parallel_figure(table: RunTable) -> Any:
    """Axes are scaled to their range; lines are coloured by the usual target. None with one axis.

    Columns that do not vary are left out; of text, levels take equal places.
    """
    import altair as alt

    wanted = [*table.parameters, *(n for n in table.results if table.is_numeric(n))]
    places = {name: found for name in wanted if (found := _places(table, name)) is not None}
    axes = list(places)[:MOST_AXES]
    if len(axes) < 2 or len(table) < 2:
        return None
    target = usual_target(table)
    colours = table.numbers(target)
    numbers, sampled = drawn_rows(table, most=MOST_LINES)
    rows = [
        {
            "run": table.names[n],
            "axis": name,
            "place": places[name][0][n],
            "value": places[name][1][n],
            "target": None if math.isnan(colours[n]) else float(colours[n]),
        }
        for n in numbers
        for name in axes
        if places[name][0][n] is not None
    ]
    ends = [
        {"axis": name, "place": at, "text": places[name][2][at]} for name in axes for at in (0, 1)
    ]
    x = alt.X(
        "axis:N",
        sort=axes,
        title=None,
        axis=alt.Axis(labelAngle=-20, domain=False, ticks=False, labelPadding=16),
    )
    y = alt.Y("place:Q", axis=None)
    lines = (
        alt.Chart(rows_data(rows))
        .mark_line(opacity=0.45, strokeWidth=1.2)
        .encode(
            x=x,
            y=y,
            detail=alt.Detail("run:N"),
            color=alt.Color("target:Q", title=titled(target), scale=alt.Scale(scheme="viridis")),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("axis:N"),
                alt.Tooltip("value:N"),
                "target:Q",
            ],
        )
    )
    base = alt.Chart(alt.Data(values=ends)).encode(x=x)
    rules = base.mark_rule(color=GREY, opacity=0.6).encode(y=y)
    texts = base.mark_text(dy=alt.expr("datum.place ? -8 : 10"), fontSize=10, color="#374151")
    chart = alt.layer(rules, lines, texts.encode(y=y, text=alt.Text("text:N")))
    chart = chart.properties(width=int(1.7 * WIDTH), height=HEIGHT)
    said = "; ".join(filter(None, (table.source, f"coloured by {titled(target)}", sampled)))
    return styled(chart, "Parallel coordinates", said)


def _places(
    table: RunTable, name: str
) -> tuple[list[float | None], list[str], tuple[str, str]] | None:
    """Where each row is between 0 and 1, its value as text, and the texts of both ends."""
    if table.is_numeric(name):
        values = table.numbers(name)
        known = values[np.isfinite(values)]
        if not len(known) or known.min() == known.max():
            return None
        low, high = float(known.min()), float(known.max())
        places = [None if math.isnan(v) else (float(v) - low) / (high - low) for v in values]
        return places, [f"{v:.4g}" for v in values], (f"{low:.4g}", f"{high:.4g}")
    texts = [str(value) for value in table.column(name)]
    levels = sorted(set(texts))
    if len(levels) < 2:
        return None
    at = {level: n / (len(levels) - 1) for n, level in enumerate(levels)}
    return [at[text] for text in texts], texts, (levels[0], levels[-1])
