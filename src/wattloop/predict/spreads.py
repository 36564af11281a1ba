"""How wrong a prediction tends to be, by what is known of the step beforehand.

Steps that load the GPU with kernels that calibration has measured are predicted best. Less certain
are, each by its own trait of a step,

    waiting       the GPU's share of waiting for the host, whose speed is no steady clock
    unloaded      1 - power / (0.97 limit): small kernels, launches
    convolution   share of the step; which algorithm will cuDNN take?
    recurrence    share of the step
    far           how far its kernels are from microbenchmarks, in tenths, at most 3

The spread of a step is log-linear in them, and sizes of residuals are thought to be exponentially
distributed around it (a Laplace distribution of residuals):

    spread = exp(base + sum of slope x trait)
    minimise sum over steps of log(spread) + size / spread, + PULL x sum of slope^2

which is convex. Large sizes are cut, because a spread is about most steps.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.prediction import Prediction

__all__ = ["BASE", "TRAITS", "kinds_of", "spread_of", "spreads_of", "traits_at", "traits_of"]

TRAITS = ("waiting", "unloaded", "convolution", "recurrence", "far")
BASE = "base"
_KINDS = {"conv": "convolution", "rnn": "recurrence"}
FULL = 0.97
"""Share of its power limit that a fully loaded GPU draws."""
PULL = 0.5
"""How much slopes are pulled towards 0: what a few steps say is not believed."""
CUT = 3.0
"""Sizes beyond so many medians (and a tenth) count as that."""
FAR_UNIT, FARTHEST = 0.1, 3.0
EXACT = 1e-6
"""No step is thought to be predicted better than this."""
ROUNDS = 50

Array = NDArray[np.float64]


def traits_of(prediction: Prediction, limit_w: float) -> dict[str, float]:
    """What is known of a step; of what a model does not tell, 0."""
    gpu_s = prediction.step_s if prediction.gpu_s is None else prediction.gpu_s
    found = traits_at(
        np.float64(prediction.power_w / limit_w),
        np.float64(gpu_s / prediction.step_s),
        kinds_of(prediction),
    )
    return {name: float(value) for name, value in found.items()}


def kinds_of(prediction: Prediction) -> dict[str, float]:
    """Traits of the GPU's work itself, wherever it runs: shares of its time, and `far`."""
    busy = {name: s for name, s in prediction.terms_s.items() if "." in name and s > 0}
    total = sum(busy.values())
    shares = {"far": min((prediction.far or 0.0) / FAR_UNIT, FARTHEST)}
    for kind, trait in _KINDS.items():
        own = sum(seconds for name, seconds in busy.items() if name.endswith(f".{kind}"))
        shares[trait] = own / total if total else 0.0
    return shares


def traits_at(
    drawn: Array | np.float64, busy: Array | np.float64, kinds: Mapping[str, float]
) -> dict[str, Array | np.float64]:
    """Traits of one workload's step, or of many: on every placement its own.

    Args:
        drawn: power over the limit.
        busy: GPU time over the step's.
        kinds: of `kinds_of`.
    """
    busy = np.minimum(busy, 1.0)
    found: dict[str, Array | np.float64] = {
        "waiting": 1 - busy,
        "unloaded": 1 - np.minimum(drawn / FULL, 1.0),
    }
    return found | {name: share * busy for name, share in kinds.items()}


def spreads_of(traits: Sequence[Mapping[str, float]], sizes: Sequence[float]) -> dict[str, float]:
    """Base and slopes, from steps' traits and sizes of their residuals."""
    values = np.maximum(np.asarray(sizes, dtype=np.float64), EXACT)
    values = np.minimum(values, CUT * np.median(values) + 0.1)
    mean = float(values.mean())
    columns = np.array([[1.0, *(step.get(name, 0.0) for name in TRAITS)] for step in traits])
    found = _minimum(columns, values / mean)
    return {
        BASE: float(found[0] + np.log(mean)),
        **dict(zip(TRAITS, found[1:].tolist(), strict=True)),
    }


def spread_of(
    spreads: Mapping[str, float], traits: Mapping[str, float | Array | np.float64]
) -> Array | np.float64:
    """Spread of one step, or of many."""
    told = sum(spreads.get(name, 0.0) * value for name, value in traits.items())
    return np.exp(spreads[BASE] + told)


def _minimum(columns: Array, sizes: Array) -> Array:
    """Newton's steps, halved while they do not lead down."""
    pull = 2 * PULL * np.diag([0.0, *[1.0] * (columns.shape[1] - 1)])

    def loss(at: Array) -> float:
        logs = columns @ at
        return float((logs + sizes * np.exp(-logs)).sum() + at @ pull @ at / 2)

    found = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        over = sizes * np.exp(-(columns @ found))
        slope = columns.T @ (1 - over) + pull @ found
        bend = columns.T @ (over[:, None] * columns) + pull + 1e-9 * np.eye(len(found))
        step = np.linalg.solve(bend, slope)
        while not loss(found - step) <= loss(found) and np.abs(step).max() > 1e-9:
            step /= 2
        found = found - step
        if np.abs(step).max() < 1e-7:
            break
    return found
