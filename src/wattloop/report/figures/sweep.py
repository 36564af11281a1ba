"""Figures of sweeps: Koszczal et al. (Euro-Par 2023), and thesis 3.5 and 6.6."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.report.figures.chart import GREY, Spec, channel, colour, layers, mark, ringed, styled
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

LINE = {"point": {"size": 40, "filled": True}}
NAME_ABOVE = {"dy": -6, "fontSize": 11, "color": GREY}


def energy_source(*results: SweepResult) -> str:
    """Return scope and provenance of energy, and the window it covers."""
    kinds = []
    for result in results:
        window = result.experiment.spec.get("window")
        part = f", window '{window}'" if window else ""
        kinds.append(f"energy of {result.scope}, {result.provenance}{part}")
    return "; ".join(dict.fromkeys(kinds))


def lever_title(axis: Mapping[str, Any]) -> str:
    """Format `gpu:0/power_limit` as `GPU 0 power limit (W)`."""
    device, _, leaf = axis["name"].partition("/")
    family, _, number = device.partition(":")
    words = filter(None, (family.upper(), number.replace(",", ", "), leaf.replace("_", " ")))
    unit = f" ({axis['unit']})" if axis["unit"] not in ("", "name") else ""
    return " ".join(words) + unit


def plain_name(text: str) -> str:
    """Format `gpu:0/power_limit` as `gpu-0-power_limit`."""
    return re.sub(r"[^\w.-]+", "-", text)


def _lever_x(axis: Mapping[str, Any], *, numeric: bool, field: str = "x") -> Spec:
    """Return the horizontal axis of one lever: a scale for numbers, places for choices."""
    if numeric:
        scale = {"zero": False, "nice": False, "padding": 14}
        return channel(f"{field}:Q", lever_title(axis), scale=scale)
    order = [level["label"] for level in axis["levels"]]
    return channel(f"{field}:O", lever_title(axis), sort=order, axis={"labelAngle": 0})


def cap_figures(probes: Sequence[Mapping[str, Any]], best_w: float | None) -> dict[str, Spec]:
    """Draw energy and time of a cap search's probes; a ring is around the cap that it chose."""
    rows = [
        {**each, "best": each["cap_w"] == best_w, "name": f"{each['cap_w']:g} W"}
        for each in sorted(probes, key=lambda each: each["cap_w"])
    ]
    axes = {"energy": ("energy_j", "GPU energy (J)"), "time": ("time_s", "Time (s)")}
    found = {}
    for name, (field, title) in axes.items() if rows else ():
        scale = {"zero": False, "padding": 14}
        x = channel("cap_w:Q", "Power cap (W)", scale=scale)
        y = channel(f"{field}:Q", title, scale=scale)
        drawn = layers(mark("line", LINE), *ringed("datum.best", "name:N"), rows=rows, x=x, y=y)
        said = "measured probes of one search; ring: the best cap"
        found[name] = styled(drawn, f"{title.partition(' (')[0]} against the power cap", said)
    return found


