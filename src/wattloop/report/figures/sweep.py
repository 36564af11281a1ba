"""Figures of sweeps: Koszczal et al. (Euro-Par 2023), and thesis 3.5 and 6.6."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.style import (
    BEST,
    GREY,
    HEIGHT,
    WIDTH,
    colour,
    energy_source,
    lever_title,
    lever_x,
    plain_name,
    styled,
)
from wattloop.sweep.result import (
    EDP,
    ENERGY,
    GAIN_MINUS_LOSS,
    TIME,
    ComparedMetric,
    Gain,
    PointResult,
    SweepGroup,
    SweepResult,
    largest_groups,
)
from wattloop.sweep.tables import main_scopes, scaling_rows, synthesis_rows


def scaling_figures(result: SweepResult) -> dict[str, Any]:
    """Draw times and speed-up for the default and the setting with the best gain minus loss."""
    import altair as alt

    rows = scaling_rows(result)
    counts = sorted({row["gpus"] for row in rows})
    if len(counts) < 2:
        return {}
    largest = largest_groups([g for g in result.groups if g.reference is not None])
    chosen = {p.label for g in largest if (found := g.best(GAIN_MINUS_LOSS)) for p in found[:1]}
    several = len({(row["workload"], row["library"]) for row in rows}) > 1
    data = [
        {
            "gpus": row["gpus"],
            "setting": " ".join(filter(None, (row["workload"], row["library"])) if several else ())
            + (" " if several else "")
            + row["setting"]
            + (" (default)" if row["is_default"] else ""),
            "time_s": row["time_s"].mean,
            "speed_up": row["speed_up"],
            "shown": f"{row['time_s'].mean:#.3g}".rstrip("."),
        }
        for row in rows
        if row["is_default"] or row["setting"] in chosen
    ]
    data.sort(key=lambda row: "(default)" not in row["setting"])
    base = alt.Chart(rows_data(data))
    order = list(dict.fromkeys(row["setting"] for row in data))
    color = colour("setting", order)
    offset = alt.XOffset("setting:N", sort=order)
    gpus = alt.X("gpus:O", title="Number of GPUs", axis=alt.Axis(labelAngle=0))
    bars = base.mark_bar().encode(
        x=gpus, xOffset=offset, y=alt.Y("time_s:Q", title="Time (s)"), color=color
    )
    labels = base.mark_text(dy=-6, fontSize=11, color=GREY).encode(
        x=gpus, xOffset=offset, y=alt.Y("time_s:Q"), text=alt.Text("shown:N")
    )
    times = alt.layer(bars, labels).properties(width=WIDTH, height=HEIGHT)
    ideal = [{"gpus": count, "speed_up": count / counts[0]} for count in counts]
    x = alt.X("gpus:Q", title="Number of GPUs", axis=alt.Axis(values=counts, format="d"))
    y = alt.Y("speed_up:Q", title=f"Speed-up over {counts[0]} GPU{'s' if counts[0] > 1 else ''}")
    line = alt.Chart(alt.Data(values=ideal)).mark_line(strokeDash=[5, 4], color=GREY)
    real = base.mark_line(point=alt.OverlayMarkDef(size=40, filled=True))
    scaling = alt.layer(line.encode(x=x, y=y), real.encode(x=x, y=y, color=color)).properties(
        width=WIDTH, height=HEIGHT
    )
    said = f"mean of the repeats; {energy_source(result)}"
    return {
        "times": styled(times, "Time against the number of GPUs", said),
        "speed-up": styled(scaling, "Speed-up with the number of GPUs", f"{said}; dashed: ideal"),
    }


# Figures 2 to 6 of Koszczal et al. (Euro-Par 2023), from any sweep.
#
# Against a lever: energy decrease, time increase, EDP, EDS, gain minus loss. The best point of
# each curve has a ring around it.

Value = Callable[[Gain], tuple[float, float | None]]


def sweep_figures(result: SweepResult) -> dict[str, Any]:
    """Draw all figures that the sweep has data for, by name."""
    figures: dict[str, Any] = {}
    for axis in result.axes:
        suffix = "" if len(result.axes) == 1 else "-" + plain_name(axis["name"])
        figures |= {f"{name}{suffix}": chart for name, chart in _against(result, axis).items()}
    figures |= scaling_figures(result)
    return figures


def _against(result: SweepResult, axis: Mapping[str, Any]) -> dict[str, Any]:
    groups = [group for group in result.groups if group.reference is not None]
    if len(axis["levels"]) < 2 or not groups:
        return {}
    lever = lever_title(axis).partition(" (")[0]
    largest = largest_groups(groups)
    said = energy_source(result)
    return {
        "energy-decrease": _curves(
            result,
            axis,
            [(group, ENERGY, group.label) for group in groups],
            "Energy decrease (%)",
            f"Energy decrease against {lever}",
            said + "; compared with the default setting",
        ),
        "time-increase": _curves(
            result,
            axis,
            [(group, TIME, group.label) for group in groups],
            "Time increase (%)",
            f"Time increase against {lever}",
            said + "; compared with the default setting",
            of=lambda gain: (-gain.value_pct, gain.half_width_pct),
            best_is_low=True,
        ),
        "edp": _curves(
            result,
            axis,
            [(group, EDP, group.label) for group in largest],
            "EDP (kJ s)",
            f"Energy-delay product against {lever}",
            _with_group(said, largest),
            of=_edp,
            best_is_low=True,
        ),
        "eds": _curves(
            result,
            axis,
            [
                (group, ComparedMetric("eds", k), _both(group.label, f"k = {k:g}", largest))
                for group in largest
                for k in (1.5, 2.0)
            ],
            "EDS (1 at the default)",
            f"Energy-delay sum against {lever}",
            _with_group(said, largest),
            of=lambda gain: (
                gain.cost,
                None if gain.half_width_pct is None else gain.half_width_pct / 100,
            ),
            best_is_low=True,
        ),
        "gain-minus-loss": _curves(
            result,
            axis,
            [(group, GAIN_MINUS_LOSS, group.label) for group in largest],
            "Energy gain minus time loss (percentage points)",
            f"Energy gain minus time loss against {lever}",
            _with_group(said, largest),
        ),
    }


def _curves(
    result: SweepResult,
    axis: Mapping[str, Any],
    curves: list[tuple[SweepGroup, ComparedMetric, str]],
    y_title: str,
    title: str,
    subtitle: str,
    of: Value = lambda gain: (gain.value_pct, gain.half_width_pct),
    best_is_low: bool = False,
) -> Any:
    """Draw one line per curve over the settings of one lever, with intervals and best points."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for group, compared, label in curves:
        own = []
        for point in _along(result, group, axis["name"]):
            gain = group.gain(point, compared)
            if gain is None:
                continue
            value, half_width = of(gain)
            own.append(
                {
                    "curve": label or "all",
                    "x": _place(result, point, axis),
                    "value": value,
                    "low": value - (half_width or 0.0),
                    "high": value + (half_width or 0.0),
                    "setting": point.facts["levels"][axis["name"]],
                    "best": False,
                }
            )
        if own:
            (min if best_is_low else max)(own, key=lambda row: row["value"])["best"] = True
        rows += own
    named: set[str] = set()
    for row in rows:  # two curves with the same best setting need its name once
        row["name"] = row["setting"] if row["best"] and row["setting"] not in named else ""
        named |= {row["setting"]} if row["best"] else set()
    x = lever_x(axis, numeric=_is_numeric(axis))
    order = list(dict.fromkeys(row["curve"] for row in rows))
    color = colour("curve", order, several=len(order) > 1)
    base = alt.Chart(rows_data(rows)).encode(
        x=x,
        tooltip=[
            alt.Tooltip("curve:N"),
            alt.Tooltip("setting:N"),
            alt.Tooltip("value:Q", format=".3f"),
        ],
    )
    y = alt.Y("value:Q", title=y_title, scale=alt.Scale(zero=False))
    bars = base.mark_rule(opacity=0.45).encode(
        y=alt.Y("low:Q", title=y_title), y2=alt.Y2("high:Q"), color=color
    )
    lines = base.mark_line(point=alt.OverlayMarkDef(size=40, filled=True)).encode(y=y, color=color)
    best = base.transform_filter("datum.best")
    rings = best.mark_point(size=190, filled=False, stroke=BEST, strokeWidth=1.6).encode(y=y)
    names = best.mark_text(dy=-16, fontSize=11, color=BEST).encode(y=y, text=alt.Text("name:N"))
    chart = alt.layer(bars, lines, rings, names).properties(width=WIDTH, height=HEIGHT)
    return styled(chart, title, f"{subtitle}; bars: 95% interval; ring: best")


