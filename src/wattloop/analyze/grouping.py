"""K-Means with a number of clusters that the silhouette suggests; the same every time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.table import Floats
from wattloop.core.errors import ConfigError

__all__ = ["MOST_CLUSTERS", "Grouping", "grouped"]

MOST_CLUSTERS = 10
SAMPLE = 1_000
"""Rows that the silhouette is taken over: it looks at every pair."""
STARTS, TRIAL_STARTS = 10, 4
"""Of the grouping itself, and of those by which the number of clusters is chosen."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which cluster each row is in.

    Attributes:
        labels: from 0.
        k: how many.
        silhouette: how much nearer rows are to their own cluster than to the next: -1 to 1.
        tried: silhouettes by number of clusters; one entry where the number was given.
        sampled: rows the silhouette was taken over.
    """

    labels: NDArray[np.intp]
    k: int
    silhouette: float
    tried: dict[int, float]
    sampled: int


def grouped(points: Floats, k: int | None, where: str) -> Grouping:
    """Cluster the points; `k` None takes the number with the highest silhouette.

    Raises:
        ConfigError: more clusters than different rows, or fewer than two.
    """
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
