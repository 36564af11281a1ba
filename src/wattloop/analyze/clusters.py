"""Families of runs: standardise, K-Means, PCA, in the three strategies of Denergium's study.

- `results`  runs with like outcomes; then look which parameters they have
- `all`      runs with like parameters and outcomes; parameters of little influence are left out
             and the rest is clustered again
- `hybrid`   clusters of outcomes first; then again with the parameters that differ between them
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.features import Features, features_of
from wattloop.analyze.findings import Findings
from wattloop.analyze.grouping import Grouping, grouped
from wattloop.analyze.influence import influence_table, little_influence
from wattloop.analyze.libraries import needs_libraries
from wattloop.analyze.roles import usual_target
from wattloop.analyze.table import Floats, Table
from wattloop.core.errors import ConfigError

__all__ = ["STRATEGIES", "Clusters", "clusters"]

STRATEGIES = {
    "results": "results only",
    "all": "parameters and results, then again without parameters of little influence",
    "hybrid": "results first, then again with the parameters that differ between those clusters",
}

MOST_GAPS = 0.1
"""A result that more rows miss is left out, not the rows: few of a search reach their target."""


@dataclass(frozen=True, kw_only=True)
class Clusters(Findings):
    """Means of each cluster; further tables: influence, first pass, silhouettes, PCA.

    Attributes:
        table: the rows that were clustered.
        strategy: one of `STRATEGIES`.
        labels: the cluster of each row; they are numbered by the mean of `ordered_by`.
        silhouette: of the last pass.
        used: columns of the last pass.
        little: parameters of little influence.
        projection: three main components of each row, fewer where there are fewer coordinates.
        explained: share of the variance of each component.
    """

    table: Table
    strategy: str
    labels: NDArray[np.intp]
    ordered_by: str
    silhouette: float
    used: tuple[str, ...]
    little: tuple[str, ...]
    projection: Floats
    explained: tuple[float, ...]


def clusters(
    table: Table,
    strategy: str = "hybrid",
    *,
    k: int | None = None,
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
) -> Clusters:
    """Families of runs.

    Args:
        table: the runs.
        strategy: one of `STRATEGIES`.
        k: number of clusters; the one with the highest silhouette unless given.
        parameters: which to use; all of the table's unless given.
        results: which to use; unless given, all numeric ones that at least 90% of the rows have.
    """
    needs_libraries("clustering", "sklearn")
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown strategy '{strategy}'; known are {', '.join(STRATEGIES)}")
    chosen = list(table.parameters if parameters is None else parameters)
    if results is None:
        outcomes, gaps = _without_gaps(table)
    else:
        gaps = []
        outcomes = list(results)
        for name in outcomes:
            table.numbers(name)
    if not outcomes:
        raise ConfigError(f"{table.name}: no results with numbers; name them with --results")
    table = table.complete([*chosen, *outcomes])
    table.needs_rows(3, "clusters")
    features = features_of(table, [*chosen, *outcomes])
    if gaps:
        note = f"left out, missing in more than {MOST_GAPS:.0%} of the rows: {', '.join(gaps)}"
        features = replace(features, notes=(*features.notes, note))
    varied = [name for name in outcomes if name in features.owners]
    tunable = [name for name in chosen if name in features.owners]
    if not varied:
        raise ConfigError(f"{table.name}: no result varies; there is nothing to group by")
    first_used = [*tunable, *varied] if strategy == "all" else varied
    first = grouped(features.only(first_used), k, table.name)
    influence = influence_table(table, features, first.labels, tunable, varied)
    little = little_influence(influence)
    last, used = first, first_used
    if strategy != "results" and [n for n in tunable if n not in little] + varied != first_used:
        used = [name for name in (*tunable, *varied) if name not in little]
        last = grouped(features.only(used), k, table.name)
    return _described(table, strategy, features, (first, last), (first_used, used), influence)


def _without_gaps(table: Table) -> tuple[list[str], list[str]]:
    """Numeric results, and those that are left out because too many rows would have to be."""
    numeric = [name for name in table.results if table.is_numeric(name)]
    missing = {name: np.isnan(table.numbers(name)).mean() for name in numeric}
    gaps = [name for name in numeric if missing[name] > MOST_GAPS]
    if len(gaps) == len(numeric):
        return numeric, []
    return [name for name in numeric if name not in gaps], gaps


def _described(
    table: Table,
    strategy: str,
    features: Features,
    passes: tuple[Grouping, Grouping],
    columns: tuple[Sequence[str], Sequence[str]],
    influence: Findings,
) -> Clusters:
    first, last = passes
    key = usual_target(table)
    order = key if key in features.owners else columns[1][-1]
    labels = _numbered(last.labels, features, order)
    points = features.only(columns[1])
    projection, explained, loadings = _projected(table, features, points, columns[1])
    title = f"{table.name}: means of {last.k} clusters"
    means = _means(table, features, labels, "means", title)
    others = [influence]
    if last is not first:
        early = _numbered(first.labels, features, order)
        title = f"{table.name}: means of {first.k} clusters, first pass"
        others.append(_means(table, features, early, "first-pass", title))
    others += [_silhouettes(table, last), loadings]
    little = little_influence(influence)
    gone = {r: n for r, n in table.left_out.items() if r.startswith("no ")}
    notes = [
        f"strategy {strategy}: {STRATEGIES[strategy]}",
        f"columns of the last pass, standardised: {', '.join(columns[1])}",
        f"clusters are numbered by their mean {order}",
        *features.notes,
    ]
    if last is not first:
        notes.append(f"silhouette of the first pass: {first.silhouette:.3f}")
    if gone:
        notes.append(f"{sum(gone.values())} rows with missing values left out")
    if last.sampled < len(table):
        notes.append(
            f"silhouette over {last.sampled} of {len(table)} rows, drawn with a fixed seed"
        )
    weak = last.silhouette < 0.25
    return Clusters(
        title=means.title,
        name=means.name,
        columns=means.columns,
        rows=means.rows,
        formats=means.formats,
        facts={
            "clusters": last.k,
            "silhouette": last.silhouette,
            "rows": len(table),
            "little_influence": ", ".join(little) or "none",
        },
        notes=tuple(notes),
        warnings=("a silhouette below 0.25 means hardly any clusters",) if weak else (),
        others=tuple(others),
        table=table,
        strategy=strategy,
        labels=labels,
        ordered_by=order,
        silhouette=last.silhouette,
        used=tuple(columns[1]),
        little=little,
        projection=projection,
        explained=explained,
    )


def _numbered(labels: NDArray[np.intp], features: Features, column: str) -> NDArray[np.intp]:
    """The cluster with the smallest mean of that column is 0."""
    values = features.plain[:, features.owners.index(column)]
    found = np.unique(labels)
    means = [values[labels == label].mean() for label in found]
    new = np.zeros(int(found.max()) + 1, dtype=np.intp)
    new[found[np.argsort(means, kind="stable")]] = np.arange(len(found))
    numbered: NDArray[np.intp] = new[labels]
    return numbered


def _means(
    table: Table, features: Features, labels: NDArray[np.intp], name: str, title: str
) -> Findings:
    """In original units; of two levels the share of the second, of more the share of each."""
    rows: list[dict[str, Any]] = []
    for label in np.unique(labels):
        own = labels == label
        means = features.plain[own].mean(axis=0)
        row: dict[str, Any] = {"cluster": int(label), "runs": int(own.sum())}
        rows.append(row | {n: float(m) for n, m in zip(features.names, means, strict=True)})
    return Findings(
        title=title,
        name=name,
        columns={"cluster": "cluster", "runs": "runs", **{n: n for n in features.names}},
        rows=tuple(rows),
    )


def _silhouettes(table: Table, found: Grouping) -> Findings:
    return Findings(
        title=f"{table.name}: silhouette by number of clusters",
        name="silhouettes",
        columns={"k": "clusters", "silhouette": "silhouette", "chosen": ""},
        rows=tuple(
            {"k": k, "silhouette": value, "chosen": "taken" if k == found.k else ""}
            for k, value in found.tried.items()
        ),
        formats={"silhouette": ".3f"},
    )


def _projected(
    table: Table, features: Features, points: Floats, columns: Sequence[str]
) -> tuple[Floats, tuple[float, ...], Findings]:
    """Main components, their shares of the variance, and what they are made of."""
    from sklearn.decomposition import PCA

    pca = PCA(min(3, points.shape[1], len(points)), svd_solver="full").fit(points)
    # the sign of a component is arbitrary: its largest entry is made positive, the first of equal
    # ones (two columns always have two), whatever rounding makes of them
    parts = np.asarray(pca.components_)
    signs = np.sign(parts[np.arange(len(parts)), np.abs(parts).round(9).argmax(axis=1)])
    projection = np.asarray(pca.transform(points)) * signs
    names = [n for n, o in zip(features.names, features.owners, strict=True) if o in columns]
    explained = tuple(float(share) for share in pca.explained_variance_ratio_)
    heads = {f"pc{n + 1}": f"PC{n + 1} ({share:.0%})" for n, share in enumerate(explained)}
    loadings = Findings(
        title=f"{table.name}: main components",
        name="components",
        columns={"column": "column", **heads},
        rows=tuple(
            {"column": name} | {key: float(parts[n, c] * signs[n]) for n, key in enumerate(heads)}
            for c, name in enumerate(names)
        ),
        formats=dict.fromkeys(heads, "+.2f"),
    )
    return projection, explained, loadings
