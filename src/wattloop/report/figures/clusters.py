"""Figures of clusters: main components in 2-D and 3-D, and any two columns."""

import json
from typing import Any

import numpy as np

from wattloop.analyze.clusters import Clusters
from wattloop.report.figures.chart import (
    GREY,
    PALETTE,
    Rows,
    Spec,
    channel,
    drawn_rows,
    fitted,
    in_turn,
    layers,
    mark,
    rows_data,
    styled,
    tooltips,
    with_tooltips,
)

SIZE = 380


def cluster_figures(found: Clusters, dimensions: int = 2) -> dict[str, Spec]:
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
    charts: dict[str, Spec] = {"clusters-2d": _plane(found, data, said)}
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


def _dots(found: Clusters, rows: Rows, style: Spec | None = None, **channels: Any) -> Spec:
    """Return a point per run, coloured by cluster."""
    order = [str(label) for label in sorted({int(label) for label in found.labels})]
    # marks tell clusters apart when there are more of them than colours
    shapes = in_turn(order, ("circle", "triangle-up"), len(PALETTE))
    return mark(
        "point",
        {"filled": True, "opacity": 0.75, **(style or {})},
        rows=rows,
        color=channel("cluster:N", "cluster", scale=in_turn(order)),
        shape=channel("cluster:N", "cluster", scale=shapes),
        tooltip=["cluster:N", *tooltips([*found.table.parameters, *found.table.results])],
        **channels,
    )


def _plane(found: Clusters, rows: Rows, said: str) -> Spec:
    # with room at the edges: a chart that can be moved cuts off what reaches over them
    room = [fitted(found.projection[:, n].tolist()) for n in range(found.projection.shape[1])]
    y: Any = "cluster:N"
    if len(room) > 1:
        y = channel("pc2:Q", _component(found, 1), scale=room[1])
    x = channel("pc1:Q", _component(found, 0), scale=room[0])
    chart = _dots(found, rows, {"size": 45}, x=x, y=y)
    moved = {"select": {"type": "interval", "encodings": ["x", "y"]}, "bind": "scales"}
    chart["params"] = [{"name": "moved", **moved}]
    return styled(chart, "Clusters, two main components", said)


def _space(found: Clusters, rows: Rows, said: str) -> Spec:
    """Draw a 3-D view that sliders turn; the page computes the projection."""
    reach = float(np.abs(found.projection).max()) or 1.0
    # a depth in every row makes near points larger
    axes = [
        {f"pc{c + 1}": reach * (c == number) for c in range(3)} | {"name": f"PC{number + 1}"}
        for number in range(3)
    ]
    scale = {"domain": [-1.25 * reach, 1.25 * reach]}
    bare = {"labels": False, "ticks": False, "grid": False, "domain": False}
    angle = "PI / 180"
    projection = {
        "u": f"datum.pc1 * cos(turn * {angle}) - datum.pc2 * sin(turn * {angle})",
        "v": f"datum.pc1 * sin(turn * {angle}) + datum.pc2 * cos(turn * {angle})",
        "height": f"datum.pc3 * cos(tilt * {angle}) - datum.v * sin(tilt * {angle})",
        "depth": f"datum.v * cos(tilt * {angle}) + datum.pc3 * sin(tilt * {angle})",
        "zero": "0",
    }
    sizes = {"domain": [-reach, reach], "range": [70, 20]}
    chart = layers(
        layers(
            mark("rule", {"color": GREY}, x2={"field": "zero"}, y2={"field": "zero"}),
            mark("text", {"dx": 10, "dy": -6, "fontSize": 11, "color": GREY}, text="name:N"),
            rows=axes,
        ),
        _dots(found, rows, size=channel("depth:Q", scale=sizes, legend=None)),
        size=(SIZE, SIZE),
        x=channel("u:Q", None, scale=scale, axis=bare),
        y=channel("height:Q", None, scale=scale, axis=bare),
    )
    for part in chart["layer"]:
        part["transform"] = [{"calculate": text, "as": name} for name, text in projection.items()]
    chart["params"] = [_slider("turn", 35, 0, 360), _slider("tilt", 25, -90, 90)]
    shares = ", ".join(_component(found, number) for number in range(3))
    return styled(chart, "Clusters, three main components", f"{shares}; {said}")


def _slider(name: str, value: float, low: float, high: float) -> Spec:
    bind = {"input": "range", "min": low, "max": high, "step": 1, "name": f"{name} "}
    return {"name": name, "value": value, "bind": bind}


def _columns(found: Clusters, rows: Rows, said: str) -> Spec:
    """Draw any column against any other, chosen on the page."""
    table = found.table
    results = [name for name in table.results if table.is_numeric(name)]
    names = [*results, *(name for name in table.parameters if table.is_numeric(name))]
    first, second = (results + names)[:1], [n for n in results if n != found.ordered_by]
    chosen = {
        "across": found.ordered_by if found.ordered_by in names else first[0],
        "up": (second or first)[0],
    }
    x, y = (channel(f"{field}:Q", None, scale={"zero": False}) for field in "xy")
    chart = _dots(found, rows, {"size": 45}, x=x, y=y)
    # where `with_tooltips` put a column
    place = f"indexof({json.dumps([*table.parameters, *table.results])}, "
    chart["transform"] = [
        {"calculate": f"datum['t' + {place}{name})]", "as": field}
        for field, name in zip("xy", chosen, strict=True)
    ]
    chart["params"] = [
        {
            "name": name,
            "value": value,
            "bind": {"input": "select", "options": names, "name": f"{name} "},
        }
        for name, value in chosen.items()
    ]
    return styled(chart, {"expr": "up + ' against ' + across"}, said)


def _silhouettes(found: Clusters, rows: Rows) -> Spec:
    taken = {"test": f"datum.k == {found.facts['clusters']}", "value": PALETTE[1]}
    chart = mark(
        "bar",
        rows=rows,
        x=channel("k:O", "Clusters", axis={"labelAngle": 0}),
        y=channel("silhouette:Q", "Silhouette"),
        color={"condition": taken, "value": PALETTE[0]},
        tooltip=["k:O", channel("silhouette:Q", format=".3f")],
    )
    return styled(chart, "How many clusters", "mean silhouette; the highest is taken")


def _component(found: Clusters, number: int) -> str:
    return f"PC{number + 1} ({found.explained[number]:.0%} of variance)"
