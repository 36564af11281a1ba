"""Ordinary least squares over levels: figure 10 of GreenScreen, with every level identifiable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattloop.analyze.design import Design, design_of
from wattloop.analyze.findings import Findings
from wattloop.analyze.fit_quality import (
    FOLDS,
    TOLERANCE,
    cross_validated_r2,
    f_test,
    rank_of,
    residual_sum,
)
from wattloop.analyze.libraries import needs_libraries
from wattloop.analyze.roles import usual_target
from wattloop.analyze.table import Floats, Table
from wattloop.core.errors import ConfigError

__all__ = ["Regression", "regression"]

FEW_ROWS = 10
"""Fewer rows than this per coefficient fit noise: the usual rule of thumb."""
COLUMNS = {
    "term": "parameter_value",
    "coef": "coef",
    "std_err": "std err",
    "t": "t",
    "p": "P>|t|",
    "low": "[0.025",
    "high": "0.975]",
    "rows": "rows",
}
FORMATS = {"t": ".3f", "p": ".3f", "f": ".2f", "partial_eta2": ".3f"}


@dataclass(frozen=True, kw_only=True)
class Regression(Findings):
    """Coefficients of all levels; `others` has one row per parameter (F test).

    Attributes:
        target: what was explained.
        r2, adjusted_r2: of the rows it was fitted to.
        cv_r2: of rows it was not fitted to.
        f, f_p: of all parameters together.
    """

    target: str
    r2: float
    adjusted_r2: float
    cv_r2: float | None
    f: float | None
    f_p: float | None


def regression(
    table: Table,
    target: str | None = None,
    *,
    parameters: Sequence[str] | None = None,
    numeric: Sequence[str] = (),
) -> Regression:
    """What each level adds to the target.

    Args:
        table: the runs.
        target: a numeric column; energy or power unless given.
        parameters: which to use; all of the table's unless given.
        numeric: parameters to keep as numbers instead of levels.

    Raises:
        ConfigError: a column is unknown or not a number, the target does not vary, or there are
            not more rows than coefficients.
    """
    needs_libraries("regression", "scipy")
    target = target or usual_target(table)
    wanted = list(table.parameters if parameters is None else parameters)
    if target in wanted:
        if parameters is not None:
            raise ConfigError(f"'{target}' cannot explain itself; leave it out of the parameters")
        wanted.remove(target)
    table.numbers(target)
    for name in numeric:
        table.numbers(name)
        wanted += [] if name in wanted else [name]
    if not wanted:
        raise ConfigError(f"{table.name}: no parameters; name them with --parameters")
    before = len(table)
    table = table.complete([target, *wanted])
    table.needs_rows(3, "a regression")
    values = table.numbers(target)
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        raise ConfigError(
            f"{table.name}: '{target}' is {values[0]:g} in all {len(values)} rows; "
            "there is nothing to explain"
        )
    design = design_of(table, wanted, numeric)
    if len(values) <= design.rank:
        raise ConfigError(
            f"{table.name}: {len(values)} rows for {design.rank} coefficients; leave parameters "
            "out with --parameters, keep some as numbers with --numeric, or measure more runs"
        )
    return _fitted(table, target, design, values, before - len(table))


def _fitted(table: Table, target: str, design: Design, values: Floats, missing: int) -> Regression:
    from scipy import special

    # b = X+ y, cov(b) = s^2 X+ X+', with the pseudo-inverse X+; statsmodels does the same, and the
    # tests ask it, but loading it takes longer than everything else together
    inverse = np.linalg.pinv(design.matrix, rcond=math.sqrt(TOLERANCE))
    params = inverse @ values
    freedom = len(values) - design.rank
    spread = float(special.stdtrit(freedom, 0.975))
    residual = float(np.sum((values - design.matrix @ params) ** 2))
    covariance = inverse @ inverse.T * residual / freedom
    rows = []
    for term in design.terms:
        row: dict[str, Any] = {
            "term": term.name,
            "parameter": term.parameter,
            "level": term.level,
            "rows": term.rows,
        }
        if design.estimable(term.contrast):
            coefficient = float(term.contrast @ params)
            error = math.sqrt(max(float(term.contrast @ covariance @ term.contrast), 0.0))
            t = coefficient / error if error else math.copysign(math.inf, coefficient)
            row |= {
                "coef": coefficient,
                "std_err": error,
                "t": t,
                "p": float(2 * special.stdtr(freedom, -abs(t))),
                "low": coefficient - spread * error,
                "high": coefficient + spread * error,
            }
        else:
            row |= dict.fromkeys(("coef", "std_err", "t", "p", "low", "high"))
        rows.append(row)
    total = float(np.sum((values - values.mean()) ** 2))
    r2 = 1 - residual / total
    f, f_p = f_test(total - residual, design.rank - 1, residual, freedom)
    cv_r2 = cross_validated_r2(design.matrix, values)
    adjusted = 1 - (1 - r2) * (len(values) - 1) / freedom
    intercept = float(params[0]) if design.estimable(_unit(len(design.owners))) else None
    return Regression(
        title=f"{table.name}: OLS regression of {target}",
        name="coefficients",
        columns=COLUMNS,
        rows=tuple(rows),
        formats=FORMATS | dict.fromkeys(("coef", "std_err", "low", "high"), _format(values)),
        facts={
            "rows": len(values),
            "coefficients": design.rank,
            "residual_df": freedom,
            "intercept": intercept,
            "r2": r2,
            "adjusted_r2": adjusted,
            "cv_r2": cv_r2,
            "f": f,
            "f_p": f_p,
        },
        notes=_notes(design, len(values), missing),
        warnings=_warnings(design, len(values), r2, cv_r2),
        others=(_by_parameter(table, target, design, values, residual, freedom),),
        target=target,
        r2=r2,
        adjusted_r2=adjusted,
        cv_r2=cv_r2,
        f=f,
        f_p=f_p,
    )


def _by_parameter(
    table: Table, target: str, design: Design, values: Floats, residual: float, freedom: int
) -> Findings:
    """What the fit loses when a parameter is left out (type III)."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(design.owners[1:]):
        rest = design.without(name)
        rank = rank_of(rest.T @ rest)
        lost = max(residual_sum(rest, values) - residual, 0.0)
        own = design.rank - rank
        f, p = f_test(lost, own, residual, freedom)
        share = lost / (lost + residual) if lost + residual > 0 else None
        rows.append(
            {"parameter": name, "df": own, "f": f, "p": p, "partial_eta2": share if own else None}
        )
    rows.sort(key=lambda row: -(row["partial_eta2"] or 0.0))
    return Findings(
        title=f"{table.name}: what each parameter adds to the explanation of {target}",
        name="parameters",
        columns={
            "parameter": "parameter",
            "df": "df",
            "f": "F",
            "p": "P>F",
            "partial_eta2": "partial eta2",
        },
        rows=tuple(rows),
        formats=FORMATS,
    )


