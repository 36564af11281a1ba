"""Figures of thesis 3.5 and 6.6: EDP against time, power by setting, synthesis over workloads."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import (
    BEST,
    HEIGHT,
    WIDTH,
    colour,
    lever_title,
    lever_x,
    plain_name,
    said_of,
    styled,
)
from wattloop.sweep.result import EDP, SweepResult, largest_groups
from wattloop.sweep.tables import main_scopes, synthesis_rows

__all__ = ["technique_figures"]


def technique_figures(results: Sequence[SweepResult]) -> dict[str, Any]:
    """All that there is data for, by name."""
    figures = {"edp-against-time": _edp_against_time(results)}
    figures |= _powers(results)
    figures["synthesis"] = _synthesis(results)
    return {name: chart for name, chart in figures.items() if chart is not None}


def _edp_against_time(results: Sequence[SweepResult]) -> Any:
    import altair as alt

    rows: list[dict[str, Any]] = []
    for result in results:
        for group in largest_groups(result.groups):
            best = group.best(EDP)
            for point in group.points:
                gain, time_s = group.gain(point, EDP), point.time_s
                if gain is not None and time_s is not None:
                    rows.append(
                        {
                            "group": group.label or "all",
                            "time_s": time_s.mean,
                            "edp": gain.cost / 1_000,
                            "setting": point.label,
                            "is_best": best is not None and best[0] is point,
                            "is_default": point.is_default,
                        }
                    )
    if not rows:
        return None
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X("time_s:Q", title="Time (s)", scale=alt.Scale(zero=False, nice=False, padding=24)),
        y=alt.Y("edp:Q", title="EDP (kJ s)", scale=alt.Scale(zero=False, nice=False, padding=24)),
        tooltip=[
            alt.Tooltip("group:N"),
            alt.Tooltip("setting:N"),
            alt.Tooltip("time_s:Q"),
            "edp:Q",
        ],
    )
    order = list(dict.fromkeys(row["group"] for row in rows))
    color = colour("group", order, several=len(order) > 1)
    shape = alt.Shape(
        "is_default:N",
        title=None,
        scale=alt.Scale(domain=[False, True], range=["circle", "square"]),
        legend=None,
    )
    dots = base.mark_point(filled=True, size=55).encode(color=color, shape=shape)
    best = base.transform_filter("datum.is_best")
    ring = best.mark_point(size=200, filled=False, stroke=BEST, strokeWidth=1.6)
    name = best.mark_text(dy=-16, fontSize=11, color=BEST).encode(text=alt.Text("setting:N"))
    chart = alt.layer(dots, ring, name).properties(width=WIDTH, height=HEIGHT)
    return styled(
        chart, "EDP against time", f"{said_of(*results)}; square: default; ring: lowest EDP"
    )


def _powers(results: Sequence[SweepResult]) -> dict[str, Any]:
    """Power of the main component and of the one beside it, over each lever's settings."""
    figures = {}
    for number, result in enumerate(results):
        for axis in result.axes:
            chart = _power(result, axis)
            if chart is not None:
                several = len(results) > 1 or len(result.axes) > 1
                suffix = f"-{number}-{plain_name(axis['name'])}" if several else ""
                figures[f"power{suffix}"] = chart
    return figures


def _power(result: SweepResult, axis: Mapping[str, Any]) -> Any:
    import altair as alt

    main, second = main_scopes(result)
    others = {a["name"]: a["default"] for a in result.axes if a["name"] != axis["name"]}
    rows = []
    for group in result.groups:
        for point in group.points:
            levels = point.facts["levels"]
            if any(levels[name] != label for name, label in others.items()):
                continue
            for scope in filter(None, (main, second)):
                power_w = point.average_w(scope)
                if power_w is not None:
                    rows.append(
                        {
                            "x": result.number(point, axis["name"]),
                            "label": levels[axis["name"]],
                            "power_w": power_w.mean,
                            "low": power_w.mean - (power_w.sd or 0.0),
                            "high": power_w.mean + (power_w.sd or 0.0),
                            "component": scope.upper(),
                            "group": group.label or "all",
                        }
                    )
    if len({row["label"] for row in rows}) < 2:
        return None
    numeric = all(row["x"] is not None for row in rows)
    x = lever_x(axis, numeric=numeric, field="x" if numeric else "label")
    base = alt.Chart(rows_data(rows)).encode(x=x)
    y = alt.Y("power_w:Q", title="Average power (W)")
    parts = [scope.upper() for scope in (main, second) if scope]
    dashes = alt.Scale(domain=parts, range=[[1, 0], [5, 4]][: len(parts)])
    split = "group" if len({row["group"] for row in rows}) > 1 else "component"
    # where colour tells the components apart, a second legend would only repeat the first
    legend = None if split == "component" else alt.Legend(symbolType="stroke", symbolSize=400)
    component = alt.StrokeDash("component:N", title=None, scale=dashes, legend=legend)
    color = colour(split, list(dict.fromkeys(row[split] for row in rows)))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=35, filled=True)).encode(
        y=y, color=color, strokeDash=component, detail=["group:N", "component:N"]
    )
    bars = base.mark_rule(opacity=0.45).encode(
        y=alt.Y("low:Q", title="Average power (W)"), y2=alt.Y2("high:Q"), color=color
    )
    chart = alt.layer(bars, lines).properties(width=WIDTH, height=HEIGHT)
    kinds = [f"{s.upper()} {result.provenance_of(s)}" for s in (main, second) if s]
    kind = f"{', '.join(kinds)}; bars: standard deviation"
    return styled(chart, f"Average power against {lever_title(axis).partition(' (')[0]}", kind)


def _synthesis(results: Sequence[SweepResult]) -> Any:
    import altair as alt

    rows = [
        {**row, "place": " ".join(filter(None, (row["platform"], row["library"])))}
        for row in synthesis_rows(results)
    ]
    if len(rows) < 2:
        return None
    data = [{**row, "shown": f"{row['edp_pct']:+.1f}%"} for row in rows]
    base = alt.Chart(rows_data(data)).encode(
        x=alt.X("place:N", title=None, axis=alt.Axis(labelAngle=0)), xOffset="technique:N"
    )
    bars = base.mark_bar().encode(
        y=alt.Y("edp_pct:Q", title="Best EDP gain, mean over workloads (%)"),
        color=alt.Color("technique:N", title=None),
    )
    labels = base.mark_text(dy=-6, fontSize=11).encode(
        y=alt.Y("edp_pct:Q"), text=alt.Text("shown:N")
    )
    chart = alt.layer(bars, labels).properties(width=WIDTH, height=HEIGHT)
    return styled(chart, "EDP gain by technique", said_of(*results))
