"""EDP, ED2P, E2DP, EDS(k), energy gain and gain minus loss of every row against one of them."""

import math
from statistics import fmean

import numpy as np

from wattloop.accounting.energy_delay import (
    Point,
    e2dp,
    ed2p,
    edp,
    eds,
    energy_gain_pct,
    gain_minus_loss_pct,
    time_loss_pct,
)
from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.roles import ColumnQuantity, find_energy, find_epochs, find_time
from wattloop.analyze.table import RunTable, format_level, nearest
from wattloop.core.errors import ConfigError


def row_metrics(
    table: RunTable,
    reference: str | None = None,
    *,
    k: tuple[float, ...] = (1.5, 2.0),
    energy: str | None = None,
    time: str | None = None,
) -> Findings:
    """Compute the metrics of each run, in the table's order.

    Runs are compared over the same work: to the target of a search where the reference reached it,
    by the epoch where trainings were stopped after different numbers of epochs, else as a whole.

    `reference`: a row's name or number, or `COLUMN=VALUE` that one row has; None takes the mean of
    the rows whose column `is_default` is true. Without any, metrics that need one are missing.
    """
    for one in k:
        if not (math.isfinite(one) and one > 1):
            raise ConfigError(f"EDS: k is {one:g}; use a number above 1, such as 1.5 or 2")
    chosen = _reference(table, reference)
    if energy is None and time is None:
        spent, lasted, work = _same_work(table, chosen)
    else:
        spent, lasted, work = find_energy(table, energy), find_time(table, time), []
    usable = (spent.values > 0) & (lasted.values > 0)
    if not usable.any():
        raise ConfigError(f"{table.name}: no row has {spent.column} and {lasted.column} above 0")
    points = [
        Point(float(t), float(e)) if ok else None
        for t, e, ok in zip(lasted.values, spent.values, usable, strict=True)
    ]
    own = [point for n in chosen if (point := points[n]) is not None]
    if chosen and not own:
        raise ConfigError(
            f"{table.name}: the reference {table.names[chosen[0]]} has no {spent.column} or "
            f"{lasted.column}"
        )
    base = None
    if own:
        base = Point(fmean(p.time_s for p in own), fmean(p.energy_j for p in own))
    named = table.names[chosen[0]] if len(chosen) == 1 else f"mean of {len(own)} default runs"
    counts = find_epochs(table)
    if counts is not None and len(np.unique(counts[np.isfinite(counts)])) < 2:
        counts = None
    rows = [
        {"run": name, "epochs": None if counts is None else float(counts[n])}
        | _metrics(point, base, k)
        | {p: table.column(p)[n] for p in table.parameters}
        for n, (name, point) in enumerate(zip(table.names, points, strict=True))
    ]
    sums = {f"eds_{one:g}": f"EDS({one:g})" for one in k}
    notes = [f"energy: {spent.column}; time: {lasted.column}"]
    notes += [note for note in (spent.note, lasted.note, *work) if note]
    if base is None:
        warning = ["no reference row: gains and EDS are missing; name one with --reference"]
    else:
        notes.append(f"reference: {named}")
        warning = []
    return Findings(
        title=f"{table.name}: energy against time",
        columns={
            "run": "run",
            **({} if counts is None else {"epochs": "epochs"}),
            **COSTS,
            **(sums if base is not None else {}),
            **(GAINS if base is not None else {}),
            **{p: p for p in table.parameters},
        },
        rows=tuple(rows),
        formats=dict.fromkeys(GAINS, "+.2f"),
        facts={"reference": None if base is None else named},
        notes=tuple(notes),
        warnings=tuple(warning),
    )


COSTS = {
    "energy_j": "energy (J)",
    "time_s": "time (s)",
    "power_w": "power (W)",
    "edp_js": "EDP (J s)",
    "ed2p_js2": "ED2P (J s2)",
    "e2dp_j2s": "E2DP (J2 s)",
}
GAINS = {
    "energy_gain_pct": "energy gain (%)",
    "time_loss_pct": "time loss (%)",
    "gain_minus_loss_pct": "gain minus loss",
}


def _metrics(
    point: Point | None, base: Point | None, k: tuple[float, ...]
) -> dict[str, float | None]:
    compared: dict[str, float | None] = dict.fromkeys((*(f"eds_{one:g}" for one in k), *GAINS))
    if point is None:
        return dict.fromkeys(COSTS) | compared
    own: dict[str, float | None] = {
        "energy_j": point.energy_j,
        "time_s": point.time_s,
        "power_w": point.power_w,
        "edp_js": edp(point),
        "ed2p_js2": ed2p(point),
        "e2dp_j2s": e2dp(point),
    }
    if base is None:
        return own | compared
    return own | {
        **{f"eds_{one:g}": eds(point, base, one) for one in k},
        "energy_gain_pct": energy_gain_pct(point, base),
        "time_loss_pct": time_loss_pct(point, base),
        "gain_minus_loss_pct": gain_minus_loss_pct(point, base),
    }


STOPPED = "paused"
"""The status of a training that was stopped before its end."""


def _same_work(
    table: RunTable, chosen: list[int]
) -> tuple[ColumnQuantity, ColumnQuantity, list[str]]:
    """Return energy and time over the same work, and notes on what was compared."""
    if {"to_target_j", "to_target_s"} <= table.columns.keys() and table.is_numeric("to_target_j"):
        there = np.isfinite(table.numbers("to_target_j"))
        if there[chosen].all():
            missing = [name for name, known in zip(table.names, there, strict=True) if not known]
            said = ["energy and time to the target"]
            if missing:
                said.append(f"{len(missing)} did not reach it: {', '.join(missing)}")
            return find_energy(table, "to_target_j"), find_time(table, "to_target_s"), said
    spent, lasted, counts = find_energy(table), find_time(table), find_epochs(table)
    status = table.columns.get("status", ())
    if counts is None or STOPPED not in status or len(np.unique(counts[counts > 0])) < 2:
        return spent, lasted, []
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(counts > 0, 1 / counts, math.nan)
    said = [
        f"trainings were stopped after {np.nanmin(counts):g} to {np.nanmax(counts):g} epochs: "
        "compared by the epoch"
    ]
    return (
        ColumnQuantity(f"{spent.column} / epochs", spent.values * each, spent.note),
        ColumnQuantity(f"{lasted.column} / epochs", lasted.values * each, lasted.note),
        said,
    )


def _reference(table: RunTable, wanted: str | None) -> list[int]:
    """Return the rows to compare with: the named one, or all defaults."""
    if wanted is None:
        defaults = table.columns.get("is_default", ())
        return [n for n, v in enumerate(defaults) if format_level(v).lower() in ("true", "1")]
    names = list(table.names)
    if wanted in names:
        return [names.index(wanted)]
    ending = [n for n, name in enumerate(names) if name.split()[-1] == wanted]
    if len(ending) == 1:
        return ending
    if "=" in wanted:
        left = table.where(wanted)
        if len(left) > 1:
            raise ConfigError(
                f"--reference {wanted}: {len(left)} rows have it ({', '.join(left.names[:3])}, "
                "...); name one of them"
            )
        return [names.index(left.names[0])]
    raise ConfigError(f"{table.name}: no row '{wanted}'; {nearest(wanted, names[:50])}")
