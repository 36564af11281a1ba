"""Clusters of runs: standardise, K-Means, PCA, in the three strategies of Denergium's study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.analysis_result import Findings, headers, needs_libraries
from wattloop.analyze.importance import level_groups, variance_share
from wattloop.analyze.roles import default_target
from wattloop.analyze.table import Floats, RunTable
from wattloop.core.errors import ConfigError

# Rows as points: every column scaled to mean 0 and variance 1, levels as shares.
#
# - numbers: as they are, standardised (scikit-learn's StandardScaler)
# - text with two levels: 0 and 1; its mean in a group is the share of the second level
# - text with more levels: one column per level, standardised and divided by the root of their
#   number, so that a parameter with many levels does not weigh more than one with few

MOST_LEVELS = 50
"""Text with more levels than this names rows instead of describing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeatures:
    """Points and what their coordinates are.

    Attributes:
        names: of the coordinates, such as `batch_size` or `precision=fp32`.
        owners: the column each belongs to.
        plain: in original units, shares of levels as 0 and 1.
    """

    names: tuple[str, ...]
    owners: tuple[str, ...]
    plain: Floats
    scaled: Floats
    notes: tuple[str, ...]

    def only(self, columns: Sequence[str]) -> Floats:
        return self.scaled[:, [owner in columns for owner in self.owners]]


def build_features(table: RunTable, columns: Sequence[str]) -> ClusterFeatures:
    """Build the coordinates of these columns, from rows that miss none of them."""
    from sklearn.preprocessing import StandardScaler

    found: list[tuple[str, str, Floats, float]] = []
    said: dict[str, list[str]] = {
        "two levels as 0 and 1": [],
        "one column per level, together weighing as one": [],
        "left out, the same in every row": [],
        f"left out, more than {MOST_LEVELS} levels": [],
    }
    two, more, constant, too_many = said.values()
    for column in columns:
        if not table.varies(column):
            constant.append(column)
        elif table.is_numeric(column):
            found.append((column, column, table.numbers(column), 1.0))
        elif len(levels := table.levels(column)) > MOST_LEVELS:
            too_many.append(column)
        else:
            (two if len(levels) == 2 else more).append(column)
            labels = np.array([label or "" for label in table.labels(column)])
            kept = levels[1:] if len(levels) == 2 else levels
            for level in kept:
                values = (labels == level).astype(np.float64)
                found.append((f"{column}={level}", column, values, 1 / math.sqrt(len(kept))))
    if not found:
        raise ConfigError(f"{table.name}: none of {', '.join(columns) or 'its columns'} varies")
    names, owners, values_of, weights = zip(*found, strict=True)
    plain = np.column_stack(values_of)
    return ClusterFeatures(
        names=names,
        owners=owners,
        plain=plain,
        scaled=np.asarray(StandardScaler().fit_transform(plain)) * np.array(weights),
        notes=tuple(f"{note}: {', '.join(those)}" for note, those in said.items() if those),
    )


