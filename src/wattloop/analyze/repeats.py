"""Means of few repeats with confidence intervals, and outliers.

    half-width = t(0.975, n - 1) s / sqrt(n)

Outliers by the modified z-score of Iglewicz and Hoaglin (1993): |x - median| / (1.4826 MAD) above
3.5. They are marked and left out of means, never deleted.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

OUTLIER_SCORE = 3.5
MAD_TO_SD = 1.4826
OUTLIERS_FROM = 5
"""With fewer values the median of their distances says nothing."""
SMALLEST_SPREAD = 0.002
"""Repeats that agree better than this share of their median are not told apart."""
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_975 = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `n` repeats.

    `sd` and `half_width` (of the 95% t-interval of the mean) are None for a single one: nothing is
    known of its spread.
    """

    mean: float
    sd: float | None
    half_width: float | None
    n: int

    @property
    def relative(self) -> float | None:
        """Half-width as a fraction of the mean."""
        if self.half_width is None or not self.mean:
            return None
        return abs(self.half_width / self.mean)

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def estimate(values: Sequence[float]) -> Estimate | None:
    n = len(values)
    if n == 0:
        return None
    mean = statistics.fmean(values)
    if n == 1:
        return Estimate(mean, None, None, 1)
    sd = statistics.stdev(values)
    return Estimate(mean, sd, t_975(n - 1) * sd / math.sqrt(n), n)


def t_975(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t."""
    if freedom < 1:
        raise ValueError("a t-interval needs two values")
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    # Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5); 1e-4 is all we print
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def is_outlier(values: Sequence[float]) -> list[bool]:
    if len(values) < OUTLIERS_FROM:
        return [False] * len(values)
    middle = statistics.median(values)
    mad = statistics.median(abs(v - middle) for v in values)
    spread = max(MAD_TO_SD * mad, SMALLEST_SPREAD * abs(middle))
    return [spread > 0 and abs(v - middle) > OUTLIER_SCORE * spread for v in values]
