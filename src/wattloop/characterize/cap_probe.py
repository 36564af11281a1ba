"""Which cap to try next: the one after which the expected loss is smallest."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.characterize.cap_belief import Belief
from wattloop.characterize.cap_choice import regrets

__all__ = ["Further", "further_probe", "next_probe"]

OUTCOMES = 48
"""Outcomes of a probe that are looked at."""
MORE_OUTCOMES = 200
"""The same where the figure itself decides, not only which cap has the smallest."""
BANDWIDTH = 0.2
"""Curves within this part of the spread of outcomes explain an outcome, even without noise."""
HOPE = 1.0
"""Weight of the chance that the cap itself turns out the best so far."""


class Further(NamedTuple):
    """One more probe: index of the cap, and by how much it is expected to lower the regret."""

    cap: int
    gain: float


class _Outlook(NamedTuple):
    cap: int
    after: float
    """Expected regret of the choice after a reading there."""
    improvement: float
    """Expected gain over the best cap tried so far if this one is taken."""


def next_probe(
    belief: Belief, tried: Collection[int], metric: str, k: float, noise: float, seed: int
) -> int | None:
    """Index of the cap to try; None when every cap was tried and trying again teaches nothing."""
    ahead = _outlooks(belief, tried, metric, k, noise, seed, OUTCOMES)
    best = min(ahead, key=lambda x: x.after - HOPE * x.improvement, default=None)
    return None if best is None else best.cap


def further_probe(
    belief: Belief, tried: Collection[int], metric: str, k: float, noise: float, seed: int
) -> Further | None:
    """What one more probe is good for; None where nothing is left to learn.

    A cap that was tried counts as any other: its curve keeps its deviation, the noise is new.
    """
    ahead = _outlooks(belief, tried, metric, k, noise, seed, MORE_OUTCOMES)
    best = min(ahead, key=lambda x: x.after, default=None)
    if best is None:
        return None
    now = regrets(belief.sampled_time, belief.sampled_power, metric, k).mean(axis=0).min()
    return Further(best.cap, float(now) - best.after)


def _outlooks(
    belief: Belief,
    tried: Collection[int],
    metric: str,
    k: float,
    noise: float,
    seed: int,
    outcomes: int,
) -> Iterator[_Outlook]:
    draw = np.random.default_rng(seed)
    # Single precision is plenty here, and twice as fast.
    time: npt.NDArray[Any] = belief.sampled_time.astype(np.float32)
    power: npt.NDArray[Any] = belief.sampled_power.astype(np.float32)
    table = regrets(time, power, metric, k)
    so_far = table[:, sorted(tried)].min(axis=1)
    for cap in range(time.shape[1]):
        if cap in tried and noise <= 1e-3:
            continue
        error = np.zeros((outcomes, len(time)), dtype=np.float32)
        for values in (time[:, cap], power[:, cap]):
            seen = values[:outcomes] + noise * draw.standard_normal(outcomes, dtype=np.float32)
            width = noise**2 + (BANDWIDTH * values.std()) ** 2 + 1e-6
            error = error + (seen[:, None] - values[None, :]) ** 2 / width
        weights = np.exp(-0.5 * (error - error.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        after = float((weights @ table).min(axis=1).mean())
        yield _Outlook(cap, after, float(np.maximum(so_far - table[:, cap], 0.0).mean()))
