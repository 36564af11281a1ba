"""Figures of a cluster over time: power against the budget (thesis 5.6), GPU allocation."""

from collections.abc import Mapping, Sequence

import numpy as np

from wattloop.report.figures.chart import (
    BACKGROUND,
    BEST,
    HEIGHT,
    WIDTH,
    Spec,
    channel,
    in_turn,
    layers,
    mark,
    styled,
)
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.metrics.curves import PowerCurve, gpu_allocations, power_curve

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
