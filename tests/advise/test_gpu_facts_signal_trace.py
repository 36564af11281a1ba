"""Promises of a signal over time."""

import math

import pytest

from wattloop.advise.gpu_facts import SignalTrace, TraceInterval


def test_gaps_and_times_that_went_back_are_left_out() -> None:
    """Promise: NaN is not a reading, and a clock that went backwards does not reverse the order."""
    trace = SignalTrace.of([10.0, 11.0, 10.5, 12.0, 13.0], [1.0, math.nan, 5.0, 2.0, 3.0], 10.0)
    assert trace == SignalTrace((0.0, 0.5, 2.0, 3.0), (1.0, 5.0, 2.0, 3.0))


def test_means_are_weighted_with_time() -> None:
    """Promise: readings at shorter intervals do not weigh more."""
    assert SignalTrace((0.0, 1.0, 2.0, 10.0), (0.0, 0.0, 0.0, 10.0)).mean() == pytest.approx(4.0)
    assert SignalTrace((), ()).mean() is None
    assert SignalTrace((3.0,), (7.0,)).mean() == 7.0


def test_intervals_end_where_the_next_reading_does_not_hold() -> None:
    """Promise: intervals and their gaps cover the time, and the last one reaches the end."""
    trace = SignalTrace((0.0, 1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 1.0, 0.0, 0.0))
    idle = trace.where(lambda value: value == 0.0, 6.0)
    assert idle == [TraceInterval(0.0, 2.0), TraceInterval(3.0, 6.0)]
    assert trace.within(TraceInterval(1.0, 2.0)) == SignalTrace((1.0, 2.0), (0.0, 1.0))