def _notes(design: Design, rows: int, missing: int) -> tuple[str, ...]:
    notes = [
        "sum coding: a coefficient is the distance of a level from the mean over the levels of "
        "its parameter, in units of the target",
        f"cv_r2: R2 of rows left out of the fit, {min(FOLDS, rows)} folds",
    ]
    if design.numeric:
        notes.append(f"as numbers, per unit: {', '.join(design.numeric)}")
    if design.constant:
        notes.append(f"left out, one level only: {', '.join(design.constant)}")
    if missing:
        notes.append(f"{missing} rows with missing values left out")
    return tuple(notes)


def _warnings(design: Design, rows: int, r2: float, cv_r2: float | None) -> tuple[str, ...]:
    said = []
    coefficients = design.rank - 1
    if rows < FEW_ROWS * coefficients:
        said.append(
            f"{rows} rows for {coefficients} independent coefficients, fewer than {FEW_ROWS} each: "
            "R2 flatters; look at the rows left out"
        )
    if cv_r2 is not None and r2 - cv_r2 > 0.2:
        said.append(f"R2 falls from {r2:.3f} to {cv_r2:.3f} on rows left out: overfitted")
    if r2 > 1 - 1e-12:
        said.append("the fit is exact: errors, t and p are those of rounding")
    for group in design.aliased:
        what = " and ".join(group) if len(group) > 1 else f"{group[0]} and the mean"
        said.append(
            f"{what} cannot be told apart (the design is rank deficient): rows without numbers"
        )
    return tuple(said)


def _format(values: Floats) -> str:
    """As many decimals as a ten-thousandth of the spread needs."""
    decimals = 4 - math.floor(math.log10(float(values.std())))
    return f".{min(max(decimals, 0), 12)}f"


def _unit(size: int) -> Floats:
    contrast = np.zeros(size)
    contrast[0] = 1.0
    return contrast
