"""Promises of the comparison: noise is not a regression, and a regression is not noise."""

import random
import re

import pytest

from wattloop.check.figures import FigureKind, FigureSeries
from wattloop.check.verdict import EnergyVerdict, against_limit, judge, mean_and_noise


def series(*values: float, uncertainty: float = 0.0) -> FigureSeries:
    return FigureSeries(FigureKind.ENERGY, values, uncertainty)


def test_a_difference_within_the_tolerance_passes() -> None:
    """Promise: a certain increase of 3% passes with a tolerance of 5%."""
    found = judge(series(100, 100.1, 99.9), series(103, 103.1, 102.9), 0.05)
    assert found.verdict is EnergyVerdict.SAME
    assert found.change == pytest.approx(0.03)
    assert judge(series(100, 100.1, 99.9), series(103, 103.1, 102.9), 0.02).verdict is (
        EnergyVerdict.REGRESSION
    )


def test_a_difference_within_the_noise_is_unclear() -> None:
    """Promise: an increase of 10% with a scatter of 45% is neither the same nor a loss."""
    found = judge(series(80, 100, 120), series(90, 110, 130), 0.05)
    assert found.verdict is EnergyVerdict.UNCLEAR
    assert "cannot tell whether 5% more is used" in found.notes[0]


def test_equal_means_in_wide_noise_are_not_the_same() -> None:
    """Promise: at ±57% of noise no verdict is 'same', and the required number of repeats is
    named.
    """
    found = judge(series(77, 100, 123), series(77, 100, 123), 0.05)
    assert found.noise is not None
    assert 0.4 < found.noise < 0.7
    assert found.verdict is EnergyVerdict.UNCLEAR
    repeats = int(re.search(r"about (\d+) repeats", found.notes[0])[1])  # type: ignore[index]
    rng = random.Random(5)

    def drawn(count: int) -> FigureSeries:
        return series(*(rng.gauss(100, 23) for _ in range(count)))

    rounds = 200
    told = [judge(drawn(repeats), drawn(repeats), 0.05).noise or 1.0 for _ in range(rounds)]
    assert sum(told) / rounds == pytest.approx(0.05, rel=0.1)


def test_noise_beyond_repeats_is_reported() -> None:
    """Promise: the message does not ask for repeats that would take a year."""
    found = judge(series(1.0, 199.0), series(1.0, 199.0), 0.05)
    assert found.verdict is EnergyVerdict.UNCLEAR
    assert "a longer command or a quieter machine" in found.notes[0]


def test_less_is_an_improvement() -> None:
    """Promise: a clear decrease is called an improvement."""
    assert judge(series(100, 101, 99), series(80, 81, 79), 0.05).verdict is EnergyVerdict.IMPROVED


def test_one_new_reading_is_judged_by_the_scatter_of_the_baseline() -> None:
    """Promise: a single repeat is judged with the scatter of the baseline."""
    before = series(95, 100, 105, 98, 102)
    assert judge(before, series(107), 0.05).verdict is EnergyVerdict.UNCLEAR
    assert judge(before, series(130), 0.05).verdict is EnergyVerdict.REGRESSION


def test_one_of_each_reports_unknown_noise() -> None:
    """Promise: unmeasured noise is not reported as 0; sensor error counts all the same."""
    found = judge(series(100), series(110), 0.05)
    assert found.noise is None
    assert "not known" in found.notes[0]
    assert judge(series(100, uncertainty=8), series(110, uncertainty=8), 0.05).verdict is (
        EnergyVerdict.UNCLEAR
    )


def test_an_outlier_does_not_decide() -> None:
    """Promise: a repeat disturbed by another program is left out, and the report says so."""
    found = judge(series(100, 101, 99, 100, 101), series(100, 101, 99, 100, 300), 0.05)
    assert found.verdict is EnergyVerdict.SAME
    assert found.now == pytest.approx(100)
    assert "1 outlying" in found.notes[0]


def test_false_alarms_and_misses_stay_rare() -> None:
    """Promise: of 5 repeats with 3% noise, < 2% false alarms, and an increase of 20% is found in
    > 98%.
    """
    rng = random.Random(7)

    def drawn(mean: float) -> FigureSeries:
        return series(*(rng.gauss(mean, 0.03 * mean) for _ in range(5)))

    rounds = 600
    alarms = sum(
        judge(drawn(100), drawn(100), 0.05).verdict is EnergyVerdict.REGRESSION
        for _ in range(rounds)
    )
    seen = sum(
        judge(drawn(100), drawn(120), 0.05).verdict is EnergyVerdict.REGRESSION
        for _ in range(rounds)
    )
    assert alarms < 0.02 * rounds
    assert seen > 0.98 * rounds


def test_a_baseline_of_nothing_has_no_share() -> None:
    """Promise: a baseline of zero causes no division by zero."""
    found = judge(series(0, 0), series(1, 1), 0.05)
    assert found.change is None
    assert found.verdict is EnergyVerdict.REGRESSION


def test_a_limit_is_broken_beyond_noise() -> None:
    """Promise: above the limit fails; above but within its noise passes with a note."""
    assert against_limit(series(12.5), 12) == (False, "")
    assert against_limit(series(11.5), 12) == (True, "")
    holds, said = against_limit(series(12.5, uncertainty=1.0), 12)
    assert holds
    assert "noise" in said
    assert mean_and_noise(series(12.5, uncertainty=1.0)) == (12.5, 1.0)
