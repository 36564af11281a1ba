"""Roofline figures: the rate of each kernel below the limits of its device.

Both axes are logarithmic: left of the ridge memory is the limit (a line of slope one), right of it
arithmetic (a flat line). A second figure sets rate against power, as figure 3.6 of the thesis.
"""

from collections.abc import Sequence
from typing import Any

from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import Peaks, roofline
from wattloop.report.figures.chart_data import rows_data
from wattloop.report.figures.style import GREY, HEIGHT, WIDTH, colour, styled

MARGIN = 2.0
"""How far axes go beyond the outermost point, as a factor."""


def roofline_figures(results: Sequence[KernelResult]) -> dict[str, Any]:
    """Draw a roofline for each device and format with peaks, and power where it was read."""
    peaks, _ = roofline(results)
    charts: dict[str, Any] = {}
    for own in peaks:
        mine = [r for r in results if r.ok and (r.device, r.dtype) == (own.device, own.dtype)]
        place = f"{own.device}-{own.dtype}".replace(":", "")
        chart = roofline_figure(mine, own)
        if chart is not None:
            charts[f"roofline-{place}"] = chart
        chart = power_figure(mine)
        if chart is not None:
            charts[f"power-{place}"] = chart
    return charts


def roofline_figure(results: Sequence[KernelResult], peaks: Peaks) -> Any | None:
    """Draw one roofline; None without both peaks, or without a kernel that moves data."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "intensity": r.intensity,
            "gflops": r.gflops,
            "kernel": r.kernel,
            "who": _who(r),
            "share": None if not roof else (r.gflops or 0) / roof,
        }
        for r in results
        if r.intensity is not None
        for roof in (peaks.attainable_gflops(r.intensity),)
    ]
    ridge = peaks.ridge_flop_per_b
    if not rows or ridge is None or peaks.gb_s is None:
        return None
    low = min(*(row["intensity"] for row in rows), ridge) / MARGIN
    high = max(*(row["intensity"] for row in rows), ridge) * MARGIN
    roof = [
        {"intensity": x, "gflops": peaks.attainable_gflops(x), "order": number}
        for number, x in enumerate((low, ridge, high))
    ]
    x = alt.X(
        "intensity:Q",
        title="Arithmetic intensity (FLOP per byte)",
        scale=alt.Scale(type="log", domain=(low, high), nice=False),
    )
    y = alt.Y("gflops:Q", title="GFLOPS", scale=alt.Scale(type="log"))
    line = alt.Chart(alt.Data(values=roof)).mark_line(color=GREY, strokeWidth=2)
    names = list(dict.fromkeys(row["who"] for row in rows))
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    points = (
        alt.Chart(rows_data(rows))
        .mark_point(size=70, filled=True, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=colour("who", names),
            shape=alt.Shape("kernel:N", title=None, sort=kernels),
            tooltip=[
                alt.Tooltip("kernel:N"),
                alt.Tooltip("who:N", title="framework"),
                alt.Tooltip("gflops:Q", title="GFLOPS", format=",.3~f"),
                alt.Tooltip("intensity:Q", title="FLOP/B", format=".3~f"),
                alt.Tooltip("share:Q", title="of roof", format=".0%"),
            ],
        )
    )
    chart = alt.layer(line.encode(x=x, y=y, order=alt.Order("order:Q")), points)
    device = results[0].device_name or peaks.device
    said = (
        f"roof: best gemm ({peaks.gflops_from}, {peaks.gflops:,.0f} GFLOPS) and best triad "
        f"({peaks.gb_s_from}, {peaks.gb_s:,.0f} GB/s) of the same session"
    )
    return styled(
        chart.properties(width=WIDTH, height=HEIGHT), f"Roofline of {device}, {peaks.dtype}", said
    )


def power_figure(results: Sequence[KernelResult]) -> Any | None:
    """Draw GFLOPS against mean power of the scope at work; None without power."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {"power_w": r.power_w(), "gflops": r.gflops, "kernel": r.kernel, "who": _who(r)}
        for r in results
        if r.power_w() and r.gflops
    ]
    if not rows:
        return None
    scope = results[0].scope
    kinds = sorted({r.scopes[r.scope].provenance for r in results if r.scope in r.scopes})
    names = list(dict.fromkeys(row["who"] for row in rows))
    chart = (
        alt.Chart(rows_data(rows))
        .mark_point(size=70, filled=True, opacity=0.9)
        .encode(
            x=alt.X("power_w:Q", title=f"Power of {scope} (W)", scale=alt.Scale(zero=False)),
            y=alt.Y("gflops:Q", title="GFLOPS", scale=alt.Scale(type="log")),
            color=colour("who", names),
            shape=alt.Shape("kernel:N", title=None),
            tooltip=[
                alt.Tooltip("kernel:N"),
                alt.Tooltip("who:N"),
                alt.Tooltip("gflops:Q"),
                "power_w:Q",
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return styled(chart, f"Rate against power of {scope}", f"power: {', '.join(kinds)}")


def _who(result: KernelResult) -> str:
    threads = f", {result.threads} thr" if result.scope == "cpu" else ""
    return f"{result.backend} {result.style}{threads}"
