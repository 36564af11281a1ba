"""How wrong a prediction tends to be, by what its time is made of.

Steps that load the GPU fully are predicted best. The less of its power limit a step draws, the
more of it is waiting for the host, launching and small kernels, which are uncertain; and among what
loads it, convolutions are (which algorithm will cuDNN take?) and recurrent layers:

    load         = power / (0.97 limit), at most 1
    spread(step) = (1 - load) spread(unloaded) + load x sum over kinds of share x spread(kind)

The spreads of the parts are fitted to sizes of residuals, none below 0, pulled a little towards
the mean; large ones are cut, because a spread is about most steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.prediction import Prediction

__all__ = ["PARTS", "parts_of", "spread_of", "spreads_of"]

PARTS = ("unloaded", "convolution", "recurrence", "rest")
_KINDS = {"conv": "convolution", "rnn": "recurrence"}
FULL = 0.97
"""Share of its power limit that a fully loaded GPU draws."""
PULL = 2.0
"""The pull towards the mean weighs as much as so many steps."""
CUT = 3.0
"""Sizes beyond so many medians (and a tenth) count as that."""
LEAST = 0.2
"""No step's spread is thought to be below this share of the mean size."""

Array = NDArray[np.float64]


def parts_of(prediction: Prediction, limit_w: float) -> dict[str, float]:
    """Shares of the parts in a step; what a model's terms do not tell is `rest`."""
    load = min(prediction.power_w / (FULL * limit_w), 1.0)
    shares = {**dict.fromkeys(PARTS, 0.0), "unloaded": 1 - load}
    busy = {name: s for name, s in prediction.terms_s.items() if "." in name and s > 0}
    total = sum(busy.values())
    for name, seconds in busy.items():
        shares[_KINDS.get(name.rpartition(".")[2], "rest")] += load * seconds / total
    if not busy:
        shares["rest"] = load
    return shares


def spreads_of(parts: Sequence[Mapping[str, float]], sizes: Sequence[float]) -> dict[str, float]:
    """Spread of each part, from steps' shares and sizes of their residuals."""
    values = np.asarray(sizes, dtype=np.float64)
    values = np.minimum(values, CUT * np.median(values) + 0.1)
    mean = float(values.mean())
    shares = np.array([[step.get(name, 0.0) for name in PARTS] for step in parts])
    normal = shares.T @ shares + PULL * np.eye(len(PARTS))
    aim = shares.T @ values + PULL * mean
    found = _least_squares(normal, aim)
    return {**dict(zip(PARTS, found.tolist(), strict=True)), "least": LEAST * mean}


def spread_of(spreads: Mapping[str, float], parts: Mapping[str, float]) -> float:
    """Spread of one step; of a part that was never fitted, the largest known."""
    largest = max(spreads.values())
    told = sum(share * spreads.get(name, largest) for name, share in parts.items())
    return max(told, spreads["least"])


def _least_squares(normal: Array, aim: Array) -> Array:
    """The non-negative solution of the normal equations, coordinate by coordinate."""
    found = np.zeros(len(aim))
    for _ in range(200):
        for i in range(len(aim)):
            rest = aim[i] - normal[i] @ found + normal[i, i] * found[i]
            found[i] = max(rest / normal[i, i], 0.0)
    return found
