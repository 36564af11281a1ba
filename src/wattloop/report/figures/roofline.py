"""Roofline figures: the rate of each kernel below the limits of its device.

Both axes are logarithmic: left of the ridge memory is the limit (a line of slope one), right of it
arithmetic (a flat line). A second figure sets rate against power, as figure 3.6 of the thesis.
"""

from collections.abc import Sequence
from typing import Any

from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import Peaks, roofline
from wattloop.report.figures.chart import GREY, Spec, channel, colour, layers, mark, styled

MARGIN = 2.0
"""How far axes go beyond the outermost point, as a factor."""
RATE = channel("gflops:Q", "GFLOPS", scale={"type": "log"})


def roofline_figures(results: Sequence[KernelResult]) -> dict[str, Spec]:
    """Draw a roofline for each device and format with peaks, and power where it was read."""
    peaks, _ = roofline(results)
    charts: dict[str, Spec] = {}
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


def roofline_figure(results: Sequence[KernelResult], peaks: Peaks) -> Spec | None:
    """Draw one roofline; None without both peaks, or without a kernel that moves data."""
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
    chart = layers(
        mark("line", {"color": GREY, "strokeWidth": 2}, rows=roof, order="order:Q"),
        _kernels(
            rows,
            channel("kernel:N", None, sort=list(dict.fromkeys(row["kernel"] for row in rows))),
            [
                "kernel:N",
                channel("who:N", "framework"),
                channel("gflops:Q", "GFLOPS", format=",.3~f"),
                channel("intensity:Q", "FLOP/B", format=".3~f"),
                channel("share:Q", "of roof", format=".0%"),
            ],
        ),
        x=channel(
            "intensity:Q",
            "Arithmetic intensity (FLOP per byte)",
            scale={"type": "log", "domain": [low, high], "nice": False},
        ),
        y=RATE,
    )
    device = results[0].device_name or peaks.device
    said = (
        f"roof: best gemm ({peaks.gflops_from}, {peaks.gflops:,.0f} GFLOPS) and best triad "
        f"({peaks.gb_s_from}, {peaks.gb_s:,.0f} GB/s) of the same session"
    )
    return styled(chart, f"Roofline of {device}, {peaks.dtype}", said)


def power_figure(results: Sequence[KernelResult]) -> Spec | None:
    """Draw GFLOPS against mean power of the scope at work; None without power."""
    rows: list[dict[str, Any]] = [
        {"power_w": r.power_w(), "gflops": r.gflops, "kernel": r.kernel, "who": _who(r)}
        for r in results
        if r.power_w() and r.gflops
    ]
    if not rows:
        return None
    scope = results[0].scope
    kinds = sorted({r.scopes[r.scope].provenance for r in results if r.scope in r.scopes})
    chart = layers(
        _kernels(rows, channel("kernel:N", None), ["kernel:N", "who:N", "gflops:Q", "power_w:Q"]),
        x=channel("power_w:Q", f"Power of {scope} (W)", scale={"zero": False}),
        y=RATE,
    )
    return styled(chart, f"Rate against power of {scope}", f"power: {', '.join(kinds)}")


def _kernels(rows: list[dict[str, Any]], shape: Spec, tooltip: list[Any]) -> Spec:
    """Return a point per kernel, coloured by framework."""
    names = list(dict.fromkeys(row["who"] for row in rows))
    style = {"size": 70, "filled": True, "opacity": 0.9}
    return mark("point", style, rows=rows, color=colour("who", names), shape=shape, tooltip=tooltip)


def _who(result: KernelResult) -> str:
    threads = f", {result.threads} thr" if result.scope == "cpu" else ""
    return f"{result.backend} {result.style}{threads}"
