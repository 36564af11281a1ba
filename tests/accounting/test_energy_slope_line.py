import random

import pytest

from wattloop.accounting.energy_slope import Line, fit_line

SLEEP_S = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("energy_j", "alpha", "beta", "rmse", "alpha_tolerance"),
    [
        ([52.22, 98.22, 198.71, 392.56, 775.74, 1524.49, 3078.67], 4.44, 47.95, 6.36, 0.005),
        ([9.97, 19.38, 38.55, 76.78, 150.53, 301.36, 603.49], 0.63, 9.41, 0.49, 0.005),
        # The thesis prints 1.88 and 8.65 for AMD; its own table 3.13 gives 1.82 and 8.57.
        ([57.74, 111.22, 221.89, 444.98, 904.45, 1817.08, 3585.92], 1.88, 56.14, 8.65, 0.07),
    ],
)
def test_table_3_13_gives_the_lines_of_equation_3_3(energy_j, alpha, beta, rmse, alpha_tolerance):
    """The thesis's idle measurements give the thesis's coefficients, RMSE and R2."""
    line = fit_line(SLEEP_S, energy_j)
    assert line.intercept == pytest.approx(alpha, abs=alpha_tolerance)
    assert line.slope == pytest.approx(beta, abs=0.006)
    assert line.rmse == pytest.approx(rmse, abs=0.09)
    assert line.r2 > 0.9999 - 5e-5
    assert line.points == 7


def test_prediction_interval_covers_new_observations():
    """About 95% of new points, inside and beyond the fitted range, lie within the half-width."""
    random.seed(7)
    inside = 0
    for _ in range(2_000):
        line = fit_line(SLEEP_S, [3 + 50 * t + random.gauss(0, 5) for t in SLEEP_S])
        t = random.choice([3.0, 20.0, 200.0])
        inside += abs(3 + 50 * t + random.gauss(0, 5) - line.at(t)) <= line.half_width(t)
    assert 0.93 <= inside / 2_000 <= 0.97


def test_uncertainty_grows_where_the_line_is_extrapolated():
    """A line fitted to a minute of idling is less certain for a day."""
    line = Line(4, 48, 1.0, 6, 7, 18, 3_000)
    assert line.half_width(86_400) > 100 * line.half_width(60)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([1, 2], [1, 2], "at least 3"),
        ([], [], "at least 3"),
        ([2, 2, 2], [1, 2, 3], "same abscissa"),
        ([1, 2, 3], [1, float("nan"), 3], "not finite"),
        ([1, 2, 3], [1, 2], "3 abscissas but 2"),
    ],
)
def test_points_that_make_no_line_are_refused(x, y, says):
    """Too few points give an error instead of a line."""
    with pytest.raises(ValueError, match=says):
        fit_line(x, y)


def test_a_constant_is_a_perfect_line():
    """R2 is defined where no value varies (a domain that reads the same joules each time)."""
    assert fit_line([1, 2, 3], [5, 5, 5]).r2 == 1.0
