"""Which cap to take, given what is believed of the curve."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattloop.characterize.cap_belief import Belief
from wattloop.characterize.cap_prior import Array

__all__ = ["Choice", "Interval", "choose", "regrets"]

CLOSE = 0.02
FLAT = 0.07
FLAT_CERTAINTY = 0.75
"""The curve is flat when with this certainty no cap changes power by more than FLAT."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the bounds between which it lies in nine of ten cases."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True, slots=True)
class Choice:
    """The cap that was found.

    Attributes:
        energy_gain_pct, time_loss_pct: against the highest cap, of all devices under the cap.
        metric_gain_pct: how much smaller the metric is.
        expected_regret_pct: how much worse than the best cap it is expected to be.
        certainty: probability that it is within 2% of the best cap.
        flat: whether no cap changes anything; then the lowest is taken.
        probes: how many were told.
        why: why no more were asked for; empty while more would help.
        unfinished: whether the work ended while more were asked for; then it is the best so far.
    """

    cap_w: float
    energy_gain_pct: Interval
    time_loss_pct: Interval
    metric_gain_pct: Interval
    expected_regret_pct: float
    certainty: float
    flat: bool
    probes: int
    why: str = ""
    unfinished: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def choose(
    belief: Belief, caps_w: Sequence[float], metric: str, k: float, probes: int, why: str
) -> Choice:
    """The cap with the smallest expected loss; the lowest where the curve is flat."""
    table = regrets(belief.sampled_time, belief.sampled_power, metric, k)
    change = belief.log_power - belief.log_power[:, -1:]
    # At or above the highest cap a constant power only says that the card takes caps lightly.
    below = belief.log_power[:, -1] < np.log(caps_w[-1])
    flat = float(((np.abs(change).max(axis=1) < FLAT) & below).mean()) > FLAT_CERTAINTY
    index = 0 if flat else int(np.argmin(table.mean(axis=0)))
    time = belief.sampled_time[:, index] - belief.sampled_time[:, -1]
    energy = time + belief.sampled_power[:, index] - belief.sampled_power[:, -1]
    metrics = log_metric(belief.sampled_time, belief.sampled_power, metric, k)
    own = metrics[:, index] - metrics[:, -1]
    return Choice(
        cap_w=caps_w[index],
        energy_gain_pct=_interval(-100 * np.expm1(energy)),
        time_loss_pct=_interval(100 * np.expm1(time)),
        metric_gain_pct=_interval(-100 * np.expm1(own)),
        expected_regret_pct=100 * float(table[:, index].mean()),
        certainty=float((table[:, index] <= CLOSE).mean()),
        flat=flat,
        probes=probes,
        why=why,
    )


def log_metric(log_time: Array, log_power: Array, metric: str, k: float) -> Array:
    """Logarithm of the metric per curve (rows) and cap; the last cap is the reference."""
    energy = log_time + log_power
    powers = {"energy": 0.0, "edp": 1.0, "ed2p": 2.0}
    if metric in powers:
        return energy + powers[metric] * log_time
    # Gain minus loss is 2 (1 - EDS(2)), so both have the same best cap.
    alpha = (k - 1) / k if metric == "eds" else 0.5
    relative_energy = np.exp(energy - energy[:, -1:])
    relative_time = np.exp(log_time - log_time[:, -1:])
    summed: Array = np.log(alpha * relative_energy + (1 - alpha) * relative_time)
    return summed


def regrets(log_time: Array, log_power: Array, metric: str, k: float) -> Array:
    """How much worse than its own best each curve is at each cap: 0.02 is 2%."""
    values = log_metric(log_time, log_power, metric, k)
    worse: Array = np.expm1(values - values.min(axis=1, keepdims=True))
    return worse


def _interval(values: Array) -> Interval:
    low, high = np.quantile(values, (0.05, 0.95))
    return Interval(float(values.mean()), float(low), float(high))