def scaling_figures(result: SweepResult) -> dict[str, Spec]:
    """Draw times and speed-up for the default and the setting with the best gain minus loss."""
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
    order = list(dict.fromkeys(row["setting"] for row in data))
    times = layers(
        mark("bar", y=channel("time_s:Q", "Time (s)"), color=colour("setting", order)),
        mark("text", NAME_ABOVE, y="time_s:Q", text="shown:N"),
        rows=data,
        x=channel("gpus:O", "Number of GPUs", axis={"labelAngle": 0}),
        xOffset=channel("setting:N", sort=order),
    )
    ideal = [{"gpus": count, "speed_up": count / counts[0]} for count in counts]
    over = f"Speed-up over {counts[0]} GPU{'s' if counts[0] > 1 else ''}"
    scaling = layers(
        mark("line", {"strokeDash": [5, 4], "color": GREY}, rows=ideal),
        mark("line", LINE, rows=data, color=colour("setting", order)),
        x=channel("gpus:Q", "Number of GPUs", axis={"values": counts, "format": "d"}),
        y=channel("speed_up:Q", over),
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

Curve = tuple[SweepGroup, ComparedMetric, str]
"""Points of a group by a metric, and their name in the legend."""


def _gain(gain: Gain) -> tuple[float, float | None]:
    return gain.value_pct, gain.half_width_pct


def _edp(gain: Gain) -> tuple[float, float | None]:
    """Return EDP in kJ s, with the interval of its gain."""
    value = gain.cost / 1_000
    ratio = 1 - gain.value_pct / 100
    if gain.half_width_pct is None or not ratio:
        return value, None
    return value, value / ratio * gain.half_width_pct / 100


def _eds(gain: Gain) -> tuple[float, float | None]:
    return gain.cost, None if gain.half_width_pct is None else gain.half_width_pct / 100


class CurveFigure(NamedTuple):
    """A figure against a lever: its titles, and the value of a gain with its half-width."""

    title: str
    axis: str
    of: Callable[[Gain], tuple[float, float | None]] = _gain
    best_is_low: bool = False


ENERGY_DECREASE = CurveFigure("Energy decrease", "Energy decrease (%)")
TIME_INCREASE = CurveFigure(
    "Time increase", "Time increase (%)", lambda gain: (-gain.value_pct, gain.half_width_pct), True
)
PRODUCT = CurveFigure("Energy-delay product", "EDP (kJ s)", _edp, True)
SUM = CurveFigure("Energy-delay sum", "EDS (1 at the default)", _eds, True)
GAIN = CurveFigure("Energy gain minus time loss", "Energy gain minus time loss (percentage points)")


def sweep_figures(result: SweepResult) -> dict[str, Spec]:
    """Draw all figures that the sweep has data for, by name."""
    figures: dict[str, Any] = {}
    for axis in result.axes:
        suffix = "" if len(result.axes) == 1 else "-" + plain_name(axis["name"])
        figures |= {f"{name}{suffix}": chart for name, chart in _against(result, axis).items()}
    figures |= scaling_figures(result)
    return figures


def _against(result: SweepResult, axis: Mapping[str, Any]) -> dict[str, Spec]:
    groups = [group for group in result.groups if group.reference is not None]
    if len(axis["levels"]) < 2 or not groups:
        return {}
    largest = largest_groups(groups)
    said = energy_source(result)
    compared, of_group = f"{said}; compared with the default setting", _with_group(said, largest)

    def curves(groups: Sequence[SweepGroup], metric: ComparedMetric) -> list[Curve]:
        return [(group, metric, group.label) for group in groups]

    sums = [
        (group, ComparedMetric("eds", k), _both(group.label, f"k = {k:g}", largest))
        for group in largest
        for k in (1.5, 2.0)
    ]
    return {
        name: _curves(result, axis, own, figure, subtitle)
        for name, own, figure, subtitle in (
            ("energy-decrease", curves(groups, ENERGY), ENERGY_DECREASE, compared),
            ("time-increase", curves(groups, TIME), TIME_INCREASE, compared),
            ("edp", curves(largest, EDP), PRODUCT, of_group),
            ("eds", sums, SUM, of_group),
            ("gain-minus-loss", curves(largest, GAIN_MINUS_LOSS), GAIN, of_group),
        )
    }


def _curves(
    result: SweepResult,
    axis: Mapping[str, Any],
    curves: Sequence[Curve],
    figure: CurveFigure,
    subtitle: str,
) -> Any:
    """Draw one line per curve over the settings of one lever, with intervals and best points."""
    rows: list[dict[str, Any]] = []
    for group, compared, label in curves:
        own = []
        for point in _along(result, group, axis["name"]):
            gain = group.gain(point, compared)
            if gain is None:
                continue
            value, half_width = figure.of(gain)
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
            (min if figure.best_is_low else max)(own, key=lambda row: row["value"])["best"] = True
        rows += own
    named: set[str] = set()
    for row in rows:  # two curves with the same best setting need its name once
        row["name"] = row["setting"] if row["best"] and row["setting"] not in named else ""
        named |= {row["setting"]} if row["best"] else set()
    order = list(dict.fromkeys(row["curve"] for row in rows))
    color = colour("curve", order, several=len(order) > 1)
    y, low = channel("value:Q", figure.axis, scale={"zero": False}), channel("low:Q", figure.axis)
    chart = layers(
        mark("rule", {"opacity": 0.45}, y=low, y2={"field": "high"}, color=color),
        mark("line", LINE, y=y, color=color),
        *ringed("datum.best", "name:N", y=y),
        rows=rows,
        x=_lever_x(axis, numeric=_is_numeric(axis)),
        tooltip=["curve:N", "setting:N", channel("value:Q", format=".3f")],
    )
    title = f"{figure.title} against {lever_title(axis).partition(' (')[0]}"
    return styled(chart, title, f"{subtitle}; bars: 95% interval; ring: best")


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


def technique_figures(results: Sequence[SweepResult]) -> dict[str, Spec]:
    """Draw all figures that the data allow, by name."""
    figures = {"edp-against-time": _edp_against_time(results)}
    figures |= _powers(results)
    figures["synthesis"] = _synthesis(results)
    return {name: chart for name, chart in figures.items() if chart is not None}


def _edp_against_time(results: Sequence[SweepResult]) -> Any:
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
    order = list(dict.fromkeys(row["group"] for row in rows))
    room = {"zero": False, "nice": False, "padding": 24}
    shapes = {"domain": [False, True], "range": ["circle", "square"]}
    chart = layers(
        mark(
            "point",
            {"filled": True, "size": 55},
            color=colour("group", order, several=len(order) > 1),
            shape=channel("is_default:N", None, scale=shapes, legend=None),
        ),
        *ringed("datum.is_best", "setting:N", 200),
        rows=rows,
        x=channel("time_s:Q", "Time (s)", scale=room),
        y=channel("edp:Q", "EDP (kJ s)", scale=room),
        tooltip=["group:N", "setting:N", "time_s:Q", "edp:Q"],
    )
    said = f"{energy_source(*results)}; square: default; ring: lowest EDP"
    return styled(chart, "EDP against time", said)


def _powers(results: Sequence[SweepResult]) -> dict[str, Spec]:
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
    parts = [scope.upper() for scope in (main, second) if scope]
    dashes = {"domain": parts, "range": [[1, 0], [5, 4]][: len(parts)]}
    split = "group" if len({row["group"] for row in rows}) > 1 else "component"
    # where colour tells the components apart, a second legend would only repeat the first
    legend = None if split == "component" else {"symbolType": "stroke", "symbolSize": 400}
    color, title = (
        colour(split, list(dict.fromkeys(row[split] for row in rows))),
        "Average power (W)",
    )
    chart = layers(
        mark(
            "rule", {"opacity": 0.45}, y=channel("low:Q", title), y2={"field": "high"}, color=color
        ),
        mark(
            "line",
            {"point": {"size": 35, "filled": True}},
            y=channel("power_w:Q", title),
            color=color,
            strokeDash=channel("component:N", None, scale=dashes, legend=legend),
            detail=["group:N", "component:N"],
        ),
        rows=rows,
        x=_lever_x(axis, numeric=numeric, field="x" if numeric else "label"),
    )
    kinds = [f"{s.upper()} {result.provenance_of(s)}" for s in (main, second) if s]
    kind = f"{', '.join(kinds)}; bars: standard deviation"
    return styled(chart, f"Average power against {lever_title(axis).partition(' (')[0]}", kind)


def _synthesis(results: Sequence[SweepResult]) -> Any:
    rows = [
        {**row, "place": " ".join(filter(None, (row["platform"], row["library"])))}
        for row in synthesis_rows(results)
    ]
    if len(rows) < 2:
        return None
    data = [{**row, "shown": f"{row['edp_pct']:+.1f}%"} for row in rows]
    chart = layers(
        mark(
            "bar",
            y=channel("edp_pct:Q", "Best EDP gain, mean over workloads (%)"),
            color=channel("technique:N", None),
        ),
        mark("text", {"dy": -6, "fontSize": 11}, y="edp_pct:Q", text="shown:N"),
        rows=data,
        x=channel("place:N", None, axis={"labelAngle": 0}),
        xOffset="technique:N",
    )
    return styled(chart, "EDP gain by technique", energy_source(*results))
