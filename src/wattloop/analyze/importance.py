"""Importance: the share of a result's variance that each parameter explains.

- `fanova`    functional ANOVA over a random forest, by Optuna: the share of the forest's variance
              that is the parameter's own; what is left to 1 are interactions
- `variance`  ours, needs no library: epsilon2, the share of the result's variance between the
              parameter's levels (numbers in up to ten groups of equal size), less what as many
              random groups would show
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.analysis_result import Findings, has_library
from wattloop.analyze.ols import MANY_LEVELS, regression
from wattloop.analyze.roles import default_target
from wattloop.analyze.table import Floats, RunTable, format_level
from wattloop.core.errors import ConfigError

METHODS = {
    "fanova": "functional ANOVA by Optuna; shares of a forest's variance, the rest interactions",
    "variance": "epsilon2, the share of variance between levels",
}
GROUPS = 10
FOREST_ROWS = 500
"""Optuna's walk through its trees takes seconds with more."""
TREES = 64
"""Fewer where there are many rows: their number times the rows is what it takes."""


def best_levels(table: RunTable, target: str, *, maximize: bool = False) -> Findings:
    """Return the level of each parameter with the best target, other parameters held equal.

    The effect of a level is its coefficient in the regression over levels. Where that cannot be
    estimated, it is the distance of its runs' mean from the mean of all.
    """
    values = table.numbers(target)
    fitted: dict[tuple[str, str], float] = {}
    with suppress(ConfigError):
        for term in regression(table, target).rows:
            if term["coef"] is not None:
                fitted[term["parameter"], str(term["level"])] = term["coef"]
    rows = []
    for name in table.parameters:
        column = table.column(name)
        effects: list[dict[str, Any]] = []
        for level in table.levels(name):
            at = np.array([format_level(v) == level for v in column]) & np.isfinite(values)
            if at.any():
                mean = float(values[at].mean() - np.nanmean(values))
                effect = fitted.get((name, str(level)), mean)
                effects.append({"parameter": name, "level": level, "effect": effect,
                                "rows": int(at.sum())})  # fmt: skip
        if len(effects) > 1:
            rows.append((max if maximize else min)(effects, key=lambda row: row["effect"]))
    better = "more" if maximize else "less"
    return Findings(
        title=f"{table.name}: best value of each parameter, {better} {target} is better",
        name="best_levels",
        columns={"parameter": "parameter", "level": "value", "effect": "effect", "rows": "rows"},
        rows=tuple(rows),
    )


@dataclass(frozen=True, kw_only=True)
class Importances(Findings):
    """Parameters, the most important first."""

    target: str
    method: str


