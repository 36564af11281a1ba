"""Figures of searches: levels, parallel coordinates, Pareto front, quotient, course of `sm2`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.configuration_matrix import Matrix
from wattloop.analyze.efficiency_quotient import VARIANTS, Quotients
from wattloop.analyze.pareto import Front
from wattloop.analyze.roles import default_target
from wattloop.analyze.table import RunTable
from wattloop.core.units import J_PER_WH
from wattloop.report.figures.chart import (
    BACKGROUND,
    BEST,
    GREY,
    HEIGHT,
    INK,
    MOST_POINTS,
    PALETTE,
    WIDTH,
    Spec,
    channel,
    colour,
    drawn_rows,
    fitted,
    in_turn,
    layers,
    mark,
    ringed,
    spread_over,
    styled,
    titled,
    tooltips,
    with_tooltips,
)
from wattloop.tune.strategies.sm2.sm2 import Sm2

MOST_LINES = 200
"""With more runs than this a line is the mean of several neighbours."""
CELL_PX = 14
NARROW = 300


def matrix_figures(found: Matrix) -> dict[str, Spec]:
    """Draw a line per run, best on top; a dark field is a level that was on."""
    lines = np.array_split(np.arange(len(found.runs)), min(MOST_LINES, len(found.runs)))
    levels = [f"{parameter}_{level}" for parameter, level in found.levels]
    rows = []
    for place, members in enumerate(lines):
        shares = found.switched[members].mean(axis=0)
        value = float(found.values[members].mean())
        name = found.runs[members[0]] if len(members) == 1 else f"{len(members)} runs"
        for level, (parameter, _), share in zip(levels, found.levels, shares, strict=True):
            if share > 0:
                rows.append(
                    {
                        "line": len(lines) - place,
                        "level": level,
                        "parameter": parameter,
                        "share": float(share),
                        "value": value,
                        "run": name,
                    }
                )
    order = list(dict.fromkeys(parameter for parameter, _ in found.levels))
    height = max(min(CELL_PX * len(lines), 640), 120)
    chart = mark(
        "rect",
        {"stroke": BACKGROUND, "strokeWidth": 0.4 if len(lines) < MOST_LINES else 0},
        rows=rows,
        x=channel(
            "level:N",
            None,
            sort=levels,
            axis={"labelAngle": -60, "labelLimit": 200, "labelOverlap": False},
        ),
        y=channel(
            "line:O",
            "Runs, best on top",
            axis={"labels": False, "ticks": False},
            scale={"domain": list(range(1, len(lines) + 1))},
        ),
        # neighbours differ, and ten parameters need more than eight colours
        color=channel(
            "parameter:N", sort=order, legend=None, scale=in_turn(order, (PALETTE[0], PALETTE[6]))
        ),
        opacity=channel("share:Q", legend=None, scale={"domain": [0, 1], "range": [0, 1]}),
        tooltip=["run:N", "level:N", channel("value:Q", found.metric)],
    )
    chart |= {"width": CELL_PX * len(levels), "height": height}
    ends = f"from {found.values[-1]:.4g} (top) to {found.values[0]:.4g}"
    each = f"; a line is the mean of {len(lines[0])}" if len(lines[0]) > 1 else ""
    said = f"{len(found.runs)} runs by {titled(found.metric)}, {ends}{each}"
    return {"matrix": styled(chart, "Configuration matrix", said)}


MOST_AXES, LEAST_BETWEEN_AXES_PX = 10, 45
LEGIBLE_VIRIDIS = {"name": "viridis", "extent": [0.3, 0.95]}
"""Without its ends, which a dark or a light page hides."""
MOST_PARALLEL_LINES = 600
"""More lines than this are one grey band."""


def parallel_figure(table: RunTable) -> Spec | None:
    """Draw parallel coordinates scaled to their range; None with one axis.

    Columns that do not vary are left out; of text, levels take equal places.
    """
    wanted = [*table.parameters, *(n for n in table.results if table.is_numeric(n))]
    places = {name: found for name in wanted if (found := _places(table, name)) is not None}
    axes = list(places)[:MOST_AXES]
    if len(axes) < 2 or len(table) < 2:
        return None
    target = default_target(table)
    colours = table.numbers(target)
    numbers, sampled = drawn_rows(table, most=MOST_PARALLEL_LINES)
    rows = [
        {
            "run": table.names[n],
            "axis": name,
            "place": places[name][0][n],
            "value": places[name][1][n],
            "target": None if math.isnan(colours[n]) else float(colours[n]),
        }
        for n in numbers
        for name in axes
        if places[name][0][n] is not None
    ]
    ends = [
        {"axis": name, "place": at, "text": places[name][2][at]} for name in axes for at in (0, 1)
    ]
    line = mark(
        "line",
        {"opacity": 0.45, "strokeWidth": 1.2},
        rows=rows,
        detail="run:N",
        color=channel("target:Q", titled(target), scale={"scheme": LEGIBLE_VIRIDIS}),
        tooltip=["run:N", "axis:N", "value:N", "target:Q"],
    )
    # on a phone texts stand upright: they would run into each other
    narrow = f"width < {LEAST_BETWEEN_AXES_PX * len(axes)}"
    upright_px = 12 + 7 * max(len(places[name][2][0]) for name in axes)
    ends_text = {
        "angle": {"expr": f"{narrow} ? -90 : 0"},
        "align": {"expr": f"{narrow} ? (datum.place ? 'left' : 'right') : 'center'"},
        "dx": {"expr": f"{narrow} ? (datum.place ? 5 : -5) : 0"},
        "dy": {"expr": f"{narrow} ? 0 : (datum.place ? -8 : 10)"},
        "baseline": "middle",
        "fontSize": 10,
        "color": INK,
    }
    bare = {
        "labelAngle": {"expr": f"{narrow} ? -90 : -20"},
        "labelPadding": {"expr": f"{narrow} ? {upright_px} : 16"},
        "domain": False,
        "ticks": False,
    }
    chart = layers(
        mark("rule", {"color": GREY, "opacity": 0.6}, rows=ends),
        line,
        mark("text", ends_text, rows=ends, text="text:N"),
        size=(int(1.7 * WIDTH), HEIGHT),
        x=channel("axis:N", None, sort=axes, axis=bare),
        y=channel("place:Q", axis=None),
    )
    said = "; ".join(filter(None, (table.source, f"coloured by {titled(target)}", sampled)))
    return styled(chart, "Parallel coordinates", said)


def _places(
    table: RunTable, name: str
) -> tuple[list[float | None], list[str], tuple[str, str]] | None:
    """Return each row's position from 0 to 1, its text, and the texts of both ends."""
    if table.is_numeric(name):
        values = table.numbers(name)
        known = values[np.isfinite(values)]
        if not len(known) or known.min() == known.max():
            return None
        low, high = float(known.min()), float(known.max())
        places = [None if math.isnan(v) else (float(v) - low) / (high - low) for v in values]
        return places, [f"{v:.4g}" for v in values], (f"{low:.4g}", f"{high:.4g}")
    texts = [str(value) for value in table.column(name)]
    levels = sorted(set(texts))
    if len(levels) < 2:
        return None
    at = {level: n / (len(levels) - 1) for n, level in enumerate(levels)}
    return [at[text] for text in texts], texts, (levels[0], levels[-1])


