"""The best runs by accuracy, by power and by quotient: the tables of GreenScreen's report."""

import math
from collections.abc import Callable

import numpy as np

from wattloop.analyze.findings import Findings
from wattloop.analyze.quotient import Quotients, quotients
from wattloop.analyze.table import RunTable
from wattloop.core.errors import ConfigError
from wattloop.core.units import J_PER_WH

Key = Callable[[Quotients, int], float]
ORDERS: dict[str, tuple[str, Key]] = {
    "accuracy": ("highest accuracy", lambda q, n: -float(q.accuracy[n])),
    "power": ("lowest energy per epoch", lambda q, n: float(q.epoch_energy_j[n])),
    "quotient": ("highest efficiency quotient", lambda q, n: -float(q.per_ws[n])),
}
"""Name -> what it says, and what is made small. GreenScreen calls W s per epoch its power draw."""


def top_runs(
    table: RunTable,
    by: str | None = None,
    *,
    count: int = 5,
    threshold: float | None = None,
    found: Quotients | None = None,
) -> Findings:
    """Rank the runs in each order, or in one.

    `by`: one of `ORDERS`; all of them when None.
    `threshold`: runs below this accuracy are left out.
    `found`: quotients of another variant or of other columns than the usual ones.
    """
    if by is not None and by not in ORDERS:
        raise ConfigError(f"unknown order '{by}'; known are {', '.join(ORDERS)}")
    if count < 1:
        raise ConfigError(f"{count} rows: give a number of 1 or more")
    found = found or quotients(table)
    good = np.isfinite(found.per_ws)
    low = 0
    if threshold is not None:
        with np.errstate(invalid="ignore"):
            low = int((good & (found.accuracy < threshold)).sum())
            good &= found.accuracy >= threshold
        if not good.any():
            raise ConfigError(
                f"{table.name}: no run reaches {found.column} {threshold:g}; the best has "
                f"{np.nanmax(found.accuracy):.4g}"
            )
    whole = found.facts["variant"] == "total"
    tables = [
        _ranked(table, found, name, whole, [int(n) for n in np.flatnonzero(good)], count)
        for name in ([by] if by else ORDERS)
    ]
    notes = list(found.notes)
    if threshold is not None:
        notes.append(f"{low} runs below {found.column} {threshold:g} left out")
    first = tables[0]
    return Findings(
        title=first.title,
        name=first.name,
        columns=first.columns,
        rows=first.rows,
        formats=first.formats,
        facts={} if threshold is None else {"threshold": threshold, "below_threshold": low},
        notes=tuple(notes),
        warnings=found.warnings,
        others=tuple(tables[1:]),
    )


def _ranked(
    table: RunTable, found: Quotients, name: str, whole: bool, numbers: list[int], count: int
) -> Findings:
    says, key = ORDERS[name]
    if whole:
        says = says.replace("per epoch", "per run")
    best = sorted(numbers, key=lambda n: key(found, n))[:count]
    return Findings(
        title=f"{table.name}: {says}",
        name=name,
        columns={
            "rank": "rank",
            "run": "run",
            "accuracy": found.column,
            "energy_wh": f"energy per {'run' if whole else 'epoch'} (Wh)",
            "quotient_per_wh": "quotient (1/Wh)",
            "quotient_per_ws": "quotient (1/(W s))",
            **{parameter: parameter for parameter in table.parameters},
        },
        rows=tuple(
            {
                "rank": rank,
                "run": table.names[n],
                "accuracy": _known(found.accuracy[n]),
                "energy_wh": _known(found.epoch_energy_j[n] / J_PER_WH),
                "quotient_per_wh": _known(found.per_ws[n] * J_PER_WH),
                "quotient_per_ws": _known(found.per_ws[n]),
                **{parameter: table.column(parameter)[n] for parameter in table.parameters},
            }
            for rank, n in enumerate(best, 1)
        ),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
