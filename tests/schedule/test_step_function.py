"""Promises of step functions: the value of a time, the next change, the least in between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.schedule.step_function import DAY_S, StepFunction

NIGHT = StepFunction((0.0, 6 * 3_600.0, 18 * 3_600.0), (9.0, 4.0, 7.0), DAY_S)
TIMES = st.floats(0, 1e7, allow_nan=False)


@st.composite
def any_steps(draw: st.DrawFn) -> StepFunction:
    """Generate steps with and without a period."""
    gaps = draw(st.lists(st.floats(1e-3, 1e5), max_size=6))
    times_s = [0.0]
    for gap_s in gaps:
        times_s.append(times_s[-1] + gap_s)
    values = draw(st.lists(st.floats(0, 1e6), min_size=len(times_s), max_size=len(times_s)))
    period_s = draw(
        st.one_of(st.just(math.inf), st.floats(1e-3, 1e5).map(lambda s: s + times_s[-1]))
    )
    return StepFunction(tuple(times_s), tuple(values), period_s)


def test_a_day_repeats() -> None:
    """At a change, the new value; after a day, the same again."""
    hours = (0, 5.9, 6, 17.9, 18, 23.9, 24, 30, 42.5)
    assert [NIGHT.at(hour * 3_600) for hour in hours] == [9, 9, 4, 4, 7, 7, 9, 4, 7]
    assert [NIGHT.next_change_s(hour * 3_600) / 3_600 for hour in hours] == [
        *(6, 6, 18, 18, 24, 24, 30, 42, 48)
    ]


def test_without_a_period_the_last_value_stays() -> None:
    """For ever."""
    steps = StepFunction((0.0, 10.0), (1.0, 2.0))
    assert [steps.at(t) for t in (0, 9.99, 10, 1e9)] == [1, 1, 2, 2]
    assert steps.next_change_s(10) == math.inf


def test_the_least_of_an_interval_includes_both_ends() -> None:
    """It is the limit for a job of that length; endless intervals work, too."""
    assert NIGHT.least(0, 5 * 3_600) == 9
    assert NIGHT.least(0, 6 * 3_600) == 4
    assert NIGHT.least(19 * 3_600, 29 * 3_600) == 7
    assert NIGHT.least(19 * 3_600, math.inf) == 4
    assert StepFunction((0.0, 10.0), (1.0, 0.5)).least(0, math.inf) == 0.5


@given(any_steps(), TIMES)
def test_the_value_stays_until_the_next_change(steps: StepFunction, time_s: float) -> None:
    """The next change is later, and the value is constant until then."""
    change_s = steps.next_change_s(time_s)
    assert change_s > time_s
    before_s = min(math.nextafter(change_s, 0), time_s + 1e9)
    assert steps.at(max(before_s, time_s)) == steps.at(time_s)


@pytest.mark.parametrize("period_s", [0.7, 3.05, 11.11, 86_400.1])
def test_up_to_a_change_the_old_value_holds_to_the_last_moment(period_s: float) -> None:
    """Floating-point remainders drift after many periods, but the value does not."""
    steps = StepFunction((0.0, period_s / 3, period_s / 1.7), (1.0, 2.0, 3.0), period_s)
    for turn in range(0, 20_000, 7):
        time_s = turn * period_s
        for value in (1.0, 2.0, 3.0):
            time_s = steps.next_change_s(time_s)
            assert steps.at(math.nextafter(time_s, 0)) == value
            assert steps.at(time_s) == value % 3 + 1


@given(any_steps(), TIMES)
def test_following_changes_visits_the_values_in_order(steps: StepFunction, time_s: float) -> None:
    """Under any rounding, no step is skipped and none is visited twice."""
    for _ in range(10):
        change_s = steps.next_change_s(time_s)
        if math.isinf(change_s):
            break
        place = steps._step(time_s)[1]
        assert steps._step(change_s)[1] == (place + 1) % len(steps.values)
        time_s = change_s


@given(any_steps(), TIMES, st.floats(0, 1e5))
def test_the_least_is_the_least_of_all_times_between(
    steps: StepFunction, begin_s: float, length_s: float
) -> None:
    """A walk over many times finds no lower value."""
    least = steps.least(begin_s, begin_s + length_s)
    seen = [steps.at(begin_s + length_s * part / 50) for part in range(51)]
    assert least <= min(seen)
    assert least in steps.values


@given(any_steps(), st.integers(0, 200_000), st.integers(0, 200_000))
def test_a_later_clock_sees_the_same(steps: StepFunction, by_s: int, time_s: int) -> None:
    """A simulation that starts at 08:00 has the budget of 08:00 first."""
    whole = (
        StepFunction(
            tuple(float(round(t)) for t in steps.times_s), steps.values, _rounded(steps.period_s)
        )
        if _distinct(steps)
        else StepFunction.constant(1.0)
    )
    assert whole.shifted(by_s).at(time_s) == whole.at(by_s + time_s)


def _rounded(period_s: float) -> float:
    return period_s if math.isinf(period_s) else float(round(period_s))


def _distinct(steps: StepFunction) -> bool:
    times_s = [round(t) for t in steps.times_s] + [_rounded(steps.period_s)]
    return times_s == sorted(set(times_s))


@pytest.mark.parametrize(
    ("times_s", "values", "period_s"),
    [
        ((), (), 1.0),
        ((1.0,), (1.0,), 2.0),
        ((0.0, 0.0), (1.0, 2.0), 3.0),
        ((0.0,), (1.0, 2.0), 3.0),
        ((0.0, 5.0), (1.0, 2.0), 5.0),
    ],
)
def test_steps_that_make_no_sense_are_refused(
    times_s: tuple[float, ...], values: tuple[float, ...], period_s: float
) -> None:
    """No first value, times out of order, a period that ends too soon."""
    with pytest.raises(ValueError, match="steps"):
        StepFunction(times_s, values, period_s)


def test_the_mean_is_over_time_not_over_values() -> None:
    """A quarter of the day at 300, the rest at 100; without a period, of the values."""
    assert StepFunction((0.0, 6.0), (300.0, 100.0), 24.0).mean() == 150.0
    assert StepFunction((0.0, 6.0), (300.0, 100.0)).mean() == 200.0


def test_the_longest_time_without_a_break_goes_on_in_the_next_period() -> None:
    """From 60 s of one period to 20 s of the next."""
    steps = StepFunction((0.0, 20.0, 60.0), (5.0, 1.0, 4.0), 100.0)
    assert steps.longest_s(0.0, 4.0) == pytest.approx(60)
    assert steps.longest_s(0.0, 5.0) == pytest.approx(20)
    assert steps.longest_s(30.0, 1.0) == math.inf
    assert steps.longest_s(0.0, 6.0) == 0
    once = StepFunction((0.0, 20.0, 60.0), (5.0, 1.0, 4.0))
    assert once.longest_s(0.0, 4.0) == math.inf
    assert once.longest_s(30.0, 5.0) == 0


def test_falls_are_counted_over_periods() -> None:
    """Down at 20 s and at the end of each period of 100 s."""
    steps = StepFunction((0.0, 20.0, 60.0), (3.0, 1.0, 4.0), 100.0)
    assert steps.falls(0.0, 19.0) == 0
    assert steps.falls(0.0, 20.0) == 1
    assert steps.falls(0.0, 100.0) == 2
    assert steps.falls(50.0, 320.0) == 6
    assert StepFunction.constant(1.0).falls(0.0, 1e9) == 0
