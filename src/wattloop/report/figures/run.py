"""Figures of runs: power over time, energy by component and per step, energy over duration."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.core.units import energy_unit, format_power, short_energy
from wattloop.integrations.serving import ServingPoint, ServingSum
from wattloop.integrations.stored_steps import StepPoint
from wattloop.report.figures.chart import (
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
    spread_over,
    styled,
)
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.store.sample_queries import read_curve
from wattloop.store.samples import Series, power_series

# Power over time against the TDP, as EnergyScopium shows it, of any stored run.
#
# The area under the curve is the energy; the distance to the line is power that was paid for in
# hardware and not used.

MAX_POINTS = 600


def power_figure(
    store: Store, runs: Mapping[str, RunRecord], scope: str, tdp_w: float
) -> Spec | None:
    """Draw power of one scope of several runs (label -> run) over time, with the TDP.

    Args:
        store: where their samples are.
        runs: what to draw, by label.
        scope: `gpu`, `cpu` or `node`.
        tdp_w: sum of the devices' TDP or default limits; 0 draws no line.
    """
    rows: list[dict[str, Any]] = []
    for label, run in runs.items():
        rows += [{"run": label, **row} for row in _rows(store, run, scope)]
    if not rows:
        return None
    part = scope.upper() if scope in ("gpu", "cpu") else scope
    highest_w = max(tdp_w, *(row["power_w"] for row in rows))
    y = channel(
        "power_w:Q", f"Power of {part} (W)", scale={"domain": [0, 1.1 * highest_w], "nice": False}
    )
    curves = layers(
        mark("area", {"opacity": 0.15}, y=channel("power_w:Q", stack=None)),
        mark("line", {"strokeWidth": 1.5}, y=y),
        rows=rows,
        x=channel("time_s:Q", "Time since the start (s)", scale={"domainMin": 0, "nice": False}),
        color=colour("run", list(runs)),
    )
    parts = [curves]
    if tdp_w > 0:
        limit = [{"y": tdp_w, "text": f"TDP {format_power(tdp_w)}"}]
        above = {"align": "left", "dx": 4, "dy": -7, "color": PALETTE[1], "fontSize": 11}
        dashed = {"strokeDash": [6, 4], "color": PALETTE[1]}
        parts.append(mark("rule", dashed, rows=limit, y="y:Q"))
        parts.append(mark("text", above, rows=limit, y="y:Q", x={"value": 0}, text="text:N"))
    chart = layers(*parts, size=(WIDTH * 1.5, HEIGHT))
    kinds = {d.provenance.value for r in runs.values() for d in _domains(r, scope)}
    said = f"energy is the area under the curve; {', '.join(sorted(kinds)) or 'not measured'}"
    against = " against the TDP" if tdp_w > 0 else ""
    return styled(chart, f"Power of {part} over time{against}", said)


def _rows(store: Store, run: RunRecord, scope: str) -> list[dict[str, float]]:
    """Return the sum of the scope's domains, each held until its next point."""
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
    index = bisect_right(pairs, (at_s, math.inf)) - 1
    return pairs[max(0, index)][1]


def _domains(run: RunRecord, scope: str) -> list[Any]:
    return [] if run.result is None else list(run.result.scope_domains(Scope(scope)))


def _series(run: RunRecord, name: str) -> Series | None:
    return power_series(run.feeds).get(name)


ROW_PX = 34


