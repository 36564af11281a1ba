"""A search as a table: one row per configuration, a column per parameter and per result."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from wattloop.store.database import Store
from wattloop.store.experiments import find_experiment
from wattloop.tune.candidate_results import (
    RESULTS,
    CandidateResult,
    candidates_of,
    parameter_columns,
)
from wattloop.tune.problem import Quality

__all__ = ["quality_of", "rows_of", "search_table"]


def search_table(store: Store, search_id: str) -> list[dict[str, Any]]:
    """Rows of a stored search, in the order in which candidates were begun."""
    experiment = find_experiment(store, search_id, "search")
    return rows_of(candidates_of(store, experiment.experiment_id, quality_of(experiment.facts)))


def rows_of(candidates: Sequence[CandidateResult]) -> list[dict[str, Any]]:
    """A flat row per candidate; every row has every column, None where there is no value.

    Metrics that trainings reported beside the quality are columns under their own names.
    """
    parameters = parameter_columns(candidates)
    taken = {*RESULTS, *parameters.values()}
    metrics = {name: None for c in candidates for name in c.metrics if name not in taken}
    results = RESULTS[2:-1]
    values_of = attrgetter(*results)
    rows = []
    for c in candidates:
        row: dict[str, Any] = {"candidate": c.candidate, "number": c.number}
        for name, column in parameters.items():
            row[column] = c.parameters.get(name, c.levers.get(name))
        row.update(zip(results, values_of(c), strict=True))
        row["message"] = "; ".join(c.messages)
        for name in metrics:
            row[name] = c.metrics.get(name)
        rows.append(row)
    return rows


def quality_of(facts: dict[str, Any]) -> Quality | None:
    """The metric of a stored search."""
    known = facts.get("quality")
    return None if not isinstance(known, dict) else Quality(**known)
