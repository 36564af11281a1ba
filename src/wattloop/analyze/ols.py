"""Ordinary least squares over levels (GreenScreen, figure 10), with every level identifiable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.analysis_result import Findings, headers, needs_libraries
from wattloop.analyze.roles import default_target
from wattloop.analyze.table import Floats, RunTable
from wattloop.core.errors import ConfigError

# The design of a regression over levels: sum coding, so that every level has its row.
#
# A parameter with L levels gets L - 1 columns; the coefficient of level j is its distance from
# the mean over the levels of that parameter, and that of the last level is minus the sum of the
# others. One-hot columns of all levels of two or more parameters are not identifiable together.

MANY_LEVELS = 12
"""A numeric parameter with more different values than this is a number, not a set of levels."""


@dataclass(frozen=True, slots=True)
class Term:
    """Row of the coefficient table: its mixture of columns."""

    name: str
    parameter: str
    level: str | None
    rows: int
    contrast: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Columns, what they belong to, and what cannot be told apart.

    Attributes:
        matrix: a row per run; the first column is the intercept.
        owners: the parameter of each column; empty for the intercept.
        terms: one per level or number.
        constant: parameters with one level, which explain nothing.
        aliased: groups of parameters that determine each other.
    """

    matrix: Floats
    owners: tuple[str, ...]
    terms: tuple[Term, ...]
    numeric: tuple[str, ...]
    constant: tuple[str, ...]
    rank: int
    aliased: tuple[tuple[str, ...], ...]
    null: Floats = field(repr=False)

    def estimable(self, contrast: Floats) -> bool:
        """Return True when the data determine it: nothing in the null space may change it."""
        if not self.null.size:
            return True
        # per unit of a parameter in the millions, a contrast is as small as rounding
        size = np.linalg.norm(contrast)
        return bool(np.abs(self.null @ contrast).max() < 1e-6 * size)

    def without(self, parameter: str) -> Floats:
        return self.matrix[:, [owner != parameter for owner in self.owners]]


def build_design(table: RunTable, parameters: Sequence[str], numeric: Sequence[str] = ()) -> Design:
    """Build columns for these parameters; `numeric` ones, or with very many values, as numbers."""
    blocks: list[Floats] = [np.ones((len(table), 1))]
    owners = [""]
    described: list[tuple[str, str, str | None, int, NDArray[np.float64]]] = []
    as_numbers, constant = [], []
    for name in parameters:
        levels = table.levels(name)
        if len(levels) < 2:
            constant.append(name)
            continue
        if name in numeric or (len(levels) > MANY_LEVELS and table.is_numeric(name)):
            values = table.numbers(name)
            # centred and scaled, or a learning rate next to a year looks like a dependency
            blocks.append((values[:, None] - values.mean()) / values.std())
            described.append((name, name, None, len(table), np.full(1, 1 / values.std())))
            as_numbers.append(name)
        else:
            coding = np.vstack([np.eye(len(levels) - 1), np.full(len(levels) - 1, -1.0)])
            place = {level: number for number, level in enumerate(levels)}
            codes = [place[label] for label in table.labels(name) if label is not None]
            blocks.append(coding[codes])
            counts = np.bincount(codes, minlength=len(levels))
            for level, count, own in zip(levels, counts, coding, strict=True):
                described.append((f"{name}_{level}", name, level, int(count), own))
        owners += [name] * blocks[-1].shape[1]
    if len(blocks) == 1:
        raise ConfigError(f"{table.name}: no parameter has two levels; there is nothing to compare")
    matrix = np.hstack(blocks)
    rank, null = _rank_and_null(matrix)
    starts = {name: owners.index(name) for name in dict.fromkeys(owners)}
    terms = []
    for label, parameter, own_level, rows, own in described:
        contrast = np.zeros(len(owners))
        contrast[starts[parameter] : starts[parameter] + len(own)] = own
        terms.append(Term(label, parameter, own_level, rows, contrast))
    return Design(
        matrix=matrix,
        owners=tuple(owners),
        terms=tuple(terms),
        numeric=tuple(as_numbers),
        constant=tuple(constant),
        rank=rank,
        aliased=_groups(null, owners),
        null=null,
    )


def _rank_and_null(matrix: Floats) -> tuple[int, Floats]:
    """Return the rank, and a basis of what the columns cannot distinguish, a row each."""
    values, vectors = np.linalg.eigh(matrix.T @ matrix / len(matrix))
    zero = values < TOLERANCE * values[-1]
    return int((~zero).sum()), _reduced(vectors[:, zero].T)


