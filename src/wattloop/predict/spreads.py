"""How wrong a prediction tends to be, by what its time is made of.

A step that waits for the host is as uncertain as the host's speed, one of products as uncertain as
products are; a step of several parts lies between:

    spread(step) = sum over parts of share x spread(part)

The spreads of the parts are fitted to sizes of residuals, none below 0, pulled a little towards
the mean; large ones are cut, because a spread is about most steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.prediction import Prediction

__all__ = ["PARTS", "parts_of", "spread_of", "spreads_of"]

PARTS = ("host", "convolution", "recurrence", "rest")
_KINDS = {"conv": "convolution", "rnn": "recurrence"}
SHARPNESS = 6
"""How quickly the longer one of GPU and host takes over the whole step."""
PULL = 2.0
"""The pull towards the mean weighs as much as so many steps."""
CUT = 3.0
"""Sizes beyond so many medians (and a tenth) count as that."""
LEAST = 0.2
"""No step's spread is thought to be below this share of the mean size."""

Array = NDArray[np.float64]


def parts_of(prediction: Prediction) -> dict[str, float]:
    """Shares of the parts in a step; what a model's terms do not tell is `rest`."""
    gpu_s, host_s = prediction.gpu_s or prediction.step_s, prediction.host_s or 0.0
    longest = max(gpu_s, host_s)
    host = (host_s / longest) ** SHARPNESS
    waiting = host / (host + (gpu_s / longest) ** SHARPNESS)
    shares = dict.fromkeys(PARTS, 0.0)
    busy = {name: s for name, s in prediction.terms_s.items() if "." in name and s > 0}
    total = sum(busy.values()) or 1.0
    for name, seconds in busy.items():
        shares[_KINDS.get(name.rpartition(".")[2], "rest")] += (1 - waiting) * seconds / total
    shares["host"] = waiting
    if not busy:
        shares["rest"] = 1 - waiting
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
    """Spread of one step."""
    told = sum(share * spreads.get(name, 0.0) for name, share in parts.items())
    return max(told, spreads["least"])


def _least_squares(normal: Array, aim: Array) -> Array:
    """The non-negative solution of the normal equations, coordinate by coordinate."""
    found = np.zeros(len(aim))
    for _ in range(200):
        for i in range(len(aim)):
            rest = aim[i] - normal[i] @ found + normal[i, i] * found[i]
            found[i] = max(rest / normal[i, i], 0.0)
    return found
