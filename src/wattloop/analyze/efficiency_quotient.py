"""The Efficiency Quotient of GreenScreen (Burmester et al., 2023), and its relatives.

    EQ = accuracy / ((1/N) sum PD_i T_i)                                            (equation 1)

with power PD_i in W and time T_i in s of epoch i: accuracy per joule (W s) of a mean epoch. The
values printed in the paper are per Wh (6.16 for 89% at 0.1445 Wh an epoch, which it rounds to 0.14;
per W s that is 0.0017), so both are given.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.roles import (
    ColumnQuantity,
    find_column,
    find_energy,
    find_epoch_time,
    find_epochs,
    find_power,
    find_quality,
)
from wattloop.analyze.table import Floats, RunTable
from wattloop.core.errors import ConfigError
from wattloop.core.units import J_PER_WH

VARIANTS = {
    "epoch": "accuracy per energy of a mean epoch (equation 1)",
    "validation": "validation accuracy per energy of a mean epoch",
    "total": "accuracy per energy of the whole run",
    "gain": "accuracy above chance per energy of a mean epoch",
}


@dataclass(frozen=True, slots=True)
class Quotient:
    """Accuracy per energy."""

    per_ws: float

    @property
    def per_wh(self) -> float:
        """As the paper prints it."""
        return self.per_ws * J_PER_WH


def quotient(accuracy: float, powers_w: Sequence[float], times_s: Sequence[float]) -> Quotient:
    """Apply equation 1 to power and time of each epoch."""
    if len(powers_w) != len(times_s) or not powers_w:
        raise ConfigError(
            f"the quotient needs power and time of each epoch; there are {len(powers_w)} powers "
            f"and {len(times_s)} times"
        )
    energies = [p * t for p, t in zip(powers_w, times_s, strict=True)]
    return quotient_of_totals(accuracy, math.fsum(energies), len(energies))


def quotient_of_totals(accuracy: float, energy_j: float, epochs: float = 1.0) -> Quotient:
    """Apply equation 1 to the energy of the whole run: sum PD_i T_i is that energy.

    With one epoch it is the variant `total`.
    """
    if not (energy_j > 0 and epochs > 0):
        raise ConfigError(f"the quotient needs energy and epochs above 0, not {energy_j}, {epochs}")
    return Quotient(accuracy * epochs / energy_j)


@dataclass(frozen=True, kw_only=True)
class Quotients(Findings):
    """Quotients of all rows, best first.

    Attributes:
        column: the accuracy that was used.
        accuracy, epoch_energy_j, per_ws: in the order of the table, NaN where missing.
    """

    column: str
    accuracy: Floats
    epoch_energy_j: Floats
    per_ws: Floats


def quotients(
    table: RunTable,
    variant: str = "epoch",
    *,
    quality: str | None = None,
    energy: str | None = None,
    epochs: str | float | None = None,
    chance: float | None = None,
) -> Quotients:
    """Compute the quotient of each row.

    `quality`: the column of accuracy; found by its name unless given.
    `epochs`: the column, or how many all rows have.
    `chance`: accuracy of guessing, such as 0.01 for 100 classes; for the variant `gain`.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"unknown quotient '{variant}'; known are {', '.join(VARIANTS)}")
    if variant == "gain" and chance is None:
        raise ConfigError(
            "the quotient 'gain' needs the accuracy of guessing; give --chance, 0.1 for ten classes"
        )
    if chance is not None and not 0 <= chance < 1:
        raise ConfigError(f"chance is {chance:g}; it is a share, from 0 to 1")
    good = find_quality(table, quality, held_out=variant == "validation")
    spent, how = _epoch_energy(table, energy, epochs, whole=variant == "total")
    above = good.values - (chance or 0.0) if variant == "gain" else good.values
    per_ws = np.full(len(table), math.nan)
    known = np.isfinite(above) & np.isfinite(spent.values) & (spent.values > 0)
    per_ws[known] = above[known] / spent.values[known]
    if not known.any():
        raise ConfigError(f"{table.name}: no row has {good.column} and {spent.column} above 0")
    order = [int(n) for n in np.argsort(-per_ws, kind="stable") if known[n]]
    unit = "run" if variant == "total" else "epoch"
    notes = [f"{VARIANTS[variant]}; {good.column} and {how}"]
    notes += [note for note in (good.note, spent.note) if note]
    missing = len(table) - len(order)
    warnings = []
    if missing:
        rows = f"{missing} row{'s' * (missing != 1)}"
        warnings.append(f"{rows} without a quotient: a value is missing, or the energy is zero")
    return Quotients(
        title=f"{table.name}: efficiency quotient, best first",
        columns={
            "run": "run",
            "quotient_per_wh": "quotient (1/Wh)",
            "quotient_per_ws": "quotient (1/(W s))",
            "accuracy": good.column,
            "energy_wh": f"energy per {unit} (Wh)",
            **{name: name for name in table.parameters},
        },
        rows=tuple(
            {
                "run": table.names[n],
                "quotient_per_wh": float(per_ws[n] * J_PER_WH),
                "quotient_per_ws": float(per_ws[n]),
                "accuracy": float(good.values[n]),
                "energy_wh": float(spent.values[n] / J_PER_WH),
                "energy_j": float(spent.values[n]),
                **{name: table.column(name)[n] for name in table.parameters},
            }
            for n in order
        ),
        facts={"variant": variant},
        notes=tuple(notes),
        warnings=tuple(warnings),
        column=good.column,
        accuracy=good.values,
        epoch_energy_j=spent.values,
        per_ws=per_ws,
    )


def _epoch_energy(
    table: RunTable, energy: str | None, epochs: str | float | None, *, whole: bool
) -> tuple[ColumnQuantity, str]:
    """Return the joules of a mean epoch (or of the run), and their derivation."""
    of_epoch = find_column(table, lambda _, words: {"energy", "epoch"} <= words)
    if energy is None and not whole and of_epoch is not None:
        energy = of_epoch
    power, seconds = find_power(table), find_epoch_time(table)
    if energy is None and not whole and power is not None and seconds is not None:
        values = power.values * seconds.values
        return (
            ColumnQuantity(
                f"{power.column} x {seconds.column}", values, power.note or seconds.note
            ),
            f"energy of an epoch = {power.column} x {seconds.column}",
        )
    total = find_energy(table, energy)
    if whole:
        return total, f"{total.column} of the whole run"
    if "epoch" in total.column.lower():
        return total, f"{total.column} as it is"
    if isinstance(epochs, int | float):
        if not epochs > 0:
            raise ConfigError(f"{epochs:g} epochs: give a number above 0")
        return ColumnQuantity(
            total.column, total.values / epochs
        ), f"{total.column} / {epochs:g} epochs"
    counts = find_epochs(table, epochs)
    if counts is None:
        note = "no column of epochs: the whole run counts as one epoch"
        return ColumnQuantity(total.column, total.values, note), total.column
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(counts > 0, total.values / counts, math.nan)
    return ColumnQuantity(total.column, values), f"{total.column} / epochs"


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
    return replace(
        first,
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
