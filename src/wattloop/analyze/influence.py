"""Which parameters matter: those that differ between clusters, and that results depend on.

Two shares of variance, both epsilon2 (0 for what means nothing, 1 for what decides):

- *between clusters*: of the parameter, between the clusters; small where its mean is about the same
  in all of them, which is how Denergium's study tells
- *of results*: of the result that depends on the parameter most, between the parameter's levels

A parameter has little influence when the second is below 1%, or both are below 5%. The second is
needed because K-Means may split along a parameter that nothing depends on, just because it has few
levels far apart.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.features import Features
from wattloop.analyze.findings import Findings
from wattloop.analyze.importance import groups_of, share_between
from wattloop.analyze.table import Table

__all__ = ["LITTLE", "NOTHING", "influence_table", "little_influence"]

LITTLE = 0.05
NOTHING = 0.01


def influence_table(
    table: Table,
    features: Features,
    labels: NDArray[np.intp],
    parameters: Sequence[str],
    results: Sequence[str],
) -> Findings:
    """A row per parameter, the most influential first."""
    outcomes = {name: table.numbers(name) for name in results}
    rows: list[dict[str, Any]] = []
    for parameter in parameters:
        between = _between(features, labels, parameter)
        groups = groups_of(table, parameter)
        shares = {name: share_between(values, groups) for name, values in outcomes.items()}
        most = max(shares, key=lambda name: np.nan_to_num(shares[name]))
        # a parameter with a level per row explains everything and nothing
        of_results = float(np.nan_to_num(shares[most]))
        little = of_results < NOTHING or (of_results < LITTLE and between < LITTLE)
        rows.append(
            {
                "parameter": parameter,
                "between_clusters": between,
                "of_results": of_results,
                "most": most,
                "influence": "little" if little else "yes",
            }
        )
    rows.sort(key=lambda row: -(row["between_clusters"] + row["of_results"]))
    return Findings(
        title=f"{table.name}: influence of parameters",
        name="influence",
        columns={
            "parameter": "parameter",
            "between_clusters": "between clusters",
            "of_results": "of results",
            "most": "most of",
            "influence": "influence",
        },
        rows=tuple(rows),
        formats={"between_clusters": ".3f", "of_results": ".3f"},
        notes=(
            "shares of variance; little influence: 'of results' below "
            f"{NOTHING:.0%}, or both below {LITTLE:.0%}",
        ),
    )


def little_influence(influence: Findings) -> tuple[str, ...]:
    """The parameters that may be left out."""
    return tuple(str(r["parameter"]) for r in influence.rows if r["influence"] == "little")


def _between(features: Features, labels: NDArray[np.intp], parameter: str) -> float:
    """Over all coordinates of the parameter, weighed by their variance."""
    columns = [n for n, owner in enumerate(features.owners) if owner == parameter]
    variances = np.array([features.plain[:, n].var() for n in columns])
    shares = np.array([share_between(features.plain[:, n], labels) for n in columns])
    return float(np.sum(variances * shares) / np.sum(variances))
