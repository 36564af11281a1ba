"""EDP, ED2P, EDS(k), energy gain and gain minus loss of every row against one of them."""

import math

from wattloop.analyze.columns import nearest
from wattloop.analyze.findings import Findings
from wattloop.analyze.metrics import (
    Point,
    ed2p,
    edp,
    eds,
    energy_gain_pct,
    gain_minus_loss_pct,
    time_loss_pct,
)
from wattloop.analyze.roles import energy_of, time_of
from wattloop.analyze.table import Table, label_of
from wattloop.core.errors import ConfigError

__all__ = ["row_metrics"]


def row_metrics(
    table: Table,
    reference: str | None = None,
    *,
    k: tuple[float, ...] = (1.5, 2.0),
    energy: str | None = None,
    time: str | None = None,
) -> Findings:
    """One row per run, in the table's order.

    Args:
        table: the runs.
        reference: a row's name or number, `COLUMN=VALUE` that one row has, or the column
            `is_default` when None; without one, metrics that need it are missing.
        k: of EDS.
        energy: the column of energy; found by its name unless given.
        time: the column of time, likewise.
    """
    for one in k:
        if not (math.isfinite(one) and one > 1):
            raise ConfigError(f"EDS: k is {one:g}; use a number above 1, such as 1.5 or 2")
    spent, lasted = energy_of(table, energy), time_of(table, time)
    usable = (spent.values > 0) & (lasted.values > 0)
    if not usable.any():
        raise ConfigError(f"{table.name}: no row has {spent.column} and {lasted.column} above 0")
    chosen = _reference(table, reference)
    if chosen is not None and not usable[chosen]:
        raise ConfigError(
            f"{table.name}: the reference {table.names[chosen]} has no {spent.column} or "
            f"{lasted.column}"
        )
    points = [
        Point(float(t), float(e)) if ok else None
        for t, e, ok in zip(lasted.values, spent.values, usable, strict=True)
    ]
    base = None if chosen is None else points[chosen]
    rows = [
        {"run": name, **_metrics(point, base, k)}
        | {p: table.column(p)[n] for p in table.parameters}
        for n, (name, point) in enumerate(zip(table.names, points, strict=True))
    ]
    named = {f"eds_{one:g}": f"EDS({one:g})" for one in k}
    notes = [f"energy: {spent.column}; time: {lasted.column}"]
    notes += [note for note in (spent.note, lasted.note) if note]
    if chosen is None:
        warning = ["no reference row: gains and EDS are missing; name one with --reference"]
    else:
        notes.append(f"reference: {table.names[chosen]}")
        warning = []
    return Findings(
        title=f"{table.name}: energy against time",
        columns={
            "run": "run",
            "energy_j": "energy (J)",
            "time_s": "time (s)",
            "power_w": "power (W)",
            "edp_js": "EDP (J s)",
            "ed2p_js2": "ED2P (J s2)",
            **(named if base is not None else {}),
            **(GAINS if base is not None else {}),
            **{p: p for p in table.parameters},
        },
        rows=tuple(rows),
        formats={"edp_js": ".4g", "ed2p_js2": ".4g", **dict.fromkeys(GAINS, "+.2f")},
        facts={"reference": None if chosen is None else table.names[chosen]},
        notes=tuple(notes),
        warnings=tuple(warning),
    )


GAINS = {
    "energy_gain_pct": "energy gain (%)",
    "time_loss_pct": "time loss (%)",
    "gain_minus_loss_pct": "gain minus loss",
}


def _metrics(
    point: Point | None, base: Point | None, k: tuple[float, ...]
) -> dict[str, float | None]:
    names = ("energy_j", "time_s", "power_w", "edp_js", "ed2p_js2")
    eds_names = [f"eds_{one:g}" for one in k]
    if point is None:
        return dict.fromkeys((*names, *eds_names, *GAINS))
    own: dict[str, float | None] = dict(
        zip(
            names,
            (point.energy_j, point.time_s, point.power_w, edp(point), ed2p(point)),
            strict=True,
        )
    )
    if base is None:
        return own | dict.fromkeys((*eds_names, *GAINS))
    return own | {
        **{name: eds(point, base, one) for name, one in zip(eds_names, k, strict=True)},
        "energy_gain_pct": energy_gain_pct(point, base),
        "time_loss_pct": time_loss_pct(point, base),
        "gain_minus_loss_pct": gain_minus_loss_pct(point, base),
    }


def _reference(table: Table, wanted: str | None) -> int | None:
    """Its place in the table."""
    if wanted is None:
        defaults = table.columns.get("is_default", ())
        found = [n for n, value in enumerate(defaults) if label_of(value).lower() in ("true", "1")]
        return found[0] if len(found) == 1 else None
    names = list(table.names)
    if wanted in names:
        return names.index(wanted)
    ending = [n for n, name in enumerate(names) if name.split()[-1] == wanted]
    if len(ending) == 1:
        return ending[0]
    if "=" in wanted:
        left = table.where(wanted)
        if len(left) > 1:
            raise ConfigError(
                f"--reference {wanted}: {len(left)} rows have it ({', '.join(left.names[:3])}, "
                "...); name one of them"
            )
        return names.index(left.names[0])
    raise ConfigError(f"{table.name}: no row '{wanted}'; {nearest(wanted, names[:50])}")
