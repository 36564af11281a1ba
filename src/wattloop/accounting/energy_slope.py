"""Least-squares fit of a line, and the slope of energy over runtime per device."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wattloop.core.results import Missing

MIN_POINTS = 3
"""Two points fix a line and leave nothing to judge it by."""
STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom."""
NORMAL_95 = 1.96


class Line(NamedTuple):
    """Fitted line y = intercept + slope x, and its quality.

    `rmse` divides the squared residuals by the number of points, as the thesis does; the
    uncertainty divides by the degrees of freedom (points - 2).
    """

    intercept: float
    slope: float
    r2: float
    rmse: float
    points: int
    mean_x: float
    sum_squares_x: float

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def half_width(self, x: float) -> float:
        """Half-width of the 95% prediction interval for one new observation at `x`."""
        freedom = self.points - 2
        scatter = self.rmse * math.sqrt(self.points / freedom)
        spread = 1 + 1 / self.points + (x - self.mean_x) ** 2 / self.sum_squares_x
        quantile = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95
        return quantile * scatter * math.sqrt(spread)


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Ordinary least squares.

    Raises:
        ValueError: fewer than three points, points that are not finite, or all at one x.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} abscissas but {len(y)} ordinates")
    points = len(x)
    if points < MIN_POINTS:
        raise ValueError(f"a line needs at least {MIN_POINTS} points, there are {points}")
    if not all(map(math.isfinite, (*x, *y))):
        raise ValueError("a point is not finite")
    mean_x, mean_y = sum(x) / points, sum(y) / points
    sum_squares_x = sum((xi - mean_x) ** 2 for xi in x)
    if sum_squares_x <= (1e-9 * mean_x) ** 2:
        raise ValueError("all points have the same abscissa")
    slope = sum((xi - mean_x) * (yi - mean_y) for xi, yi in zip(x, y, strict=True)) / sum_squares_x
    intercept = mean_y - slope * mean_x
    residual = sum((yi - intercept - slope * xi) ** 2 for xi, yi in zip(x, y, strict=True))
    total = sum((yi - mean_y) ** 2 for yi in y)
    return Line(
        intercept=intercept,
        slope=slope,
        r2=1 - residual / total if total > 0 else 1.0,
        rmse=math.sqrt(residual / points),
        points=points,
        mean_x=mean_x,
        sum_squares_x=sum_squares_x,
    )


# Energy over runtime, per device, over several runs (document "EnergyScopium", energy-runtime).
#
# Runs of one device lie on a line whose slope, in joules per second, belongs to the device.


class Slope(NamedTuple):
    """Joules per additional second of runtime on one device."""

    device: str
    slope_w: float
    intercept_j: float
    r2: float
    runs: int


def slopes(
    runs: Mapping[str, Sequence[tuple[float, float]]],
) -> tuple[tuple[Slope, ...], tuple[Missing, ...]]:
    """Fit a slope for each device from its (runtime in s, energy in J) pairs.

    Devices whose runs make no line (fewer than three, or all equally long) come back as missing,
    and those whose longer runs used less: the same work under several power caps, say.
    """
    found, missing = [], []
    for device, pairs in runs.items():
        try:
            line = fit_line([t for t, _ in pairs], [e for _, e in pairs])
        except ValueError as problem:
            remedy = "measure more runs of other lengths"
            missing.append(Missing(device, f"no slope: {problem}", remedy))
            continue
        if line.slope <= 0:
            reason = "no slope: longer runs used no more, so they are not of one setting"
            missing.append(Missing(device, reason, "look at runs of one setting only"))
            continue
        found.append(Slope(device, line.slope, line.intercept, line.r2, line.points))
    return tuple(found), tuple(missing)
