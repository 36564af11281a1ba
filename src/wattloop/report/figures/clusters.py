"""Figures of clusters: main components in 2-D and 3-D, and any two columns."""

import json
from typing import Any

import numpy as np

from wattloop.analyze.clusters import Clusters
from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.scatter import drawn_rows, fitted, tooltips, with_tooltips
from wattloop.report.figures.style import GREY, HEIGHT, PALETTE, WIDTH, styled

SIZE = 380


def cluster_figures(found: Clusters, dimensions: int = 2) -> dict[str, Any]:
    """Draw two and three main components, any two columns, and silhouettes."""
    rows, sampled = _rows(found)
    data = rows_data(rows)
    said = "; ".join(
        filter(
            None,
            (
                found.table.source,
                f"{found.facts['clusters']} clusters of {len(found.table)} runs",
                f"silhouette {found.silhouette:.2f}",
                sampled,
            ),
        )
    )
    charts: dict[str, Any] = {"clusters-2d": _plane(found, data, said)}
    if found.projection.shape[1] > 2:
        space = {"clusters-3d": _space(found, data, said)}
        charts = {**space, **charts} if dimensions == 3 else {**charts, **space}
    charts["clusters-columns"] = _columns(found, data, said)
    tried = next(t for t in found.others if t.name == "silhouettes")
    if len(tried.rows) > 1:
        charts["silhouettes"] = _silhouettes(found, [dict(row) for row in tried.rows])
    return charts


def _rows(found: Clusters) -> tuple[list[dict[str, Any]], str]:
    table = found.table
    shown = [*table.parameters, *table.results]
    numbers, sampled = drawn_rows(table)
    rows = []
    for n in numbers:
        row = with_tooltips(table, n, shown)
        row["cluster"] = str(found.labels[n])
        row |= {f"pc{c + 1}": float(v) for c, v in enumerate(found.projection[n])}
        rows.append(row)
    return rows, sampled


def _plane(found: Clusters, data: Any, said: str) -> Any:
    import altair as alt

    # with room at the edges: a chart that can be moved cuts off what reaches over them
    room = [fitted(found.projection[:, n].tolist()) for n in range(found.projection.shape[1])]
    flat = len(room) < 2
    y = alt.Y("cluster:N")
    if not flat:
        y = alt.Y("pc2:Q", title=_component(found, 1), scale=room[1])
    chart = (
        alt.Chart(data)
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X("pc1:Q", title=_component(found, 0), scale=room[0]),
            y=y,
            color=_colour(found),
            shape=_shape(found),
            tooltip=_tooltips(found),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return styled(chart.interactive(), "Clusters, two main components", said)


def _space(found: Clusters, data: Any, said: str) -> Any:
    """Draw a 3-D view that sliders turn; the page computes the projection."""
    import altair as alt

    turn = alt.param(
        name="turn", value=35, bind=alt.binding_range(min=0, max=360, step=1, name="turn ")
    )
    tilt = alt.param(
        name="tilt", value=25, bind=alt.binding_range(min=-90, max=90, step=1, name="tilt ")
    )
    reach = float(np.abs(found.projection).max()) or 1.0
    # a depth in every row makes near points larger
    axes = [
        {f"pc{c + 1}": reach * (c == number) for c in range(3)} | {"name": f"PC{number + 1}"}
        for number in range(3)
    ]
    scale = alt.Scale(domain=[-1.25 * reach, 1.25 * reach])
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False)

    def projected(of: Any) -> Any:
        angle = "PI / 180"
        return (
            alt.Chart(of)
            .transform_calculate(
                u=f"datum.pc1 * cos(turn * {angle}) - datum.pc2 * sin(turn * {angle})",
                v=f"datum.pc1 * sin(turn * {angle}) + datum.pc2 * cos(turn * {angle})",
            )
            .transform_calculate(
                height=f"datum.pc3 * cos(tilt * {angle}) - datum.v * sin(tilt * {angle})",
                depth=f"datum.v * cos(tilt * {angle}) + datum.pc3 * sin(tilt * {angle})",
                zero="0",
            )
            .encode(
                x=alt.X("u:Q", scale=scale, axis=bare, title=None),
                y=alt.Y("height:Q", scale=scale, axis=bare, title=None),
            )
        )

    near = alt.Size("depth:Q", scale=alt.Scale(domain=[-reach, reach], range=[70, 20]), legend=None)
    dots = (
        projected(data)
        .mark_point(filled=True, opacity=0.75)
        .encode(color=_colour(found), shape=_shape(found), size=near, tooltip=_tooltips(found))
    )
    ends = projected(rows_data(axes))
    lines = ends.mark_rule(color=GREY).encode(x2=alt.X2("zero:Q"), y2=alt.Y2("zero:Q"))
    names = ends.mark_text(dx=10, dy=-6, fontSize=11, color=GREY).encode(text=alt.Text("name:N"))
    chart = alt.layer(lines, names, dots).add_params(turn, tilt)
    shares = ", ".join(_component(found, number) for number in range(3))
    return styled(
        chart.properties(width=SIZE, height=SIZE),
        "Clusters, three main components",
        f"{shares}; {said}",
    )


