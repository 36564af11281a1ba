"""Levels that were switched on, runs from worst to best (GreenScreen, figure 7)."""

from typing import Any

import numpy as np

from wattloop.analyze.matrix import Matrix
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.scatter import titled
from wattloop.report.figures.style import PALETTE, styled

__all__ = ["matrix_figures"]

MOST_LINES = 200
"""With more runs than this a line is the mean of several neighbours."""
CELL_PX = 14


def matrix_figures(found: Matrix) -> dict[str, Any]:
    """A line per run, best on top; a dark field is a level that was on."""
    import altair as alt

    lines = np.array_split(np.arange(len(found.runs)), min(MOST_LINES, len(found.runs)))
    levels = [f"{parameter}_{level}" for parameter, level in found.levels]
    rows = []
    for place, members in enumerate(lines):
        shares = found.switched[members].mean(axis=0)
        value = float(found.values[members].mean())
        name = found.runs[members[0]] if len(members) == 1 else f"{len(members)} runs"
        for level, (parameter, _), share in zip(levels, found.levels, shares, strict=True):
            if share > 0:
                rows.append(
                    {
                        "line": len(lines) - place,
                        "level": level,
                        "parameter": parameter,
                        "share": float(share),
                        "value": value,
                        "run": name,
                    }
                )
    order = list(dict.fromkeys(parameter for parameter, _ in found.levels))
    height = max(min(CELL_PX * len(lines), 640), 120)
    chart = (
        alt.Chart(rows_data(rows))
        .mark_rect(stroke="white", strokeWidth=0.4 if len(lines) < MOST_LINES else 0)
        .encode(
            x=alt.X(
                "level:N",
                sort=levels,
                title=None,
                axis=alt.Axis(labelAngle=-60, labelLimit=200, labelOverlap=False),
            ),
            y=alt.Y(
                "line:O",
                title="Runs, best on top",
                axis=alt.Axis(labels=False, ticks=False),
                scale=alt.Scale(domain=list(range(1, len(lines) + 1))),
            ),
            color=alt.Color(
                "parameter:N",
                sort=order,
                legend=None,
                # neighbours differ, and ten parameters need more than eight colours
                scale=alt.Scale(
                    domain=order, range=[PALETTE[n % 2 * 6] for n in range(len(order))]
                ),
            ),
            opacity=alt.Opacity(
                "share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0, 1])
            ),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("level:N"),
                alt.Tooltip("value:Q", title=found.metric),
            ],
        )
        .properties(width=CELL_PX * len(levels), height=height)
    )
    ends = f"from {found.values[-1]:.4g} (top) to {found.values[0]:.4g}"
    each = f"; a line is the mean of {len(lines[0])}" if len(lines[0]) > 1 else ""
    said = f"{len(found.runs)} runs by {titled(found.metric)}, {ends}{each}"
    return {"matrix": styled(chart, "Configuration matrix", said)}
