"""Accuracy against energy (GreenScreen, figure 9) with the efficiency quotient; top runs."""

from typing import Any

import numpy as np

from wattloop.analyze.findings import Findings
from wattloop.analyze.quotient import VARIANTS, Quotients
from wattloop.analyze.table import RunTable
from wattloop.core.units import J_PER_WH
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.scatter import (
    drawn_rows,
    fitted,
    spread_over,
    titled,
    tooltips,
    with_tooltips,
)
from wattloop.report.figures.style import BEST, HEIGHT, PALETTE, WIDTH, styled

__all__ = ["quotient_figures", "top_figures"]

SHOWN = {"accuracy": "accuracy", "power": "energy_wh", "quotient": "quotient_per_wh"}
"""Order -> the column that it is by."""


def quotient_figures(table: RunTable, found: Quotients) -> dict[str, Any]:
    """The best runs stand in the upper left corner; the very best has a ring."""
    import altair as alt

    known = np.isfinite(found.per_ws)
    best = int(np.nanargmax(found.per_ws))
    numbers, sampled = drawn_rows(table, [n == best for n in range(len(table))])
    rows = [
        {
            "energy_wh": float(found.epoch_energy_j[n] / J_PER_WH),
            "accuracy": float(found.accuracy[n]),
            "quotient": float(found.per_ws[n] * J_PER_WH),
            "best": n == best,
            **with_tooltips(table, n, table.parameters),
        }
        for n in numbers
        if known[n]
    ]
    unit = "run" if found.facts["variant"] == "total" else "epoch"
    colours = alt.Scale(type=spread_over([r["quotient"] for r in rows]), scheme="viridis")
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X(
            "energy_wh:Q",
            title=f"Energy per {unit} (Wh)",
            scale=fitted([r["energy_wh"] for r in rows]),
        ),
        y=alt.Y(
            "accuracy:Q", title=titled(found.column), scale=fitted([r["accuracy"] for r in rows])
        ),
        tooltip=[alt.Tooltip("quotient:Q", format=".4~g"), *tooltips(table.parameters)],
    )
    dots = base.mark_point(filled=True, size=50, opacity=0.9).encode(
        color=alt.Color("quotient:Q", title="quotient (1/Wh)", scale=colours)
    )
    first = base.transform_filter("datum.best")
    ring = first.mark_point(size=190, filled=False, stroke=BEST, strokeWidth=1.6)
    name = first.mark_text(dy=-16, fontSize=11, color=BEST).encode(text=alt.Text("run:N"))
    chart = alt.layer(dots, ring, name).properties(width=WIDTH, height=HEIGHT)
    said = "; ".join(
        filter(None, (table.source, VARIANTS[str(found.facts["variant"])], "ring: best", sampled))
    )
    return {"quotient": styled(chart, "Accuracy against energy", said)}


def top_figures(found: Findings) -> dict[str, Any]:
    """Bars of the best runs, a panel per order."""
    import altair as alt

    panels: list[Any] = []
    for table in (found, *found.others):
        key = SHOWN[table.name]
        title, order = table.columns[key], table.title.rpartition(": ")[2]
        rows = [{"run": r["run"], "value": r[key], "shown": f"{r[key]:.4g}"} for r in table.rows]
        base = alt.Chart(rows_data(rows)).encode(
            y=alt.Y("run:N", sort=None, title=None),
            x=alt.X("value:Q", title=titled(title)),
        )
        bars = base.mark_bar(color=PALETTE[len(panels)])
        names = base.mark_text(align="left", dx=4, fontSize=11).encode(text=alt.Text("shown:N"))
        panel = alt.layer(bars, names).properties(
            width=WIDTH / 2, height=26 * len(rows), title=order.capitalize()
        )
        panels.append(panel)
    return {"top": styled(alt.hconcat(*panels), "Best runs", found.notes[0])}
