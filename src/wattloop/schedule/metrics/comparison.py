"""Paired comparison of two policies: difference, confidence interval and p-value."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.intervals import Estimate, estimate

LEAST_PAIRS = 6
"""Fewest pairs for a p-value: with n pairs p is at least 2 / 2^n, above 0.05 for n = 5."""
EXACT_UP_TO = 14
DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference B - A over paired seeds.

    Attributes:
        mean, half_width: mean difference and its 95% t-interval; None for a single pair.
        relative, relative_half_width: the same as shares of the mean of A.
        p_value: two-sided sign-flip permutation test; None for less than `LEAST_PAIRS`.
        pairs: number of common seeds.
    """

    mean: float
    half_width: float | None
    relative: float | None
    relative_half_width: float | None
    p_value: float | None
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float | None]) -> Estimate | None:
    """Compute mean and standard deviation over seeds; seeds without a value are left out."""
    return estimate([value for value in values if value is not None])


def compare(a: Sequence[float | None], b: Sequence[float | None]) -> Difference | None:
    """Compare B with A by seed; None when they have no common seed."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        return None
    differences = np.array([y - x for x, y in pairs])
    found = estimate(differences.tolist())
    base = float(np.mean([x for x, _ in pairs]))
    assert found is not None
    half = found.half_width
    return Difference(
        mean=found.mean,
        half_width=half,
        relative=found.mean / base if base else None,
        relative_half_width=None if half is None or not base else abs(half / base),
        p_value=_p_value(differences) if len(pairs) >= LEAST_PAIRS else None,
        pairs=len(pairs),
    )


def _p_value(differences: NDArray[np.float64]) -> float:
    """Return the share of random sign flips with a mean difference at least as large.

    Uses all sign patterns if there are few enough, else a fixed sample of them.
    """
    n = len(differences)
    if n <= EXACT_UP_TO:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        signs = 1.0 - 2.0 * bits
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, n))
        signs[0] = 1.0  # include the observed pattern
    sums = np.abs(signs @ differences)
    seen = abs(float(differences.sum()))
    return float(np.mean(sums >= seen * (1 - 1e-12)))