def components_figure(result: WindowResult) -> Spec | None:
    """Draw a bar per counted domain with its uncertainty; None without any."""
    rows: list[dict[str, Any]] = [
        {
            "domain": domain.name,
            "scope": domain.scope.value,
            "energy_j": domain.energy_j,
            "low": max(0.0, domain.energy_j - domain.uncertainty_j),
            "high": domain.energy_j + domain.uncertainty_j,
            "shown": short_energy(domain.energy_j),
        }
        for domain in result.domains
        if domain.energy_j is not None and domain.in_total
    ]
    if not rows:
        return None
    # room for the text behind the longest bar
    scale = {"domain": [0, 1.25 * max(row["high"] for row in rows)], "nice": False}
    title = "Energy (J)"
    chart = layers(
        mark("bar", x=channel("energy_j:Q", title, scale=scale), color=channel("scope:N", None)),
        mark("rule", {"color": GREY}, x=channel("low:Q", title), x2={"field": "high"}),
        mark(
            "text",
            {"align": "left", "dx": 5, "fontSize": 11, "color": GREY},
            x=channel("high:Q", title),
            text="shown:N",
        ),
        rows=rows,
        size=(WIDTH, ROW_PX * len(rows)),
        y=channel("domain:N", None, sort=[row["domain"] for row in rows]),
    )
    missing = f"; missing: {', '.join(part.name for part in result.missing)}"
    kinds = sorted({d.provenance.value for d in result.domains if d.energy_j is not None})
    said = f"{', '.join(kinds)}; lines: uncertainty{missing if result.missing else ''}"
    return styled(chart, "Energy by component", said)


def steps_figure(points: Sequence[StepPoint], provenance: str) -> Spec | None:
    """Draw joules per step and the loss over steps; None where neither is known of two steps.

    Args:
        points: the steps.
        provenance: of their energies.
    """
    energies = [(p.number, p.energy_j, p.steps) for p in points if p.energy_j is not None]
    losses = [(p.number, p.loss, 1) for p in points if p.loss is not None]
    panels: list[Spec] = []
    most = 1
    for title, values in (("Energy per step (J)", energies), ("Loss", losses)):
        if len(values) < 2:
            continue
        size = math.ceil(len(values) / MAX_POINTS)
        parts = [values[n : n + size] for n in range(0, len(values), size)]
        most = max(most, *(sum(count for *_, count in part) for part in parts))
        rows = [
            {
                "step": part[0][0] + 1,
                "value": sum(value for _, value, _ in part) / sum(count for *_, count in part),
            }
            for part in parts
        ]
        whole = {"format": ",d", "tickMinStep": 1}
        x = channel("step:Q", "Step", scale={"nice": False, "zero": False}, axis=whole)
        panels.append(_panel(rows, x, title, len(panels), from_zero=values is energies))
    if not panels:
        return None
    said = f"each point is the mean of up to {most:,} steps" if most > 1 else "every step"
    return styled(_above(panels), "Training steps", f"{said}; energy {provenance}")


def serving_figure(
    points: Sequence[ServingPoint], started_s: float, provenance: str
) -> Spec | None:
    """Draw generated tokens per second, and joules per generated token, over time.

    Args:
        points: stretches of time; None is returned for fewer than two with a known count.
        started_s: the start of the run on their clock.
        provenance: of their energies.
    """
    size = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [ServingSum(points[n : n + size]) for n in range(0, len(points), size)]
    begins_s = [points[n].begin_s - started_s for n in range(0, len(points), size)]
    costs = [(s, part.totals().costs) for s, part in zip(begins_s, parts, strict=True)]
    x = channel("time_s:Q", "Time since the start (s)", scale={"nice": False})
    panels: list[Spec] = []
    for title, key in (
        ("Generated tokens/s", "generated_tokens_per_s"),
        ("J per generated token", "generated_token_j"),
    ):
        rows = [{"time_s": s, "value": cost[key]} for s, cost in costs if key in cost]
        if len(rows) > 1:
            panels.append(_panel(rows, x, title, len(panels), from_zero=True))
    if not panels:
        return None
    said = "times without a generated token have no energy per token"
    return styled(_above(panels), "Tokens of the server", f"{said}; energy {provenance}")


