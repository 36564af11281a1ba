"""Figures 2 to 6 of Koszczal et al. (Euro-Par 2023), from any sweep.

Against a lever: energy decrease, time increase, EDP, EDS, gain minus loss. The best point of each
curve has a ring around it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.scaling import scaling_figures
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
from wattloop.sweep.result import (
    EDP,
    ENERGY,
    GAIN_MINUS_LOSS,
    TIME,
    Compared,
    Gain,
    Group,
    PointResult,
    SweepResult,
    largest_groups,
)

__all__ = ["sweep_figures"]

Value = Callable[[Gain], tuple[float, float | None]]


def sweep_figures(result: SweepResult) -> dict[str, Any]:
    """All figures this sweep has the data for, by name."""
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
    said = said_of(result)
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
                (group, Compared("eds", k), _both(group.label, f"k = {k:g}", largest))
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
    curves: list[tuple[Group, Compared, str]],
    y_title: str,
    title: str,
    subtitle: str,
    of: Value = lambda gain: (gain.value_pct, gain.half_width_pct),
    best_is_low: bool = False,
) -> Any:
    """One line per curve over the settings of one lever, with intervals, best points ringed."""
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
    """In kJ s, with the interval of its gain."""
    value = gain.cost / 1_000
    ratio = 1 - gain.value_pct / 100
    if gain.half_width_pct is None or not ratio:
        return value, None
    return value, value / ratio * gain.half_width_pct / 100


def _along(result: SweepResult, group: Group, axis: str) -> list[PointResult]:
    """Points at which every other lever stands at its default."""
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


def _both(label: str, k: str, groups: list[Group]) -> str:
    return f"{label}, {k}" if len(groups) > 1 and label else k


def _with_group(said: str, groups: list[Group]) -> str:
    return f"{groups[0].label}; {said}" if len(groups) == 1 and groups[0].label else said
