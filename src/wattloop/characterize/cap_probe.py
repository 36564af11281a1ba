"""Which cap to try next: the one after which the expected loss is smallest."""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from wattloop.characterize.cap_belief import Belief
from wattloop.characterize.cap_choice import regrets

__all__ = ["next_probe"]

OUTCOMES = 48
"""Outcomes of a probe that are looked at."""
BANDWIDTH = 0.2
"""Curves within this part of the spread of outcomes explain an outcome, even without noise."""
HOPE = 1.0
"""Weight of the chance that the cap itself turns out the best so far."""


def next_probe(
    belief: Belief, tried: Collection[int], metric: str, k: float, noise: float, seed: int
) -> int | None:
    """Index of the cap to try; None when every cap was tried and trying again teaches nothing."""
    draw = np.random.default_rng(seed)
    # Single precision is plenty here, and twice as fast.
    time: npt.NDArray[Any] = belief.sampled_time.astype(np.float32)
    power: npt.NDArray[Any] = belief.sampled_power.astype(np.float32)
    table = regrets(time, power, metric, k)
    so_far = table[:, sorted(tried)].min(axis=1)
    best: tuple[float, int] | None = None
    for cap in range(time.shape[1]):
        if cap in tried and noise <= 1e-3:
            continue
        error = np.zeros((OUTCOMES, len(time)), dtype=np.float32)
        for values in (time[:, cap], power[:, cap]):
            seen = values[:OUTCOMES] + noise * draw.standard_normal(OUTCOMES, dtype=np.float32)
            width = noise**2 + (BANDWIDTH * values.std()) ** 2 + 1e-6
            error = error + (seen[:, None] - values[None, :]) ** 2 / width
        weights = np.exp(-0.5 * (error - error.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        after = float((weights @ table).min(axis=1).mean())
        improvement = float(np.maximum(so_far - table[:, cap], 0.0).mean())
        value = after - HOPE * improvement
        if best is None or value < best[0]:
            best = (value, cap)
    return None if best is None else best[1]