def pareto_figures(found: Front) -> dict[str, Spec]:
    """Draw the first two objectives; a third is the colour."""
    table, names = found.table, list(found.objectives)
    shown = [*names, *table.parameters]
    numbers, sampled = drawn_rows(table, found.is_on_front)
    columns = {name: table.numbers(name) for name in names}
    rows = [
        {
            "x": float(columns[names[0]][n]),
            "y": float(columns[names[1]][n]),
            "z": float(columns[names[2]][n]) if len(names) > 2 else None,
            "front": found.is_on_front[n],
            "knee": table.names[n] == found.knee,
            **with_tooltips(table, n, shown),
        }
        for n in numbers
    ]
    parts = [
        mark(
            "point",
            {"color": GREY, "opacity": 0.35, "filled": True, "size": 28},
            where="!datum.front",
        )
    ]
    dots = {"filled": True, "size": 60, "opacity": 1}
    if len(names) == 2:
        # between two points of the front the worse of them is what can be had
        step = "step-before" if found.objectives[names[0]] else "step-after"
        line = {"color": PALETTE[1], "interpolate": step, "opacity": 0.7}
        parts.append(mark("line", line, where="datum.front"))
        parts.append(mark("point", {**dots, "color": PALETTE[1]}, where="datum.front"))
    else:
        z = channel("z:Q", titled(names[2]), scale={"scheme": "viridis"})
        parts.append(mark("point", dots, where="datum.front", color=z))
    chart = layers(
        *parts,
        *ringed("datum.knee", "run:N"),
        rows=rows,
        x=channel("x:Q", titled(names[0]), scale=fitted([row["x"] for row in rows])),
        y=channel("y:Q", titled(names[1]), scale=fitted([row["y"] for row in rows])),
        tooltip=tooltips(shown),
    )
    count = sum(found.is_on_front)
    on_front = f"{count} run{'s' * (count != 1)} on the front"
    ring = "" if found.knee is None else "ring: knee"
    said = "; ".join(filter(None, (table.source, on_front, ring, sampled)))
    return {"pareto": styled(chart, "Pareto front", said)}