def _panel(
    rows: Sequence[dict[str, Any]], x: Spec, title: str, number: int, *, from_zero: bool
) -> Spec:
    """Return a curve of `value`, logarithmic over two decades."""
    kind, color = spread_over([row["value"] for row in rows]), PALETTE[number]
    dots = {"color": color} if len(rows) <= FEW_STEPS else False
    scale = {"type": kind, "zero": kind == "linear" and from_zero}
    style = {"strokeWidth": 1.5, "color": color, "point": dots}
    line = mark("line", style, rows=rows, x=x, y=channel("value:Q", title, scale=scale))
    return {**line, "width": WIDTH * 1.5, "height": PANEL_PX}


def _above(panels: Sequence[Spec]) -> Spec:
    return {"vconcat": panels, "resolve": {"scale": {"x": "shared"}}}


FEW_STEPS = 60
"""Curves of more steps are drawn without a dot for each."""
PANEL_PX = 160
MOST_POINTS = 600


def slope_figure(
    points: Sequence[tuple[str, float, float]], lines: Sequence[tuple[str, float, float]]
) -> Spec:
    """Draw each run as a point and each device as a line.

    Args:
        points: device, seconds, joules of every run.
        lines: device, watts of its slope, joules at 0 s.
    """
    step = max(1, -(-len(points) // MOST_POINTS))
    shown = points[::step]
    longest_s: dict[str, float] = {}
    for device, duration_s, _ in points:
        longest_s[device] = max(longest_s.get(device, 0.0), duration_s)
    order = list(dict.fromkeys(device for device, _, _ in points))
    unit, scale_j = energy_unit(max((energy_j for _, _, energy_j in points), default=0.0))
    time, scale_s = ("h", 3_600.0) if max(longest_s.values(), default=0.0) >= 7_200 else ("s", 1.0)
    ends = [
        {"device": device, "time": s / scale_s, "energy": (intercept_j + slope_w * s) / scale_j}
        for device, slope_w, intercept_j in lines
        for s in (0.0, longest_s.get(device, 0.0))
    ]
    sampled = f"; {len(shown)} of {len(points)} runs drawn" if step > 1 else ""
    chart = layers(
        mark(
            "point",
            {"filled": True, "size": 35, "opacity": 0.6},
            rows=[{"device": d, "time": s / scale_s, "energy": j / scale_j} for d, s, j in shown],
            tooltip=["device:N", channel("time:Q", time), channel("energy:Q", unit)],
        ),
        mark("line", rows=ends),
        size=(int(1.5 * WIDTH), HEIGHT),
        x=channel("time:Q", f"Duration ({time})"),
        y=channel("energy:Q", f"Energy ({unit})"),
        color=channel("device:N", None, scale=in_turn(order)),
    )
    return styled(chart, "Energy against duration", f"lines: least squares per device{sampled}")


def daily_figure(days: Sequence[tuple[str, str, float]], by: str) -> Spec:
    """Draw the energy of each day as stacked bars.

    Args:
        days: date, project or user, joules.
        by: what the names are.
    """
    unit, scale_j = energy_unit(max(energy_j for _, _, energy_j in days))
    sums: dict[str, float] = {}
    for _, name, energy_j in days:
        sums[name] = sums.get(name, 0.0) + energy_j
    order = sorted(sums, key=lambda name: -sums[name])
    chart = mark(
        "bar",
        {"cornerRadius": 1},
        rows=[
            {"day": day, "name": name, "energy": j / scale_j, "place": order.index(name)}
            for day, name, j in days
        ],
        x=channel(
            "day:O",
            None,
            timeUnit="yearmonthdate",
            type="ordinal",
            axis={
                "format": "%b %d",
                "labelAngle": 0,
                "labelOverlap": "greedy",
            },
        ),
        y=channel("energy:Q", f"Energy ({unit})", stack="zero"),
        color=channel("name:N", None, scale=in_turn(order)),
        order={"field": "place", "type": "quantitative"},
        tooltip=[
            {"field": "day", "type": "temporal", "title": "day"},
            channel("name:N", by),
            channel("energy:Q", unit, format=",.3~g"),
        ],
    )
    return styled({**chart, "width": 2 * WIDTH, "height": 220}, "", "")
