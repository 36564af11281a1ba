"""Promises of node failures: in order, repeatable, within the horizon, no node fails twice at
once.
"""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.schedule.cluster.cluster import Failures, NodeEvent, Outage

HOURS = st.floats(0, 100, allow_nan=False)


def test_listed_outages_are_events_of_their_nodes() -> None:
    """Down at the beginning, up at the end, by time."""
    failures = Failures((Outage(50, 80, 1), Outage(10, 60, 0)))
    assert failures.events(2, math.inf, seed=0) == (
        NodeEvent(10, 0, is_up=False),
        NodeEvent(50, 1, is_up=False),
        NodeEvent(60, 0, is_up=True),
        NodeEvent(80, 1, is_up=True),
    )


def test_what_comes_after_the_horizon_does_not_happen() -> None:
    """A node may stay down at the end."""
    failures = Failures((Outage(10, 60, 0), Outage(90, 95, 0)))
    assert failures.events(1, 50.0, seed=0) == (NodeEvent(10, 0, is_up=False),)


def test_outages_that_overlap_are_one() -> None:
    """A node that is down cannot fail."""
    failures = Failures((Outage(10, 60, 0), Outage(40, 70, 0), Outage(70, 80, 0)))
    assert [event.time_s for event in failures.events(1, math.inf, seed=0)] == [10, 80]


def test_a_repair_comes_before_a_failure_at_the_same_time() -> None:
    """As many nodes as possible are up."""
    failures = Failures((Outage(10, 20, 1), Outage(20, 30, 0)))
    assert [event.node for event in failures.events(2, 25.0, seed=0)] == [1, 1, 0]


@given(
    st.lists(st.tuples(HOURS, HOURS, st.integers(0, 3)), max_size=8),
    st.floats(0.5, 50),
    st.floats(0.01, 20),
    st.floats(1, 200),
    st.integers(0, 2**32),
)
def test_events_are_sorted_alternate_per_node_and_end_with_the_horizon(
    listed: list[tuple[float, float, int]], mtbf: float, mttr: float, horizon: float, seed: int
) -> None:
    """This holds for listed and random ones, and the same seed gives the same events."""
    outages = tuple(Outage(begin, begin + length, node) for begin, length, node in listed)
    failures = Failures(outages, mtbf, mttr)
    events = failures.events(4, horizon, seed)
    assert events == failures.events(4, horizon, seed)
    assert all(first.time_s <= second.time_s for first, second in pairwise(events))
    assert all(event.time_s < horizon for event in events)
    for node in range(4):
        mine = [event for event in events if event.node == node]
        assert [event.is_up for event in mine] == [bool(i % 2) for i in range(len(mine))]


def test_mean_times_are_those_asked_for() -> None:
    """Exponential: the mean of many is the mean given, within five standard errors."""
    events = Failures(mtbf_s=1_000.0, mttr_s=500.0).events(50, 150_000.0, seed=3)
    up_s, down_s, last = [], [], dict.fromkeys(range(50), 0.0)
    for event in events:
        (down_s if event.is_up else up_s).append(event.time_s - last[event.node])
        last[event.node] = event.time_s
    for times_s, mean_s in ((up_s, 1_000), (down_s, 500)):
        assert len(times_s) > 4_000
        assert sum(times_s) / len(times_s) == pytest.approx(mean_s, rel=5 / len(times_s) ** 0.5)


def test_seeds_and_nodes_differ_and_more_nodes_change_nothing() -> None:
    """A larger cluster or a longer horizon has the same failures and more."""
    failures = Failures(mtbf_s=100.0, mttr_s=10.0)
    small = failures.events(2, 1_000.0, seed=1)
    large = failures.events(5, 2_000.0, seed=1)
    assert small == tuple(e for e in large if e.node < 2 and e.time_s < 1_000)
    assert small != failures.events(2, 1_000.0, seed=2)
    assert {event.time_s for event in small if event.node}.isdisjoint(
        event.time_s for event in small if not event.node
    )


def test_failures_without_end_are_refused() -> None:
    """The error says what to give; until_s is enough."""
    failures = Failures(mtbf_s=100.0, mttr_s=10.0)
    with pytest.raises(ValueError, match=r"give a horizon, or failures\.until"):
        failures.events(1, math.inf, seed=0)
    bounded = Failures(mtbf_s=100.0, mttr_s=10.0, until_s=1_000.0).events(1, math.inf, seed=0)
    assert len(bounded) % 2 == 0  # all failed nodes are repaired
    assert max(event.time_s for event in bounded if not event.is_up) < 1_000
