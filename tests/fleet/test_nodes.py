"""Promises of the book of nodes: clocks are measured through slow requests, restarts forgotten."""

import pytest

from wattloop.fleet import nodes
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.fleet.nodes import NodeTable


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time it is; a test moves it."""
    found = [1_000_000.0]
    monkeypatch.setattr(nodes.time, "time", lambda: found[0])
    return found


def test_a_slow_request_does_not_make_a_clock_late(now: list[float]) -> None:
    """Of several polls the fastest counts."""
    nodes = NodeTable()
    for delay_s in (0.9, 0.02, 0.5):
        offset_s = nodes.record("n1", now[0] + 120.0 - delay_s)
    assert offset_s == pytest.approx(119.98)


def test_a_clock_that_was_set_is_measured_anew(now: list[float]) -> None:
    """Forward at once; back when it is found so twice, which no slow request explains."""
    nodes = NodeTable()
    nodes.record("n1", now[0])
    assert nodes.record("n1", now[0] + 60.0) == pytest.approx(60.0)
    assert nodes.record("n1", now[0]) == pytest.approx(60.0)
    assert nodes.record("n1", now[0]) == pytest.approx(0.0)


def test_the_age_of_power_is_by_the_servers_clock(now: list[float]) -> None:
    """A node whose clock is an hour ahead is not from the future, nor for ever fresh."""
    nodes = NodeTable()
    said = NodeStatus(power_w={"gpu:0": 100.0}, read_wall_s=now[0] + 3_600.0)
    nodes.record("n1", now[0] + 3_600.0, said)
    now[0] += 4.0
    assert nodes.now()[0].age_s == pytest.approx(4.0)
    now[0] += 10.0
    assert nodes.now()[0].is_stale


def test_a_server_that_starts_knows_whom_to_miss(now: list[float]) -> None:
    """Stored nodes are known, and silent until their next report."""
    nodes = NodeTable()
    nodes.record("n1", now[0] + 5.0, NodeStatus(power_w={"gpu:0": 100.0}, jobs=("7",)))
    nodes.record_refusal("n1", "a run of another node")
    kept = nodes.changed()
    assert nodes.changed() == {}
    now[0] += 60.0
    later = NodeTable()
    later.load(kept)
    found = later.now()[0]
    assert (found.power_w, found.is_stale, found.status.jobs) == (100.0, True, ("7",))
    assert (found.clock_offset_s, found.refusal) == (pytest.approx(5.0), "a run of another node")