def importances(
    table: RunTable,
    target: str | None = None,
    *,
    method: str | None = None,
    parameters: Sequence[str] | None = None,
) -> Importances:
    """Weigh each parameter for the target.

    `target`: a numeric column; energy or power unless given.
    `method`: one of `METHODS`; `fanova` where Optuna and scikit-learn are installed.
    `parameters`: which to weigh; all of the table's unless given.
    """
    target = target or default_target(table)
    wanted = [p for p in (table.parameters if parameters is None else parameters) if p != target]
    table.numbers(target)
    for name in wanted:
        table.column(name)
    possible = has_library("optuna") and has_library("sklearn")
    chosen = method or ("fanova" if possible else "variance")
    if chosen not in METHODS:
        raise ConfigError(f"unknown method '{chosen}'; known are {', '.join(METHODS)}")
    if chosen == "fanova" and not possible:
        raise ConfigError(
            "fanova needs Optuna and scikit-learn: pip install 'wattloop[tune,analyze]'; "
            "or use variance"
        )
    before = len(table)
    table = table.complete([target, *wanted])
    table.needs_rows(4, "importances")
    values = table.numbers(target)
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        raise ConfigError(f"{table.name}: '{target}' is {values[0]:g} in every row")
    varied = [name for name in wanted if len(table.levels(name)) > 1]
    if not varied:
        raise ConfigError(f"{table.name}: no parameter has two levels; nothing to weigh")
    own = {name: variance_share(values, level_groups(table, name)) for name in varied}
    notes = [METHODS[chosen]]
    shares = own
    if chosen == "fanova":
        shares, rows_used = _fanova(table, values, varied)
        if rows_used < len(table):
            notes.append(f"over {rows_used} of {len(table)} rows, drawn with a fixed seed")
    if len(varied) < len(wanted):
        constant = [name for name in wanted if name not in varied]
        notes.append(f"left out, one level only: {', '.join(constant)}")
    if before > len(table):
        notes.append(f"{before - len(table)} rows with missing values left out")
    rows: list[dict[str, Any]] = [
        {
            "parameter": name,
            "importance": shares[name],
            "epsilon2": own[name],
            "levels": len(table.levels(name)),
        }
        for name in varied
    ]
    rows.sort(key=lambda row: -row["importance"])
    columns = {"parameter": "parameter", "importance": f"importance ({chosen})"}
    if chosen != "variance":
        columns["epsilon2"] = "variance between levels"
    return Importances(
        title=f"{table.name}: what {target} depends on",
        columns={**columns, "levels": "levels"},
        rows=tuple(rows),
        formats={"importance": ".3f", "epsilon2": ".3f"},
        facts={"rows": len(table)},
        notes=tuple(notes),
        target=target,
        method=chosen,
    )


def level_groups(table: RunTable, name: str) -> NDArray[np.intp]:
    """Return a number per row: its level, or its tenth where a number has very many values."""
    levels = table.levels(name)
    if len(levels) > MANY_LEVELS and table.is_numeric(name):
        numbers = table.numbers(name)
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, GROUPS + 1)[1:-1]))
        return np.searchsorted(edges, numbers, side="right")
    place = {level: number for number, level in enumerate(levels)}
    return np.array([place[label] for label in table.labels(name) if label is not None])


def variance_share(values: Floats, groups: NDArray[np.intp]) -> float:
    """epsilon2 = 1 - (SS_within / (n - g)) / (SS_total / (n - 1)), at least 0.

    The plain share (eta2) is (g - 1) / (n - 1) for groups that mean nothing; this is 0 for them.
    """
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=values - values.mean())
    total = float(np.sum((values - values.mean()) ** 2))
    if total <= 0:
        return 0.0
    there = counts > 0
    between = float(np.sum(sums[there] ** 2 / counts[there]))
    n, g = len(values), int(there.sum())
    if n <= g:
        return math.nan
    within = max(total - between, 0.0)
    return max(0.0, 1 - within / (n - g) / (total / (n - 1)))


def _fanova(table: RunTable, values: Floats, names: Sequence[str]) -> tuple[dict[str, float], int]:
    """Run Optuna's evaluator over a study in memory, on a sample of very many rows."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator

    rows = np.arange(len(values))
    if len(rows) > FOREST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, FOREST_ROWS, replace=False))
    distributions: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {}
    for name in names:
        if table.is_numeric(name):
            numbers = table.numbers(name)
            distributions[name] = FloatDistribution(float(numbers.min()), float(numbers.max()))
            columns[name] = [float(v) for v in numbers]
        else:
            distributions[name] = CategoricalDistribution(table.levels(name))
            columns[name] = [label or "" for label in table.labels(name)]
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        study.add_trials(
            [
                optuna.trial.create_trial(
                    params={name: columns[name][n] for name in names},
                    distributions=distributions,
                    value=float(values[n]),
                )
                for n in rows
            ]
        )
        trees = min(max(16 * FOREST_ROWS // len(rows), 16), TREES)
        evaluator = FanovaImportanceEvaluator(n_trees=trees, max_depth=32, seed=0)
        # asked itself, it does not scale to a sum of 1: what is left are interactions
        found = evaluator.evaluate(study)
    finally:
        optuna.logging.set_verbosity(before)
    return {name: float(found.get(name, 0.0)) for name in names}, len(rows)
