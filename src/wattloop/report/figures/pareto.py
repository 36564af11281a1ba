"""The front among all runs, its knee ringed; energy gained against time lost."""

from typing import Any

from wattloop.analyze.findings import Findings
from wattloop.analyze.pareto import Front
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.scatter import (
    MOST_POINTS,
    drawn_rows,
    fitted,
    titled,
    tooltips,
    with_tooltips,
)
from wattloop.report.figures.style import BEST, GREY, HEIGHT, PALETTE, WIDTH, styled

__all__ = ["metrics_figures", "pareto_figures"]

RING = {"size": 190, "filled": False, "stroke": BEST, "strokeWidth": 1.6}


def pareto_figures(found: Front) -> dict[str, Any]:
    """The first two objectives; with three the third is a colour."""
    import altair as alt

    table, names = found.table, list(found.objectives)
    shown = [*names, *table.parameters]
    numbers, sampled = drawn_rows(table, found.is_on_front)
    columns = {name: table.numbers(name) for name in names}
    rows = [
        {
            "x": float(columns[names[0]][n]),
            "y": float(columns[names[1]][n]),
            "z": float(columns[names[2]][n]) if len(names) > 2 else None,
            "front": found.is_on_front[n],
            "knee": table.names[n] == found.knee,
            **with_tooltips(table, n, shown),
        }
        for n in numbers
    ]
    x, y = (
        axis(
            f"{field}:Q",
            title=titled(name),
            scale=fitted([row[field] for row in rows]),
        )
        for axis, field, name in ((alt.X, "x", names[0]), (alt.Y, "y", names[1]))
    )
    base = alt.Chart(rows_data(rows)).encode(x=x, y=y, tooltip=tooltips(shown))
    others = base.transform_filter("!datum.front").mark_point(
        color=GREY, opacity=0.35, filled=True, size=28
    )
    front = base.transform_filter("datum.front")
    layers = [others]
    if len(names) == 2:
        # between two points of the front the worse of them is what can be had
        step = "step-before" if found.objectives[names[0]] else "step-after"
        layers.append(front.mark_line(color=PALETTE[1], interpolate=step, opacity=0.7))
        layers.append(front.mark_point(color=PALETTE[1], filled=True, size=60, opacity=1))
    else:
        z = alt.Color("z:Q", title=titled(names[2]), scale=alt.Scale(scheme="viridis"))
        layers.append(front.mark_point(filled=True, size=60, opacity=1).encode(color=z))
    knee = base.transform_filter("datum.knee")
    layers += [
        knee.mark_point(**RING),
        knee.mark_text(dy=-16, fontSize=11, color=BEST).encode(text=alt.Text("run:N")),
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    count = sum(found.is_on_front)
    on_front = f"{count} run{'s' * (count != 1)} on the front"
    ring = "" if found.knee is None else "ring: knee"
    said = "; ".join(filter(None, (table.source, on_front, ring, sampled)))
    return {"pareto": styled(chart, "Pareto front", said)}


def metrics_figures(found: Findings) -> dict[str, Any]:
    """Energy gain against time loss; energy against time where there is no reference."""
    import altair as alt

    compared = found.facts["reference"] is not None
    x_name, y_name = ("time_loss_pct", "energy_gain_pct") if compared else ("time_s", "energy_j")
    rows = [
        {"x": r[x_name], "y": r[y_name], "run": r["run"], "edp": r["edp_js"]}
        for r in found.rows
        if r[x_name] is not None
    ]
    x_title, y_title = (
        ("Time loss (%)", "Energy gain (%)") if compared else ("Time (s)", "Energy (J)")
    )
    first = min(rows, key=lambda row: row["edp"])
    best = first["run"]
    if len(rows) > MOST_POINTS:
        rows = [first, *rows[:: len(rows) // MOST_POINTS + 1]]
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X("x:Q", title=x_title, scale=fitted([row["x"] for row in rows])),
        y=alt.Y("y:Q", title=y_title, scale=fitted([row["y"] for row in rows])),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("x:Q", title=x_title),
            alt.Tooltip("y:Q", title=y_title),
        ],
    )
    layers = []
    if compared:
        low = max(min(row["x"] for row in rows), min(row["y"] for row in rows))
        high = min(max(row["x"] for row in rows), max(row["y"] for row in rows))
        line = alt.Data(values=[{"x": v, "y": v} for v in (low, high)])
        layers.append(
            alt.Chart(line)
            .mark_line(color=GREY, strokeDash=[4, 4], clip=True)
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
        )
    ring = base.transform_filter({"field": "run", "equal": best})
    points = [
        base.mark_point(color=PALETTE[0], filled=True, size=45, opacity=0.8),
        ring.mark_point(**RING),
        ring.mark_text(dy=-16, fontSize=11, color=BEST).encode(text=alt.Text("run:N")),
    ]
    # a layer of its own, so that the rows are in the file once
    chart = alt.layer(*layers, alt.layer(*points)).properties(width=WIDTH, height=HEIGHT)
    said = "ring: lowest EDP" + (
        "; above the dashed line more is gained than lost" if compared else ""
    )
    title = f"Against {found.facts['reference']}" if compared else "Energy against time"
    return {"metrics": styled(chart, title, said)}
