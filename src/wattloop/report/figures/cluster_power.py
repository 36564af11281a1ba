"""Figures of a cluster over time: power against the budget (thesis 5.6), GPU allocation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.style import BEST, HEIGHT, PALETTE, WIDTH, styled
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
) -> dict[str, Any]:
    """Return `power` of all policies, and `gpus-POLICY`: the allocation of each."""
    charts = {"power": power_figure({p: power_curve(r) for p, r in results.items()}, said)}
    for policy, result in results.items():
        name = "".join(each if each.isalnum() else "-" for each in policy).strip("-")
        charts[f"gpus-{name}"] = gantt_figure(result, truth, said)
    return charts


def power_figure(curves: Mapping[str, PowerCurve], said: str) -> Any:
    """Draw the power of the whole cluster under each policy, and the budget dashed.

    Few policies share one chart; more would hide each other and get a strip each.
    """
    import altair as alt

    order = list(curves)
    if len(order) <= MOST_TOGETHER:
        chart = _power_chart(curves, order, HEIGHT)
    else:
        strips = [_power_chart({name: curves[name]}, order, STRIP_PX) for name in order]
        chart = alt.vconcat(*strips, spacing=6).resolve_scale(x="shared", y="shared")
    dashed = any(_budget_rows(curve) for curve in curves.values())
    about = f"means of short spans, one seed{'; dashed: the budget' if dashed else ''}"
    return styled(chart, "Power over time", f"{about}; {said}")


def _power_chart(curves: Mapping[str, PowerCurve], order: Sequence[str], height: int) -> Any:
    import altair as alt

    data = [
        {"policy": policy, "hour": time_s / 3_600, "kw": power_w / 1_000}
        for policy, curve in curves.items()
        for time_s, power_w in zip(curve.times_s.tolist(), curve.mean_w.tolist(), strict=True)
    ]
    alone = len(curves) < len(order)
    last = not alone or order[-1] in curves
    x = alt.X("hour:Q", title="Hours" if last else None, axis=alt.Axis(labels=last))
    y = alt.Y("kw:Q", title="kW" if alone else "Power of the cluster (kW)")
    scale = alt.Scale(domain=order, range=[PALETTE[n % len(PALETTE)] for n in range(len(order))])
    color = alt.Color("policy:N", title=None, sort=list(order), scale=scale)
    layers = [
        alt.Chart(rows_data(data))
        .mark_line(interpolate="step-after", strokeWidth=1.5, opacity=0.85)
        .encode(x=x, y=y, color=color.legend(None) if alone else color)
    ]
    budget = _budget_rows(next(iter(curves.values()))) if curves else []
    if budget:
        layers.append(
            alt.Chart(alt.Data(values=budget))
            .mark_line(interpolate="step-after", strokeDash=[6, 4], color=BEST)
            .encode(x=x, y=y)
        )
    chart = alt.layer(*layers).properties(width=2 * WIDTH, height=height)
    if not alone:
        return chart
    name = alt.TitleParams(text=next(iter(curves)), fontSize=11, offset=2)
    return chart.properties(title=name)


def gantt_figure(result: SimulationResult, truth: Oracle, said: str) -> Any:
    """Draw a row per GPU, a bar per job coloured by its model; black ends mark lost work.

    Of a large cluster the first GPUs are drawn, of many jobs the first ones.
    """
    import altair as alt

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
    base = alt.Chart(rows_data(bars))
    y = alt.Y("gpu:N", sort=list(shown.values()), title=None, axis=alt.Axis(labelFontSize=9))
    x = alt.X("begin:Q", title="Hours")
    what = alt.Color("what:N", title=None)
    blocks = base.mark_bar(stroke="white", strokeWidth=0.6).encode(
        x=x,
        x2=alt.X2("end:Q"),
        y=y,
        color=what,
        tooltip=[
            alt.Tooltip("job:Q"),
            alt.Tooltip("what:N"),
            alt.Tooltip("how:N"),
            alt.Tooltip("begin:Q"),
            "end:Q",
        ],
    )
    lost = (
        base.transform_filter("datum.how == 'preempted' || datum.how == 'node died'")
        .mark_tick(color=BEST, thickness=2.5, size=ROW_PX)
        .encode(x=alt.X("end:Q"), y=y)
    )
    height = ROW_PX * len(shown)
    stopped = any(bar["how"] in ("preempted", "node died") for bar in bars)
    layers = [blocks, lost] if stopped else [blocks]
    chart = alt.layer(*layers).properties(width=2 * WIDTH, height=height)
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