def _columns(found: Clusters, data: Any, said: str) -> Any:
    """Draw any column against any other, chosen on the page."""
    import altair as alt

    table = found.table
    results = [name for name in table.results if table.is_numeric(name)]
    names = [*results, *(name for name in table.parameters if table.is_numeric(name))]
    first, second = (results + names)[:1], [n for n in results if n != found.ordered_by]
    across = alt.param(
        name="across",
        value=found.ordered_by if found.ordered_by in names else first[0],
        bind=alt.binding_select(options=names, name="across "),
    )
    up = alt.param(
        name="up",
        value=(second or first)[0],
        bind=alt.binding_select(options=names, name="up "),
    )
    # where `with_tooltips` put a column
    place = f"indexof({json.dumps([*table.parameters, *table.results])}, "
    chart = (
        alt.Chart(data)
        .transform_calculate(x=f"datum['t' + {place}across)]", y=f"datum['t' + {place}up)]")
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X("x:Q", title=None, scale=alt.Scale(zero=False)),
            y=alt.Y("y:Q", title=None, scale=alt.Scale(zero=False)),
            color=_colour(found),
            shape=_shape(found),
            tooltip=_tooltips(found),
        )
        .properties(width=WIDTH, height=HEIGHT)
        .add_params(across, up)
    )
    return styled(chart, alt.expr("up + ' against ' + across"), said)


def _silhouettes(found: Clusters, rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    taken = alt.condition(
        f"datum.k == {found.facts['clusters']}", alt.value(PALETTE[1]), alt.value(PALETTE[0])
    )
    chart = (
        alt.Chart(rows_data(rows))
        .mark_bar()
        .encode(
            x=alt.X("k:O", title="Clusters", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("silhouette:Q", title="Silhouette"),
            color=taken,
            tooltip=[alt.Tooltip("k:O"), alt.Tooltip("silhouette:Q", format=".3f")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return styled(chart, "How many clusters", "mean silhouette; the highest is taken")


def _component(found: Clusters, number: int) -> str:
    return f"PC{number + 1} ({found.explained[number]:.0%} of variance)"


def _order(found: Clusters) -> list[str]:
    return [str(label) for label in sorted({int(label) for label in found.labels})]


def _colour(found: Clusters) -> Any:
    import altair as alt

    order = _order(found)
    colours = [PALETTE[n % len(PALETTE)] for n in range(len(order))]
    return alt.Color("cluster:N", title="cluster", scale=alt.Scale(domain=order, range=colours))


def _shape(found: Clusters) -> Any:
    """Return marks that tell clusters apart when there are more of them than colours."""
    import altair as alt

    order = _order(found)
    kinds = ["circle" if n < len(PALETTE) else "triangle-up" for n in range(len(order))]
    return alt.Shape("cluster:N", title="cluster", scale=alt.Scale(domain=order, range=kinds))


def _tooltips(found: Clusters) -> list[Any]:
    import altair as alt

    shown = [*found.table.parameters, *found.table.results]
    return [alt.Tooltip("cluster:N"), *tooltips(shown)]
