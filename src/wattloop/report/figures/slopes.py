"""Energy against duration of many runs, a line per kind of device (document 000)."""

from collections.abc import Sequence
from typing import Any

from wattloop.report.figures.rows import rows_data
from wattloop.report.figures.style import HEIGHT, PALETTE, WIDTH, styled

__all__ = ["slope_figure"]

MOST_POINTS = 600


def slope_figure(
    points: Sequence[tuple[str, float, float]], lines: Sequence[tuple[str, float, float]]
) -> Any:
    """Each run a point, each device a line.

    Args:
        points: device, seconds, joules of every run.
        lines: device, watts of its slope, joules at 0 s.
    """
    import altair as alt

    step = max(1, -(-len(points) // MOST_POINTS))
    shown = points[::step]
    longest_s: dict[str, float] = {}
    for device, duration_s, _ in points:
        longest_s[device] = max(longest_s.get(device, 0.0), duration_s)
    order = list(dict.fromkeys(device for device, _, _ in points))
    scale = alt.Scale(domain=order, range=[PALETTE[n % len(PALETTE)] for n in range(len(order))])
    colour = alt.Color("device:N", title=None, scale=scale)
    x, y = alt.X("s:Q", title="Duration (s)"), alt.Y("j:Q", title="Energy (J)")
    dots = (
        alt.Chart(rows_data([{"device": d, "s": s, "j": j} for d, s, j in shown]))
        .mark_point(filled=True, size=35, opacity=0.6)
        .encode(
            x=x, y=y, color=colour, tooltip=[alt.Tooltip("device:N"), alt.Tooltip("s:Q"), "j:Q"]
        )
    )
    ends = [
        {"device": device, "s": s, "j": intercept_j + slope_w * s}
        for device, slope_w, intercept_j in lines
        for s in (0.0, longest_s.get(device, 0.0))
    ]
    drawn = alt.Chart(alt.Data(values=ends)).mark_line().encode(x=x, y=y, color=colour)
    sampled = f"; {len(shown)} of {len(points)} runs drawn" if step > 1 else ""
    chart = alt.layer(dots, drawn).properties(width=int(1.5 * WIDTH), height=HEIGHT)
    return styled(chart, "Energy against duration", f"lines: least squares per device{sampled}")
