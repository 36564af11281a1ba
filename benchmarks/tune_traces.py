"""Evidence from measured tables for the design of `race` (ADR 0023)."""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

from wattloop.tune.replay.tables import RecordedWorkload

__all__ = ["cap_reuse", "rank_agreement"]


def rank_agreement(workload: RecordedWorkload, share: float) -> tuple[float, float]:
    """Return Spearman's coefficient between energy to the target and quality, over batch sizes.

    Quality after equal epochs, and after equal joules, both `share` of the default's;
    each batch size at its best cap, epochs that are not whole interpolated.
    """
    sizes = [b for b in workload.batch_sizes if math.isfinite(workload.epochs(b))]
    cost = [workload.energy_j(b, workload.best_cap_w(b)) for b in sizes]
    epochs = share * workload.epochs(workload.default)
    energy_j = share * workload.energy_j(workload.default, workload.best_cap_w(workload.default))
    by_epochs = [_quality(workload, b, epochs) for b in sizes]
    by_joules = [
        _quality(workload, b, energy_j / workload.epoch_energy_j(b, workload.best_cap_w(b)))
        for b in sizes
    ]
    return -_spearman(by_epochs, cost), -_spearman(by_joules, cost)


def cap_reuse(workload: RecordedWorkload) -> float:
    """Return the largest share of energy lost by one batch size with the best cap of another."""
    sizes = workload.batch_sizes
    return max(
        workload.epoch_energy_j(b, workload.best_cap_w(a))
        / workload.epoch_energy_j(b, workload.best_cap_w(b))
        - 1
        for a in sizes
        for b in sizes
    )


def _quality(workload: RecordedWorkload, batch_size: int, epochs: float) -> float:
    """Return mean progress after so many epochs, smooth between levels; more is better."""
    sign = 1 if workload.wanted.maximize else -1
    found = []
    for training in workload.trainings[batch_size]:
        points = [(0.0, 0.0)] if sign > 0 else []
        points += [(float(epoch), sign * level) for level, epoch in training.levels]
        found.append(_interpolated(points, epochs))
    return fmean(found)


def _interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """The last of several levels reached in one epoch counts."""
    last = dict(points)
    places = sorted(last)
    if not places or x <= places[0]:
        return last[places[0]] * x / places[0] if places and places[0] > 0 else 0.0
    for a, b in itertools.pairwise(places):
        if x <= b:
            return last[a] + (last[b] - last[a]) * (x - a) / (b - a)
    return last[places[-1]]


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    a, b = _ranks(one), _ranks(other)
    mean = (len(a) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    bottom = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / bottom if bottom else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ties share the mean of their ranks."""
    return [
        fmean(i for i, v in enumerate(sorted(values)) if math.isclose(v, value, rel_tol=1e-9))
        for value in values
    ]