MOST_CLUSTERS = 10
SAMPLE = 600
"""Rows that the silhouette is taken over: it looks at every pair."""
STARTS, TRIAL_STARTS = 10, 4
"""Of the grouping itself, and of those by which the number of clusters is chosen."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Grouping:
    """Cluster of each row.

    Attributes:
        silhouette: how much nearer rows are to their own cluster than to the next: -1 to 1.
        tried: silhouettes by number of clusters; one entry where the number was given.
        sampled: rows the silhouette was taken over.
    """

    labels: NDArray[np.intp]
    k: int
    silhouette: float
    tried: dict[int, float]
    sampled: int


def cluster_points(points: Floats, k: int | None, where: str) -> Grouping:
    """Cluster the points; `k` None takes the number with the highest silhouette."""
    different = len(np.unique(points.round(12), axis=0))
    if k is not None and k < 2:
        raise ConfigError(f"{k} clusters: it takes two or more")
    if k is not None and k > len(points):
        raise ConfigError(f"{where}: {k} clusters of {len(points)} rows; give fewer")
    if different < max(k or 2, 2):
        raise ConfigError(
            f"{where}: {different} different rows among {len(points)} make no {k or 2} clusters"
        )
    from threadpoolctl import threadpool_limits

    # threads cost more than they save with so few rows, and wait for each other on a busy machine
    with threadpool_limits(1):
        return _chosen(points, k)


def _chosen(points: Floats, k: int | None) -> Grouping:
    from sklearn.metrics import pairwise_distances

    rng = np.random.default_rng(SEED)
    sample = np.arange(len(points))
    if len(sample) > SAMPLE:
        sample = np.sort(rng.choice(sample, SAMPLE, replace=False))
    distances = pairwise_distances(points[sample])
    most = min(MOST_CLUSTERS, len(np.unique(points[sample].round(12), axis=0)) - 1)
    tried = {}
    if k is None:
        for count in range(2, max(most, 2) + 1):
            labels = _labels(points[sample], count, TRIAL_STARTS)
            tried[count] = _silhouette(distances, labels)
        k = max(tried, key=lambda count: tried[count])
    labels = _labels(points, k, STARTS)
    best = _silhouette(distances, labels[sample])
    tried[k] = best
    return Grouping(labels, k, best, dict(sorted(tried.items())), len(sample))


def _labels(points: Floats, k: int, starts: int) -> NDArray[np.intp]:
    from sklearn.cluster import KMeans

    found = KMeans(k, n_init=starts, random_state=SEED).fit(points)
    return np.asarray(found.labels_, dtype=np.intp)


def _silhouette(distances: Floats, labels: NDArray[np.intp]) -> float:
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(labels)) < len(labels):
        return 0.0  # by definition where every row is its own cluster
    return float(silhouette_score(distances, labels, metric="precomputed"))


# Which parameters matter: those that differ between clusters, and that results depend on.
#
# Two shares of variance, both epsilon2 (0 for what means nothing, 1 for what decides):
#
# - *between clusters*: of the parameter, between the clusters; small where its mean is about the
#   same in all of them, which is the criterion of Denergium's study
# - *of results*: of the result that depends on the parameter most, between the parameter's levels
#
# A parameter has little influence when the second is below 1%, or both are below 5%. The second
# is needed because K-Means may split along a parameter that nothing depends on, just because it
# has few levels far apart.

LITTLE = 0.05
NOTHING = 0.01


def influence_table(
    table: RunTable,
    features: ClusterFeatures,
    labels: NDArray[np.intp],
    parameters: Sequence[str],
    results: Sequence[str],
) -> Findings:
    """Return a row per parameter, the most influential first."""
    outcomes = {name: table.numbers(name) for name in results}
    rows: list[dict[str, Any]] = []
    for parameter in parameters:
        between = _between(features, labels, parameter)
        groups = level_groups(table, parameter)
        shares = {name: variance_share(values, groups) for name, values in outcomes.items()}
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
        columns=headers(
            *("parameter", "between_clusters", "of_results"), most="most of", influence="influence"
        ),
        rows=tuple(rows),
        formats={"between_clusters": ".3f", "of_results": ".3f"},
        notes=(
            "shares of variance; little influence: 'of results' below "
            f"{NOTHING:.0%}, or both below {LITTLE:.0%}",
        ),
    )


def little_influence(influence: Findings) -> tuple[str, ...]:
    return tuple(str(r["parameter"]) for r in influence.rows if r["influence"] == "little")


def _between(features: ClusterFeatures, labels: NDArray[np.intp], parameter: str) -> float:
    """Return the share over all coordinates of the parameter, weighted by their variance."""
    columns = [n for n, owner in enumerate(features.owners) if owner == parameter]
    variances = np.array([features.plain[:, n].var() for n in columns])
    shares = np.array([variance_share(features.plain[:, n], labels) for n in columns])
    return float(np.sum(variances * shares) / np.sum(variances))


# Families of runs: standardise, K-Means, PCA, in the three strategies of Denergium's study.
#
# - `results`  runs with like outcomes; then look which parameters they have
# - `all`      runs with like parameters and outcomes; parameters of little influence are left out
#              and the rest is clustered again
# - `hybrid`   clusters of outcomes first; then again with the parameters that differ between them

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
        labels: the cluster of each row; they are numbered by the mean of `ordered_by`.
        silhouette: of the last pass.
        projection: three main components of each row, fewer where there are fewer coordinates.
        explained: share of the variance of each component.
    """

    table: RunTable
    strategy: str
    labels: NDArray[np.intp]
    ordered_by: str
    silhouette: float
    used: tuple[str, ...]
    little: tuple[str, ...]
    projection: Floats
    explained: tuple[float, ...]


