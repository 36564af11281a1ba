"""The objective of SM2 over a set of configurations, document 003, equation 2.

    f(alpha, beta) = alpha P + (1 - alpha) (beta E + (1 - beta) LR)

Performance P, energy E and learning rate LR are each rescaled to 0..1 over the configurations that
are compared, and turned round so that 1 is best: a low energy, a high rate.
"""

import math
from collections.abc import Sequence

__all__ = ["rescaled", "sm2_scores"]

ALPHA, BETA = 0.75, 0.5
"""What the document found to do best."""


def sm2_scores(
    quality: Sequence[float | None],
    energy_j: Sequence[float | None],
    rate: Sequence[float | None],
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
    maximize: bool = True,
) -> list[float]:
    """Score f of each configuration; larger is better.

    A configuration whose quality or energy is missing or not finite has minus infinity, and does
    not count in the rescaling of the others. Rates that are missing count as the lowest.

    Args:
        quality: the metric of each.
        energy_j: of each, for the same amount of training (the document takes an epoch).
        rate: the learning rate chosen for each.
        alpha: weight of the quality.
        beta: weight of the energy against the rate, in what alpha leaves.
        maximize: whether more of the metric is better.
    """
    known = [
        index
        for index, (q, e) in enumerate(zip(quality, energy_j, strict=True))
        if q is not None and e is not None and math.isfinite(q) and math.isfinite(e)
    ]
    p = rescaled([quality[i] for i in known], invert=not maximize)
    e = rescaled([energy_j[i] for i in known], invert=True)
    lr = rescaled([rate[i] for i in known])
    scores = [-math.inf] * len(quality)
    for place, index in enumerate(known):
        efficiency = beta * e[place] + (1 - beta) * lr[place]
        scores[index] = alpha * p[place] + (1 - alpha) * efficiency
    return scores


def rescaled(values: Sequence[float | None], *, invert: bool = False) -> list[float]:
    """Each in 0..1 of the range they span; all 1 when they are equal; missing ones 0."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    if not there:
        return [0.0 for _ in values]
    low, high = min(there), max(there)
    scale = high - low
    found = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(0.0)
        elif scale <= 0:
            found.append(1.0)
        else:
            share = (value - low) / scale
            found.append(1 - share if invert else share)
    return found
