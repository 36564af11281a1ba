"""Figures of campaigns: throughput, energy, deadlines, load, power (thesis 5.3 to 5.9)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattloop.report.figures.chart import (
    BACKGROUND,
    BEST,
    GREY,
    HEIGHT,
    PALETTE,
    WIDTH,
    Spec,
    channel,
    colour,
    in_turn,
    layers,
    mark,
    styled,
)
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.metrics import spread
from wattloop.schedule.metrics.curves import PowerCurve, gpu_allocations, power_curve

LETTER_PX = 6.2
LINE_PX = 13.0
ASIDE_PX = 10.0
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels from the upper left corner."""


def label_places(
    points_px: Sequence[tuple[float, float]], names: Sequence[str], size_px: tuple[float, float]
) -> list[tuple[float, float]]:
    """Return left end and middle line of each label, at the nearest free place to its point.

    Args:
        points_px: x and y of each point from the upper left corner.
        names: the label of each point.
        size_px: width and height of the chart; names stay inside.
    """
    places = []
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points_px]
    for point, name in zip(points_px, names, strict=True):
        place = _free(point, LETTER_PX * len(name), taken, size_px)
        places.append(place)
        taken.append(_box(place, LETTER_PX * len(name)))
    return places


def _free(
    point: tuple[float, float], wide: float, taken: Sequence[Box], size_px: tuple[float, float]
) -> tuple[float, float]:
    x, y = point
    width, height = size_px
    sides = [each for each in (x + ASIDE_PX, x - ASIDE_PX - wide) if 0 <= each <= width - wide]
    rows = int(height // LINE_PX)
    for away in sorted(range(-rows, rows + 1), key=abs):
        for left in sides:
            place = (left, y + away * LINE_PX)
            if 0 <= place[1] <= height and not _overlaps(_box(place, wide), taken):
                return place
    return x + ASIDE_PX, y


def _box(place: tuple[float, float], wide: float) -> Box:
    return place[0], place[1] - LINE_PX / 2, place[0] + wide, place[1] + LINE_PX / 2


def _overlaps(box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    return any(
        left < other[2] and right > other[0] and top < other[3] and bottom > other[1]
        for other in taken
    )


Row = Mapping[str, Any]
"""One policy and seed: `policy`, `seed`, figures of `schedule.metrics`, and what was varied."""
BAR_PX = 34
TRADE_OFF_PX = (WIDTH + 120, 320)
MOST_NAMES = 14
"""Points that are named; more have a legend."""
DASHES = ([1, 0], [6, 3], [2, 2])


def trade_off_figure(rows: Sequence[Row], said: str, *, setting: str | None = None) -> Spec:
    """Draw throughput against energy with one standard deviation (5.3, 5.4, 5.8).

    Args:
        rows: of all policies and seeds.
        said: what was simulated, for the subtitle.
        setting: a field of the rows that splits each policy, such as rigid and malleable jobs.
    """
    data = [
        row
        for row in _means(rows, ("energy_kwh", "throughput_per_h"), setting)
        if "energy_kwh" in row and "throughput_per_h" in row
    ]
    order = list(dict.fromkeys(row["policy"] for row in data))
    domains = {name: _domain(data, name) for name in ("energy_kwh", "throughput_per_h")}
    _place_labels(data, domains)
    x_scale, y_scale = ({"domain": ends, "nice": False, "zero": False} for ends in domains.values())
    x = channel("energy_kwh:Q", "Energy (kWh)", scale=x_scale, axis={"tickCount": 10})
    y = channel("throughput_per_h:Q", "Jobs done per hour", scale=y_scale)
    named = len(data) <= MOST_NAMES
    legend = None if named else {"symbolOpacity": 1}
    split: Spec = (
        {} if setting is None else {"shape": channel("setting:N", setting.replace("_", " "))}
    )
    thin = {"opacity": 0.4}
    parts = [
        mark(
            "rule",
            thin,
            x=channel("energy_kwh_low:Q", scale=x_scale),
            x2={"field": "energy_kwh_high"},
            y=y,
        ),
        mark(
            "rule",
            thin,
            x=x,
            y=channel("throughput_per_h_low:Q", scale=y_scale),
            y2={"field": "throughput_per_h_high"},
        ),
        mark(
            "point",
            {"filled": True, "size": 70, "opacity": 1},
            x=x,
            y=y,
            tooltip=["label:N", "energy_kwh:Q", "throughput_per_h:Q"],
            **split,
        ),
    ]
    if named:
        at_x, at_y = channel("label_x:Q", scale=x_scale), channel("label_y:Q", scale=y_scale)
        text = {"align": "left", "fontSize": 11}
        parts.append(mark("text", text, x=at_x, y=at_y, text="label:N"))
    color = channel("policy:N", None, sort=order, scale=in_turn(order), legend=legend)
    chart = layers(*parts, rows=data, size=TRADE_OFF_PX, color=color)
    return styled(chart, "Throughput against energy", f"mean ± sd over seeds; {said}")


def budget_figure(rows: Sequence[Row], budgets_w: Sequence[float], said: str) -> Spec:
    """Draw mean and peak power of each policy against the lowest and the highest budget."""
    titles = {"mean_power_w": "mean", "peak_power_w": "peak"}
    data = [
        {"policy": row["policy"], "of": title, "kw": row[name] / 1_000}
        for row in _means(rows, tuple(titles), None)
        for name, title in titles.items()
        if row.get(name) is not None
    ]
    order = list(dict.fromkeys(row["policy"] for row in data))
    edges = sorted({min(budgets_w), max(budgets_w)})
    lines = [
        {
            "kw": w / 1_000,
            "what": f"budget{'' if len(edges) == 1 else ', lowest' if n == 0 else ', highest'}",
        }
        for n, w in enumerate(edges)
    ]
    bars = mark(
        "bar",
        rows=data,
        x=channel("policy:N", None, sort=order, axis={"labelAngle": -35}),
        xOffset=channel("of:N", sort=list(titles.values())),
        y=channel("kw:Q", "Power of the cluster (kW)"),
        color=colour("of", [*titles.values()]),
    )
    limit = mark("rule", {"strokeDash": [6, 4], "color": BEST}, rows=lines, y="kw:Q")
    words = {"align": "left", "dx": 4, "dy": -6, "x": 0, "fontSize": 11, "color": BEST}
    named = mark("text", words, rows=lines, y="kw:Q", text="what:N")
    chart = layers(bars, limit, named, size=(max(WIDTH, 2 * BAR_PX * len(order)), HEIGHT))
    return styled(chart, "Power against the budget", f"mean over seeds; {said}")


def miss_figure(rows: Sequence[Row], said: str) -> Spec:
    """Draw the share of missed deadlines (5.5)."""
    data = _means(rows, ("miss_rate",), None)
    order, title = [row["policy"] for row in data], "Deadlines missed"
    share = channel("miss_rate:Q", format=".1%")
    chart = layers(
        mark("bar", {"color": PALETTE[0]}, y=channel("miss_rate:Q", title, axis={"format": "%"})),
        mark("text", {"dy": -8, "fontSize": 11, "color": GREY}, y="miss_rate:Q", text=share),
        rows=data,
        size=(max(WIDTH, BAR_PX * len(order)), HEIGHT),
        x=channel("policy:N", None, sort=order, axis={"labelAngle": -35}),
    )
    return styled(chart, title, f"mean over seeds; {said}")


def fairness_figure(rows: Sequence[Row], said: str) -> Spec:
    """Draw Jain's index of completion times and of GPU seconds (5.7)."""
    titles = {"jain_jct": "Completion time", "jain_share": "GPU seconds"}
    data = [
        {"policy": row["policy"], "of": title, "value": row[name], "sd": row[f"{name}_sd"]}
        for row in _means(rows, tuple(titles), None)
        for name, title in titles.items()
        if row.get(name) is not None
    ]
    order = list(dict.fromkeys(row["policy"] for row in data))
    chart = mark(
        "bar",
        rows=data,
        x=channel("policy:N", None, sort=order, axis={"labelAngle": -35}),
        xOffset=channel("of:N", sort=list(titles.values())),
        y=channel("value:Q", "Jain's index over users", scale={"domain": [0, 1]}),
        color=colour("of", [*titles.values()]),
    )
    chart["width"] = max(WIDTH, 2 * BAR_PX * len(order))
    return styled(chart, "Fairness", f"mean over seeds, 1 is equal; {said}")


def goal_figures(rows: Sequence[Row], said: str) -> dict[str, Spec]:
    """Draw deadlines and fairness where they are known: `misses`, `fairness`."""
    charts: dict[str, Spec] = {}
    if any(row["miss_rate"] is not None for row in rows):
        charts["misses"] = miss_figure(rows, said)
    if any(row["jain_share"] is not None for row in rows):
        charts["fairness"] = fairness_figure(rows, said)
    return charts


def load_figure(rows: Sequence[Row], said: str) -> Spec:
    """Draw mean completion time against the arrival rate, `rate_per_s` (5.9).

    Twice: of the jobs that ended, as in the thesis, and of all, those that are left counted up to
    the end. Under overload a policy that leaves long jobs aside looks good in the first only.
    """
    panels = {
        "jct_mean_s": "jobs that ended",
        "age_mean_s": "all jobs, unfinished ones up to the end",
    }
    charts = [
        _load_panel(_means(rows, (name,), "rate_per_s"), name, title)
        for name, title in panels.items()
        if any(row.get(name) is not None for row in rows)
    ]
    chart = {"hconcat": charts, "resolve": {"scale": {"y": "shared"}}}
    return styled(chart, "Completion time against load", f"mean over seeds; {said}")


def _load_panel(data: list[dict[str, Any]], name: str, title: str) -> Spec:
    order = list(dict.fromkeys(row["policy"] for row in data))
    for row in data:
        row["minutes"] = row[name] / 60
    dashes = in_turn(order, DASHES, len(PALETTE))
    chart = layers(
        mark("line", strokeDash=channel("policy:N", None, sort=order, scale=dashes)),
        mark("point", {"filled": True, "size": 35}),
        rows=data,
        size=(WIDTH, HEIGHT),
        x=channel("setting:Q", "Arrivals per second", scale={"zero": False}, axis={"format": "~g"}),
        y=channel("minutes:Q", "Mean completion time (min)", scale={"zero": True}),
        color=channel("policy:N", None, sort=order, scale=in_turn(order)),
    )
    return {**chart, "title": {"text": title, "fontSize": 11, "offset": 4}}


def _means(rows: Sequence[Row], names: Sequence[str], setting: str | None) -> list[dict[str, Any]]:
    """Return one row per policy (and setting): mean, sd and both ends of each metric."""
    groups: dict[tuple[str, Any], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["policy"], row[setting] if setting else None), []).append(row)
    found = []
    for (policy, value), members in groups.items():
        point: dict[str, Any] = {"policy": policy, "setting": value}
        point["label"] = policy if value is None else f"{policy} ({value})"
        for name in names:
            seen = spread([member.get(name) for member in members])
            if seen is None:
                continue
            sd = seen.sd or 0.0
            point |= {
                name: seen.mean,
                f"{name}_sd": seen.sd,
                f"{name}_low": seen.mean - sd,
                f"{name}_high": seen.mean + sd,
            }
        if all(name in point for name in names) or len(names) > 1:
            found.append(point)
    return found


def _domain(data: Sequence[Row], name: str) -> list[float]:
    """Return the axis range of the values with their deviations and a margin."""
    least = min((row[f"{name}_low"] for row in data), default=0.0)
    most = max((row[f"{name}_high"] for row in data), default=1.0)
    margin = 0.06 * (most - least) or 0.05 * abs(most) or 1.0
    return [least - margin, most + margin]


def _place_labels(data: Sequence[dict[str, Any]], domains: Mapping[str, list[float]]) -> None:
    """Add `label_x` and `label_y` to every row, in the units of the axes."""
    (left, right), (bottom, top) = domains["energy_kwh"], domains["throughput_per_h"]
    width, height = TRADE_OFF_PX
    across, upwards = (right - left) / width, (top - bottom) / height
    points = [
        ((row["energy_kwh"] - left) / across, (top - row["throughput_per_h"]) / upwards)
        for row in data
    ]
    found = label_places(points, [row["label"] for row in data], TRADE_OFF_PX)
    for row, (x_px, y_px) in zip(data, found, strict=True):
        row |= {"label_x": left + across * x_px, "label_y": top - upwards * y_px}


ROW_PX = 14
STRIP_PX = 90
MOST_TOGETHER = 4
MOST_GPUS = 64
MOST_BARS = 4_000


def over_time_figures(
    results: Mapping[str, SimulationResult], truth: Oracle, said: str
) -> dict[str, Spec]:
    """Return `power` of all policies, and `gpus-POLICY`: the allocation of each."""
    charts = {"power": power_figure({p: power_curve(r) for p, r in results.items()}, said)}
    for policy, result in results.items():
        name = "".join(each if each.isalnum() else "-" for each in policy).strip("-")
        charts[f"gpus-{name}"] = gantt_figure(result, truth, said)
    return charts


def power_figure(curves: Mapping[str, PowerCurve], said: str) -> Spec:
    """Draw the power of the whole cluster under each policy, and the budget dashed.

    Few policies share one chart; more would hide each other and get a strip each.
    """
    order = list(curves)
    if len(order) <= MOST_TOGETHER:
        chart = _power_chart(curves, order, HEIGHT)
    else:
        strips = [_power_chart({name: curves[name]}, order, STRIP_PX) for name in order]
        shared = {"scale": {"x": "shared", "y": "shared"}}
        chart = {"vconcat": strips, "spacing": 6, "resolve": shared}
    dashed = any(_budget_rows(curve) for curve in curves.values())
    about = f"means of short spans, one seed{'; dashed: the budget' if dashed else ''}"
    return styled(chart, "Power over time", f"{about}; {said}")


def _power_chart(curves: Mapping[str, PowerCurve], order: Sequence[str], height: int) -> Spec:
    data = [
        {"policy": policy, "hour": time_s / 3_600, "kw": power_w / 1_000}
        for policy, curve in curves.items()
        for time_s, power_w in zip(curve.times_s.tolist(), curve.mean_w.tolist(), strict=True)
    ]
    alone = len(curves) < len(order)
    last = not alone or order[-1] in curves
    color = channel("policy:N", None, sort=list(order), scale=in_turn(order))
    style = {"interpolate": "step-after", "strokeWidth": 1.5, "opacity": 0.85}
    parts = [mark("line", style, rows=data, color={**color, "legend": None} if alone else color)]
    budget = _budget_rows(next(iter(curves.values()))) if curves else []
    if budget:
        dashed = {"interpolate": "step-after", "strokeDash": [6, 4], "color": BEST}
        parts.append(mark("line", dashed, rows=budget))
    chart = layers(
        *parts,
        size=(2 * WIDTH, height),
        x=channel("hour:Q", "Hours" if last else None, axis={"labels": last}),
        y=channel("kw:Q", "kW" if alone else "Power of the cluster (kW)"),
    )
    if alone:
        chart["title"] = {"text": next(iter(curves)), "fontSize": 11, "offset": 2}
    return chart


def gantt_figure(result: SimulationResult, truth: Oracle, said: str) -> Spec:
    """Draw a row per GPU, a bar per job coloured by its model; black ends mark lost work.

    Of a large cluster the first GPUs are drawn, of many jobs the first ones.
    """
    names, kinds = result.cluster.node_names, result.jobs.kinds
    types = [group.type_name for group in result.cluster.node_groups]
    rows: dict[tuple[int, int], str] = {}
    for node, group in enumerate(result.cluster.node_groups):
        for gpu in range(group.gpus_per_node):
            rows[node, gpu] = f"{names[node]}/{gpu} ({types[node]})"
    shown = dict(list(rows.items())[:MOST_GPUS])
    stretches = [
        {
            "gpu": shown[each.node, each.gpu],
            "begin": each.begin_s / 3_600,
            "end": each.end_s / 3_600,
            "what": kinds[int(result.jobs.kind[each.job])].label,
            "job": each.job,
            "how": each.end,
        }
        for each in gpu_allocations(result, truth)
        if (each.node, each.gpu) in shown
    ]
    bars = stretches[:MOST_BARS]
    stopped = any(bar["how"] in ("preempted", "node died") for bar in bars)
    blocks = mark(
        "bar",
        {"stroke": BACKGROUND, "strokeWidth": 0.6},
        x=channel("begin:Q", "Hours"),
        x2={"field": "end"},
        color=channel("what:N", None),
        tooltip=["job:Q", "what:N", "how:N", "begin:Q", "end:Q"],
    )
    lost = mark(
        "tick",
        {"color": BEST, "thickness": 2.5, "size": ROW_PX},
        where="datum.how == 'preempted' || datum.how == 'node died'",
        x="end:Q",
    )
    chart = layers(
        *((blocks, lost) if stopped else (blocks,)),
        rows=bars,
        size=(2 * WIDTH, ROW_PX * len(shown)),
        y=channel("gpu:N", None, sort=list(shown.values()), axis={"labelFontSize": 9}),
    )
    cut = f"; first {MOST_GPUS} of {len(rows)} GPUs" if len(rows) > len(shown) else ""
    if len(stretches) > len(bars):
        cut += f"; first {MOST_BARS:,} of {len(stretches):,} stretches"
    return styled(
        chart,
        f"Who had which GPU: {result.policy}",
        f"{'black ends: stopped early; ' if stopped else ''}{said}{cut}",
    )


def _budget_rows(curve: PowerCurve) -> list[dict[str, float]]:
    if not np.isfinite(curve.budget_w).any():
        return []
    return [
        {"hour": time_s / 3_600, "kw": budget_w / 1_000}
        for time_s, budget_w in zip(curve.times_s.tolist(), curve.budget_w.tolist(), strict=True)
        if np.isfinite(budget_w)
    ]