def metrics_figures(found: Findings) -> dict[str, Spec]:
    """Draw energy gain against time loss; energy against time without a reference."""
    compared = found.facts["reference"] is not None
    x_name, y_name = ("time_loss_pct", "energy_gain_pct") if compared else ("time_s", "energy_j")
    rows = [
        {"x": r[x_name], "y": r[y_name], "run": r["run"], "edp": r["edp_js"]}
        for r in found.rows
        if r[x_name] is not None
    ]
    x_title, y_title = (
        ("Time loss (%)", "Energy gain (%)") if compared else ("Time (s)", "Energy (J)")
    )
    first = min(rows, key=lambda row: row["edp"])
    best = first["run"]
    if len(rows) > MOST_POINTS:
        rows = [first, *rows[:: len(rows) // MOST_POINTS + 1]]
    points = layers(
        mark("point", {"color": PALETTE[0], "filled": True, "size": 45, "opacity": 0.8}),
        *ringed(f"datum.run === {json.dumps(best)}", "run:N"),
        rows=rows,
        x=channel("x:Q", x_title, scale=fitted([row["x"] for row in rows])),
        y=channel("y:Q", y_title, scale=fitted([row["y"] for row in rows])),
        tooltip=["run:N", channel("x:Q", x_title), channel("y:Q", y_title)],
    )
    parts = []
    if compared:
        low = max(min(row["x"] for row in rows), min(row["y"] for row in rows))
        high = min(max(row["x"] for row in rows), max(row["y"] for row in rows))
        dashed = {"color": GREY, "strokeDash": [4, 4], "clip": True}
        ends = [{"x": v, "y": v} for v in (low, high)]
        parts.append(mark("line", dashed, rows=ends, x="x:Q", y="y:Q"))
    chart = layers(*parts, points)
    said = "ring: lowest EDP" + (
        "; above the dashed line more is gained than lost" if compared else ""
    )
    title = f"Against {found.facts['reference']}" if compared else "Energy against time"
    return {"metrics": styled(chart, title, said)}


SHOWN = {"accuracy": "accuracy", "power": "energy_wh", "quotient": "quotient_per_wh"}
"""Order -> the column that it is by."""


def quotient_figures(table: RunTable, found: Quotients) -> dict[str, Spec]:
    """Draw the quotient: the best runs are in the upper left corner, the best is ringed."""
    known = np.isfinite(found.per_ws)
    best = int(np.nanargmax(found.per_ws))
    numbers, sampled = drawn_rows(table, [n == best for n in range(len(table))])
    rows = [
        {
            "energy_wh": float(found.epoch_energy_j[n] / J_PER_WH),
            "accuracy": float(found.accuracy[n]),
            "quotient": float(found.per_ws[n] * J_PER_WH),
            "best": n == best,
            **with_tooltips(table, n, table.parameters),
        }
        for n in numbers
        if known[n]
    ]
    unit = "run" if found.facts["variant"] == "total" else "epoch"
    colours = {"type": spread_over([r["quotient"] for r in rows]), "scheme": "viridis"}
    energies, accuracies = ([r[name] for r in rows] for name in ("energy_wh", "accuracy"))
    chart = layers(
        mark(
            "point",
            {"filled": True, "size": 50, "opacity": 0.9},
            color=channel("quotient:Q", "quotient (1/Wh)", scale=colours),
        ),
        *ringed("datum.best", "run:N"),
        rows=rows,
        x=channel("energy_wh:Q", f"Energy per {unit} (Wh)", scale=fitted(energies)),
        y=channel("accuracy:Q", titled(found.column), scale=fitted(accuracies)),
        tooltip=[channel("quotient:Q", format=".4~g"), *tooltips(table.parameters)],
    )
    said = "; ".join(
        filter(None, (table.source, VARIANTS[str(found.facts["variant"])], "ring: best", sampled))
    )
    return {"quotient": styled(chart, "Accuracy against energy", said)}


def top_figures(found: Findings) -> dict[str, Spec]:
    """Draw bars of the best runs, a panel per order."""
    panels: list[Spec] = []
    for table in (found, *found.others):
        key = SHOWN[table.name]
        title, order = table.columns[key], table.title.rpartition(": ")[2]
        rows = [{"run": r["run"], "value": r[key], "shown": f"{r[key]:.4g}"} for r in table.rows]
        panel = layers(
            mark("bar", {"color": PALETTE[len(panels)]}),
            mark("text", {"align": "left", "dx": 4, "fontSize": 11}, text="shown:N"),
            rows=rows,
            size=(WIDTH / 2, 26 * len(rows)),
            y=channel("run:N", None, sort=None),
            x=channel("value:Q", titled(title)),
        )
        panels.append({**panel, "title": order.capitalize()})
    return {"top": styled({"hconcat": panels}, "Best runs", found.notes[0])}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRates:
    """An exploratory epoch.

    Attributes:
        label: whose.
        losses: (rate, loss) from low to high; may be infinite.
        window: the smallest and largest rate of the window that was chosen; None for none.
        rate: what was chosen.
    """

    label: str
    losses: Sequence[tuple[float, float]]
    window: tuple[float, float] | None = None
    rate: float | None = None


def sm2_figures(strategy: Sm2, *, said: str = "") -> dict[str, Spec]:
    """Return figure 1 of each configuration's last exploratory epoch, and figure 2, by name.

    Args:
        strategy: after or during its search.
        said: whose energy it is and where it comes from.
    """
    labels = {name: _label(course.parameters) for name, course in strategy.histories.items()}
    figures = {}
    for name, course in strategy.histories.items():
        if course.swept:
            window = course.pick.window if course.pick is not None else None
            swept = SweptRates(
                label=labels[name],
                losses=[(point.rate, point.loss) for point in course.swept],
                window=None if window is None else (window.low, window.high),
                rate=None if course.pick is None else course.pick.rate,
            )
            figures[f"rates-{name}"] = rate_figure(swept)
    moments = [asdict(m) | {"label": labels[m.candidate]} for m in strategy.epoch_records]
    figures["course"] = course_figure(moments, strategy.problem.quality.metric, said=said)
    return {name: chart for name, chart in figures.items() if chart is not None}


def rate_figure(swept: SweptRates, *, said: str = "") -> Spec | None:
    """Draw loss over learning rates with the chosen window; None without finite losses."""
    rows = [{"rate": rate, "loss": loss} for rate, loss in swept.losses if math.isfinite(loss)]
    if not rows:
        return None
    style = {"color": PALETTE[0]}
    curve = layers(
        mark("line", style),
        mark("point", {"filled": True, "size": 35, **style}),
        rows=rows,
        x=channel(
            "rate:Q", "Learning rate", scale={"type": "log", "nice": False}, axis={"format": "~g"}
        ),
        y=channel("loss:Q", "Loss", scale={"zero": False}),
        tooltip=["rate:Q", "loss:Q"],
    )
    parts = [curve]
    if swept.window is not None:
        dotted = {"strokeDash": [3, 3], "strokeWidth": 1.5, "color": PALETTE[1]}
        parts.append(
            mark("rule", dotted, rows=[{"edge": edge} for edge in swept.window], x="edge:Q")
        )
    chosen = [row for row in rows if row["rate"] == swept.rate]
    if chosen:
        ring = {"size": 200, "filled": False, "stroke": BEST, "strokeWidth": 1.6}
        parts.append(mark("point", ring, rows=chosen, x="rate:Q", y="loss:Q"))
    left_out = len(swept.losses) - len(rows)
    notes = [swept.label, "dotted: the chosen window; ring: the rate that is trained with"]
    if left_out:
        notes.append(f"{left_out} rates broke the model")
    return styled(
        layers(*parts), "Loss over learning rates", "; ".join(filter(None, (*notes, said)))
    )


def course_figure(
    moments: Sequence[Mapping[str, Any]], metric: str, *, said: str = ""
) -> Spec | None:
    """Draw performance, energy and learning rate of each configuration by epoch.

    Args:
        moments: rows with `label`, `place`, `exploring`, `quality`, `energy_j` and `rate`.
        metric: the name of the performance.
        said: whose energy it is and where it comes from.
    """
    rows = [{**moment, "epoch": moment["place"] + 1} for moment in moments]
    if not rows:
        return None
    order = list(dict.fromkeys(row["label"] for row in rows))
    explored = sorted({row["epoch"] for row in rows if row["exploring"]})
    panels = []
    wanted: tuple[tuple[str, str, Spec], ...] = (
        ("quality", metric.capitalize(), {"zero": False}),
        ("energy_j", "Energy per epoch (J)", {"zero": False}),
        ("rate", "Learning rate", {"type": "log"}),
    )
    for field, title, scale in wanted:
        there = [
            {"label": row["label"], "epoch": row["epoch"], field: row[field]}
            for row in rows
            if row[field] is not None and math.isfinite(row[field])
        ]
        if not there:
            continue
        lines = mark(
            "line",
            {"point": {"size": 18, "filled": True}, "strokeWidth": 1.5},
            rows=there,
            y=channel(f"{field}:Q", title, scale=scale),
            color=colour("label", order),
            tooltip=["label:N", "epoch:Q", f"{field}:Q"],
        )
        marks = [{"epoch": epoch} for epoch in explored]
        panel = layers(
            mark("rule", {"strokeDash": [2, 4], "color": GREY}, rows=marks),
            lines,
            size=(NARROW, HEIGHT),
            x=channel("epoch:Q", "Epoch", scale={"nice": False}, axis={"tickMinStep": 1}),
        )
        panels.append(panel)
    if not panels:
        return None
    note = "dotted: exploratory epochs, which leave no trace in the model"
    about = "; ".join(filter(None, (note, said)))
    return styled({"hconcat": panels}, "The course of the search", about)


def _label(parameters: Mapping[str, Any]) -> str:
    if "batch_size" in parameters:
        return f"batch {parameters['batch_size']}"
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def learning_figures(
    epochs: Sequence[Mapping[str, Any]], best: str | None, metric: str, said: str
) -> dict[str, Spec]:
    """Draw quality and losses of all runs by epoch, and the course of the best run.

    Figures 1a and 1b of GreenScreen (Burmester et al.), and those of its report.

    Args:
        epochs: rows of `wattloop.tune.results.epoch_rows`.
        best: name of the best candidate; its curve is in front.
        metric: the name of the quality.
        said: whose energy it is and where it comes from.
    """
    losses = [name for name in dict.fromkeys(k for row in epochs for k in row) if "loss" in name]
    titles = {"quality": metric, **{name: name for name in losses}}
    panels = [panel for key in titles if (panel := _courses(epochs, key, titles[key], best))]
    figures = {}
    if panels:
        note = "every run; the best in front" if best else "every run"
        figures["learning"] = styled({"hconcat": panels}, "Learning curves", f"{note}; {said}")
    own = [row for row in epochs if row["candidate"] == best]
    titles |= {"power_w": "Mean power (W)", "time_s": "Time of the epoch (s)"}
    panels = [panel for key in titles if (panel := _courses(own, key, titles[key], best))]
    if panels:
        about = f"{best}, the best run; {said}"
        figures["best-run"] = styled({"hconcat": panels}, "Course of the best run", about)
    return figures


def _courses(
    epochs: Sequence[Mapping[str, Any]], key: str, title: str, best: str | None
) -> Spec | None:
    rows = [
        {"run": row["candidate"], "epoch": row["epoch"], "value": row[key]}
        for row in epochs
        if row.get(key) is not None and math.isfinite(row[key])
    ]
    if len({row["epoch"] for row in rows}) < 2:
        return None
    front = f"datum.run === {json.dumps(best)}"
    point = {"point": {"size": 18, "filled": True}, "color": PALETTE[0]}
    return layers(
        mark("line", {"color": GREY, "opacity": 0.5, "strokeWidth": 1}, where=f"!({front})"),
        mark("line", {**point, "strokeWidth": 2}, where=front),
        rows=rows,
        size=(NARROW, HEIGHT),
        x=channel("epoch:Q", "Epoch", scale={"nice": False}, axis={"tickMinStep": 1}),
        y=channel("value:Q", titled(title), scale={"zero": False}),
        detail="run:N",
        tooltip=["run:N", "epoch:Q", channel("value:Q", titled(title))],
    )


def histogram_figures(table: RunTable, columns: Sequence[str]) -> dict[str, Spec]:
    """Draw how often each value of a column occurs (GreenScreen, figures 3, 4 and 8)."""
    panels = []
    for name in columns:
        in_bins = name in table.results or len(table.levels(name)) > MOST_AXES
        if table.is_numeric(name) and in_bins:
            values = table.numbers(name)
            known = values[np.isfinite(values)]
            rows: list[dict[str, Any]] = [{"value": float(value)} for value in known]
            x = channel("value:Q", titled(name), bin={"maxbins": 20})
        else:
            rows = [{"value": str(value)} for value in table.column(name)]
            x = channel("value:N", titled(name), sort=[str(v) for v in table.levels(name)])
        if len({row["value"] for row in rows}) > 1:
            count = {"aggregate": "count", "title": "Runs", "axis": {"tickMinStep": 1}}
            bars = mark("bar", {"color": PALETTE[0]}, rows=rows, x=x, y=count)
            panels.append({**bars, "width": NARROW // 2, "height": HEIGHT // 2})
    if not panels:
        return {}
    chart = {"concat": panels, "columns": 4}
    return {"histograms": styled(chart, "Histograms", f"{len(table)} runs; {table.source}")}