def _edp(gain: Gain) -> tuple[float, float | None]:
    """Return EDP in kJ s, with the interval of its gain."""
    value = gain.cost / 1_000
    ratio = 1 - gain.value_pct / 100
    if gain.half_width_pct is None or not ratio:
        return value, None
    return value, value / ratio * gain.half_width_pct / 100


def _along(result: SweepResult, group: SweepGroup, axis: str) -> list[PointResult]:
    """Return points at which every other lever has its default."""
    others = {a["name"]: a["default"] for a in result.axes if a["name"] != axis}
    return [
        p
        for p in group.points
        if all(p.facts["levels"][name] == label for name, label in others.items())
    ]


def _place(result: SweepResult, point: PointResult, axis: Mapping[str, Any]) -> Any:
    if _is_numeric(axis):
        return result.number(point, axis["name"])
    return point.facts["levels"][axis["name"]]


def _is_numeric(axis: Mapping[str, Any]) -> bool:
    return all(level["number"] is not None for level in axis["levels"])


def _both(label: str, k: str, groups: list[SweepGroup]) -> str:
    return f"{label}, {k}" if len(groups) > 1 and label else k


def _with_group(said: str, groups: list[SweepGroup]) -> str:
    return f"{groups[0].label}; {said}" if len(groups) == 1 and groups[0].label else said


def technique_figures(results: Sequence[SweepResult]) -> dict[str, Any]:
    """Draw all figures that the data allow, by name."""
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
        chart, "EDP against time", f"{energy_source(*results)}; square: default; ring: lowest EDP"
    )


def _powers(results: Sequence[SweepResult]) -> dict[str, Any]:
    """Draw power of the main and of the second component over each lever's settings."""
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
    return styled(chart, "EDP gain by technique", energy_source(*results))
