"""What a setting gains over the default, with the interval that its repeats allow."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.analyze.intervals import estimate
from wattloop.analyze.metrics import Point as Cost
from wattloop.analyze.metrics import gain_minus_loss_pct, objective

__all__ = ["COMPARED", "EDP", "ENERGY", "GAIN_MINUS_LOSS", "TIME", "Compared", "Gain", "gain_of"]


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric of `analyze.metrics`, with its parameter."""

    metric: str
    k: float | None = None

    @property
    def name(self) -> str:
        """`edp`, `eds(1.5)`."""
        return self.metric if self.k is None else f"{self.metric}({self.k:g})"

    @property
    def label(self) -> str:
        """For tables."""
        if self.metric == "eds":
            return f"EDS (k={self.k:g})"
        return LABELS[self.metric]


LABELS = {
    "energy": "Energy",
    "time": "Time",
    "power": "Average power",
    "gain_minus_loss": "Energy gain minus time loss",
    "edp": "EDP",
    "ed2p": "ED2P",
}
ENERGY, TIME, EDP = Compared("energy"), Compared("time"), Compared("edp")
GAIN_MINUS_LOSS = Compared("gain_minus_loss")
COMPARED = (
    ENERGY,
    TIME,
    Compared("power"),
    GAIN_MINUS_LOSS,
    EDP,
    Compared("ed2p"),
    Compared("eds", 1.5),
    Compared("eds", 2.0),
)
"""What is reported of every point. EDS(1.5) and EDS(2) as in Koszczal et al."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric's gain over the default.

    Attributes:
        value_pct: per cent by which the metric is smaller; for gain minus loss, their difference.
        half_width_pct: of its 95% interval; None when either was run once only.
        cost: the metric itself, in J, s, W, J s, J s^2 or as a ratio.
    """

    value_pct: float
    half_width_pct: float | None
    cost: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the gain is larger than what repeats differ by."""
        return self.half_width_pct is not None and self.value_pct > self.half_width_pct

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "beyond_noise": self.beyond_noise}


def gain_of(
    costs: Sequence[Cost], reference: Sequence[Cost], compared: Compared, *, same: bool = False
) -> Gain:
    """From all repeats of a point and of the default.

    The metric is taken of the means; its spread from the metric of each repeat, so that energy
    and time of one run, which go together, are not treated as strangers.
    """
    mean, base = _mean(costs), _mean(reference)
    of = objective(compared.metric, base, 2.0 if compared.k is None else compared.k)
    ours = estimate([of(cost) for cost in costs])
    theirs = estimate([of(cost) for cost in reference])
    assert ours is not None and theirs is not None
    if compared.metric == "gain_minus_loss":
        value = gain_minus_loss_pct(mean, base)
        wide = None if same else _together(ours.half_width, theirs.half_width)
        return Gain(value, 0.0 if same else wide, value)
    ratio = of(mean) / of(base)
    wide = _together(ours.relative, theirs.relative)
    half_width = 0.0 if same else None if wide is None else 100 * ratio * wide
    return Gain(100 * (1 - ratio), half_width, of(mean))


def _mean(costs: Sequence[Cost]) -> Cost:
    count = len(costs)
    return Cost(sum(c.time_s for c in costs) / count, sum(c.energy_j for c in costs) / count)


def _together(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else math.hypot(first, second)
