"""Power over time against the TDP, as EnergyScopium shows it, of any stored run.

The area under the curve is the energy; the distance to the line is power that was paid for in
hardware and not used.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.records import Scope
from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import HEIGHT, PALETTE, WIDTH, colour, styled
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.store.samples import Series, power_series, read_curve

__all__ = ["power_figure"]

MAX_POINTS = 600


def power_figure(store: Store, runs: Mapping[str, RunRecord], scope: str, tdp_w: float) -> Any:
    """Power of one scope of several runs (label -> run) over time, with the TDP as a line.

    Args:
        store: where their samples are.
        runs: what to draw, by label.
        scope: `gpu`, `cpu` or `node`.
        tdp_w: sum of the devices' TDP or default limits; 0 draws no line.
    """
    import altair as alt

    rows: list[dict[str, Any]] = []
    for label, run in runs.items():
        rows += [{"run": label, **row} for row in _rows(store, run, scope)]
    if not rows:
        return None
    order = list(runs)
    base = alt.Chart(rows_data(rows)).encode(
        x=alt.X(
            "time_s:Q",
            title="Time since the start (s)",
            scale=alt.Scale(domainMin=0, nice=False),
        )
    )
    color = colour("run", order)
    part = scope.upper() if scope in ("gpu", "cpu") else scope
    highest_w = max(tdp_w, *(row["power_w"] for row in rows))
    scale = alt.Scale(domain=[0, 1.1 * highest_w], nice=False)
    y = alt.Y("power_w:Q", title=f"Power of {part} (W)", scale=scale)
    layers = [
        base.mark_area(opacity=0.15).encode(y=alt.Y("power_w:Q", stack=None), color=color),
        base.mark_line(strokeWidth=1.5).encode(y=y, color=color),
    ]
    if tdp_w > 0:
        line = alt.Chart(alt.Data(values=[{"y": tdp_w, "text": f"TDP {tdp_w:.4g} W"}]))
        layers.append(line.mark_rule(strokeDash=[6, 4], color=PALETTE[1]).encode(y=alt.Y("y:Q")))
        layers.append(
            line.mark_text(align="left", dx=4, dy=-7, color=PALETTE[1], fontSize=11).encode(
                y=alt.Y("y:Q"), x=alt.value(0), text=alt.Text("text:N")
            )
        )
    chart = alt.layer(*layers).properties(width=WIDTH * 1.5, height=HEIGHT)
    kinds = {d.provenance.value for r in runs.values() for d in _domains(r, scope)}
    said = f"energy is the area under the curve; {', '.join(sorted(kinds)) or 'not measured'}"
    against = " against the TDP" if tdp_w > 0 else ""
    return styled(chart, f"Power of {part} over time{against}", said)


def _rows(store: Store, run: RunRecord, scope: str) -> list[dict[str, float]]:
    """The sum of the scope's domains, each held until its next point."""
    names = [d.name for d in _domains(run, scope)]
    curves = []
    for name in names:
        series = _series(run, name)
        if series is None:
            return []
        curve = read_curve(store, run.run_id, series, max_points=MAX_POINTS)
        pairs = [
            (max(0.0, t - run.started_s), p)
            for t, p in zip(curve.times_s, curve.mean, strict=True)
            if not math.isnan(p)
        ]
        if pairs:
            curves.append(pairs)
    if not curves:
        return []
    moments_s = sorted({t for pairs in curves for t, _ in pairs})
    moments_s = moments_s[:: max(1, math.ceil(len(moments_s) / MAX_POINTS))]
    return [{"time_s": t, "power_w": sum(_held(pairs, t) for pairs in curves)} for t in moments_s]


def _held(pairs: Sequence[tuple[float, float]], at_s: float) -> float:
    from bisect import bisect_right

    index = bisect_right(pairs, (at_s, math.inf)) - 1
    return pairs[max(0, index)][1]


def _domains(run: RunRecord, scope: str) -> list[Any]:
    return [] if run.result is None else list(run.result.scope_domains(Scope(scope)))


def _series(run: RunRecord, name: str) -> Series | None:
    return power_series(run.feeds).get(name)