def _reduced(basis: Floats) -> Floats:
    """Return a basis of the same space with few entries in each row, by elimination."""
    rows = basis.copy()
    done = 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        best = done + int(np.argmax(np.abs(rows[done:, column])))
        if abs(rows[best, column]) < 1e-6:
            continue
        rows[[done, best]] = rows[[best, done]]
        rows[done] /= rows[done, column]
        for other in range(len(rows)):
            if other != done:
                rows[other] -= rows[other, column] * rows[done]
        done += 1
    rows[np.abs(rows) < 1e-6] = 0.0
    return rows


def _groups(null: Floats, owners: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return groups of parameters in one dependency; dependencies that share one are joined."""
    groups: list[set[str]] = []
    for row in null:
        own = {owner for owner, entry in zip(owners, row, strict=True) if owner and entry}
        touching = [group for group in groups if group & own]
        groups = [group for group in groups if not group & own]
        groups.append(own.union(*touching))
    order = list(dict.fromkeys(owners))
    return tuple(tuple(sorted(group, key=order.index)) for group in groups if group)


FOLDS = 10
TOLERANCE = 1e-10
"""Of eigenvalues of X'X, so 1e-5 of the columns themselves."""


def f_test(
    explained: float, df: int, residual: float, freedom: int
) -> tuple[float | None, float | None]:
    """Return F = (explained / df) / (residual / freedom) and its p value; None without df."""
    from scipy import special

    if df < 1:
        return None, None
    if residual <= 1e-24 * max(explained, 1e-300):
        return math.inf, 0.0
    f = explained / df / (residual / freedom)
    return f, float(special.fdtrc(df, freedom, f))


def solve_normal(gram: Floats, moments: Floats) -> Floats:
    """Coefficients from X'X and X'y; the smallest ones where the design is rank deficient.

    Columns are of size 1 (sum coding, standardised numbers), so squaring the condition is harmless,
    and ten thousand rows cost as much as ten.
    """
    return np.asarray(np.linalg.lstsq(gram, moments, rcond=TOLERANCE)[0], dtype=np.float64)


def gram_rank(gram: Floats) -> int:
    values = np.linalg.eigvalsh(gram)
    return int((values > TOLERANCE * values[-1]).sum())


def cross_validated_r2(matrix: Floats, values: Floats) -> float | None:
    """R2 of rows that were left out, in folds drawn with a fixed seed.

    Each left-out row is compared with the mean of the others, which is what one would say without
    the regression.
    """
    rows = len(values)
    order = np.random.default_rng(0).permutation(rows)
    gram, moments = matrix.T @ matrix, matrix.T @ values
    missed = by_mean = 0.0
    for fold in np.array_split(order, min(FOLDS, rows)):
        own, left = matrix[fold], values[fold]
        found = solve_normal(gram - own.T @ own, moments - own.T @ left)
        mean = (values.sum() - left.sum()) / (rows - len(fold))
        missed += float(np.sum((left - own @ found) ** 2))
        by_mean += float(np.sum((left - mean) ** 2))
    return 1 - missed / by_mean if by_mean > 0 else None


def residual_sum(matrix: Floats, values: Floats) -> float:
    found = solve_normal(matrix.T @ matrix, matrix.T @ values)
    return float(np.sum((values - matrix @ found) ** 2))


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
    table: RunTable,
    target: str | None = None,
    *,
    parameters: Sequence[str] | None = None,
    numeric: Sequence[str] = (),
) -> Regression:
    """Estimate what each level adds to the target.

    `target`: a numeric column; energy or power unless given.
    `parameters`: which to use; all of the table's unless given.
    `numeric`: parameters to keep as numbers instead of levels.

    Raises:
        ConfigError: a column is unknown or not a number, the target does not vary, or there are
            not more rows than coefficients.
    """
    needs_libraries("regression", "scipy")
    target = target or default_target(table)
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
    design = build_design(table, wanted, numeric)
    if len(values) <= design.rank:
        raise ConfigError(
            f"{table.name}: {len(values)} rows for {design.rank} coefficients; leave parameters "
            "out with --parameters, keep some as numbers with --numeric, or measure more runs"
        )
    return _fitted(table, target, design, values, before - len(table))


def _fitted(
    table: RunTable, target: str, design: Design, values: Floats, missing: int
) -> Regression:
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
    intercept = float(params[0]) if design.estimable(np.eye(1, len(design.owners))[0]) else None
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
    table: RunTable, target: str, design: Design, values: Floats, residual: float, freedom: int
) -> Findings:
    """Return the loss of fit without each parameter (type III)."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(design.owners[1:]):
        rest = design.without(name)
        rank = gram_rank(rest.T @ rest)
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
        columns=headers("parameter", "df", f="F", p="P>F", partial_eta2="partial eta2"),
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
    """Return a format with the decimals that a ten-thousandth of the spread needs."""
    decimals = 4 - math.floor(math.log10(float(values.std())))
    return f".{min(max(decimals, 0), 12)}f"