def clusters(
    table: RunTable,
    strategy: str = "hybrid",
    *,
    k: int | None = None,
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
) -> Clusters:
    """Group the runs into families.

    `k`: number of clusters; the one with the highest silhouette unless given.
    `parameters`: which to use; all of the table's unless given.
    `results`: which to use; unless given, all numeric ones that at least 90% of the rows have.
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
    features = build_features(table, [*chosen, *outcomes])
    if gaps:
        note = f"left out, missing in more than {MOST_GAPS:.0%} of the rows: {', '.join(gaps)}"
        features = replace(features, notes=(*features.notes, note))
    varied = [name for name in outcomes if name in features.owners]
    tunable = [name for name in chosen if name in features.owners]
    if not varied:
        raise ConfigError(f"{table.name}: no result varies; there is nothing to group by")
    first_used = [*tunable, *varied] if strategy == "all" else varied
    first = cluster_points(features.only(first_used), k, table.name)
    influence = influence_table(table, features, first.labels, tunable, varied)
    little = little_influence(influence)
    last, used = first, first_used
    if strategy != "results" and [n for n in tunable if n not in little] + varied != first_used:
        used = [name for name in (*tunable, *varied) if name not in little]
        last = cluster_points(features.only(used), k, table.name)
    return _described(table, strategy, features, (first, last), (first_used, used), influence)


def _without_gaps(table: RunTable) -> tuple[list[str], list[str]]:
    """Return the numeric results, and those left out because too many rows lack them."""
    numeric = [name for name in table.results if table.is_numeric(name)]
    missing = {name: np.isnan(table.numbers(name)).mean() for name in numeric}
    gaps = [name for name in numeric if missing[name] > MOST_GAPS]
    if len(gaps) == len(numeric):
        return numeric, []
    return [name for name in numeric if name not in gaps], gaps


def _described(
    table: RunTable,
    strategy: str,
    features: ClusterFeatures,
    passes: tuple[Grouping, Grouping],
    columns: tuple[Sequence[str], Sequence[str]],
    influence: Findings,
) -> Clusters:
    first, last = passes
    key = default_target(table)
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


def _numbered(labels: NDArray[np.intp], features: ClusterFeatures, column: str) -> NDArray[np.intp]:
    """Number the clusters by their mean of a column, from the smallest."""
    values = features.plain[:, features.owners.index(column)]
    found = np.unique(labels)
    means = [values[labels == label].mean() for label in found]
    new = np.zeros(int(found.max()) + 1, dtype=np.intp)
    new[found[np.argsort(means, kind="stable")]] = np.arange(len(found))
    numbered: NDArray[np.intp] = new[labels]
    return numbered


def _means(
    table: RunTable, features: ClusterFeatures, labels: NDArray[np.intp], name: str, title: str
) -> Findings:
    """Return means in original units; of text the share of a level."""
    rows: list[dict[str, Any]] = []
    for label in np.unique(labels):
        own = labels == label
        means = features.plain[own].mean(axis=0)
        row: dict[str, Any] = {"cluster": int(label), "runs": int(own.sum())}
        rows.append(row | {n: float(m) for n, m in zip(features.names, means, strict=True)})
    return Findings(
        title=title,
        name=name,
        columns=headers("cluster", "runs") | {n: n for n in features.names},
        rows=tuple(rows),
    )


def _silhouettes(table: RunTable, found: Grouping) -> Findings:
    return Findings(
        title=f"{table.name}: silhouette by number of clusters",
        name="silhouettes",
        columns=headers(k="clusters", silhouette="silhouette", chosen=""),
        rows=tuple(
            {"k": k, "silhouette": value, "chosen": "taken" if k == found.k else ""}
            for k, value in found.tried.items()
        ),
        formats={"silhouette": ".3f"},
    )


def _projected(
    table: RunTable, features: ClusterFeatures, points: Floats, columns: Sequence[str]
) -> tuple[Floats, tuple[float, ...], Findings]:
    """Return the main components, their shares of the variance, and their loadings."""
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
