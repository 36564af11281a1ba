"""Correlations as a grid of colours with their numbers."""

from typing import Any

from wattloop.analyze.correlation import Correlations
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import styled

__all__ = ["correlation_figures"]

CELL_PX = 46
FEW = 16
"""With more columns numbers are too small to read."""


def correlation_figures(found: Correlations) -> dict[str, Any]:
    """Pearson's r of all pairs that were compared."""
    import altair as alt

    rows = []
    for row in found.rows:
        for one, other in ((row["one"], row["other"]), (row["other"], row["one"])):
            shown = "" if row["r"] is None else f"{row['r']:+.2f}"
            rows.append(
                {
                    "one": one,
                    "other": other,
                    "r": row["r"],
                    "rho": row["rho"],
                    "p": row["r_p"],
                    "shown": shown,
                }
            )
    if found.target is not None:
        rows = [row for row in rows if row["one"] == found.target]
    names = list(found.names)
    side = CELL_PX if len(names) <= FEW else CELL_PX // 2
    label = alt.Axis(labelLimit=200, labelAngle=-40)
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X("one:N", sort=names, title=None, axis=label),
        y=alt.Y("other:N", sort=names, title=None, axis=alt.Axis(labelLimit=200)),
        tooltip=[
            alt.Tooltip("one:N"),
            alt.Tooltip("other:N"),
            alt.Tooltip("r:Q", title="Pearson r", format="+.3f"),
            alt.Tooltip("p:Q", format=".3~g"),
            alt.Tooltip("rho:Q", title="Spearman rho", format="+.3f"),
        ],
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=["#b2182b", "#f7f7f7", "#2166ac"])
    cells = base.mark_rect().encode(color=alt.Color("r:Q", title="Pearson r", scale=scale))
    layers = [cells]
    if len(names) <= FEW:
        dark = alt.condition("abs(datum.r) > 0.6", alt.value("white"), alt.value("#111827"))
        layers.append(base.mark_text(fontSize=11).encode(text=alt.Text("shown:N"), color=dark))
    wide = 1 if found.target is not None else len(names)
    tall = len(names) - (found.target is not None)
    chart = alt.layer(*layers).properties(width=max(side * wide, 60), height=side * tall)
    hint = "point at a cell for p"
    return {"correlation": styled(chart, "Correlation", "Pearson's r", hint=hint)}
