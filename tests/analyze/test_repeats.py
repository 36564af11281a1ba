"""Promises of `intervals`: textbook numbers, and marked outliers."""

import random
import statistics

import pytest

from wattloop.analyze.repeats import estimate, is_outlier, t_975


def test_quantiles_are_those_of_the_tables() -> None:
    """Student's t at 97.5%: small samples from a table, large ones by the expansion."""
    for freedom, value in ((1, 12.706), (2, 4.303), (9, 2.262), (30, 2.042)):
        assert t_975(freedom) == value
    for freedom, value in ((31, 2.0395), (60, 2.0003), (120, 1.9799), (10_000, 1.9602)):
        assert t_975(freedom) == pytest.approx(value, abs=2e-4)
    with pytest.raises(ValueError, match="two values"):
        t_975(0)


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """95% of intervals of five repeats contain the true mean."""
    rng = random.Random(3)
    hits = 0
    for _ in range(2_000):
        found = estimate([rng.gauss(100, 5) for _ in range(5)])
        assert found is not None
        assert found.half_width is not None
        hits += abs(found.mean - 100) <= found.half_width
    assert hits / 2_000 == pytest.approx(0.95, abs=0.015)


def test_a_single_value_has_no_spread_and_none_no_mean() -> None:
    """An unknown value is not zero."""
    single = estimate([3.0])
    assert single is not None
    assert (single.mean, single.sd, single.half_width, single.relative) == (3.0, None, None, None)
    assert estimate([]) is None


def test_half_width_is_that_of_the_t_interval() -> None:
    """t s / sqrt(n)."""
    found = estimate([1.0, 2.0, 3.0])
    assert found is not None
    assert found.sd == statistics.stdev([1, 2, 3])
    assert found.half_width == pytest.approx(4.303 / 3**0.5)
    assert found.relative == pytest.approx(4.303 / 3**0.5 / 2)


def test_the_value_that_does_not_belong_is_marked() -> None:
    """Far from the others by their own spread; equal values do not make their neighbours
    outliers.
    """
    assert is_outlier([10.0, 10.1, 9.9, 10.0, 15.0]) == [False] * 4 + [True]
    assert is_outlier([10.0, 10.0, 10.0, 10.0, 10.01]) == [False] * 5
    assert is_outlier([10.0, 10.0, 10.0, 10.0, 11.0]) == [False] * 4 + [True]


def test_few_values_have_no_outliers() -> None:
    """Four values do not show which one is the outlier."""
    assert is_outlier([1.0, 1.0, 1.0, 99.0]) == [False] * 4
