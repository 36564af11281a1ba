"""Promises of merged journals: readings of many processes are those of one watcher."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from wattloop.measure.node_leader import merged_journal
from wattloop.measure.recovery import recorded_feeds
from wattloop.store.journal import Journal, SampleBlock

POWER_W = 100.0


def feed(meter: str = "rapl", wrap_j: float | None = None) -> dict[str, Any]:
    domain = {
        "name": "cpu:0/package",
        "kind": "counter",
        "scope": "cpu",
        "source": meter,
        "provenance": "measured",
        "wrap_j": wrap_j,
    }
    return {"meter": meter, "domains": [domain], "signals": []}


def journal(
    times_s: list[float],
    *,
    meter: str = "rapl",
    zero_s: float = 0.0,
    late_s: float = 0.0,
    wrap_j: float | None = None,
) -> Journal:
    """Write the journal of a process that read 100 W, stamped `late_s` too early, by a counter
    that is 0 at `zero_s`.
    """
    values = [POWER_W * (t - zero_s) % (wrap_j or 1e12) for t in times_s]
    stamps = [t - late_s for t in times_s]
    block = SampleBlock(0, 1, array("d", stamps), array("d", values))
    return Journal(Path("x"), {"feeds": [feed(meter, wrap_j)]}, [block])


def energy_j(merged: Journal, begin_s: float, end_s: float) -> float:
    (only,) = recorded_feeds(merged)
    span = only.between(0, begin_s, end_s)
    assert span is not None
    return span.energy_j


def steps(begin_s: float, end_s: float, every_s: float) -> list[float]:
    return [begin_s + i * every_s for i in range(round((end_s - begin_s) / every_s) + 1)]


@pytest.mark.parametrize("wrap_j", [None, 150.0])
def test_different_timestamps_count_no_joule_twice(wrap_j: float | None) -> None:
    """64 processes whose timestamps are off by up to 60 ms give the energy of one."""
    owner = journal(steps(10.0, 20.0, 0.1), wrap_j=wrap_j)
    others = [
        journal(steps(10.0 + i / 100, 20.0, 1.0), late_s=i / 1000, wrap_j=wrap_j)
        for i in range(1, 64)
    ]
    merged = merged_journal([owner, *others])
    assert energy_j(merged, 10.0, 20.0) == pytest.approx(POWER_W * 10, rel=0.002)
    times_s = merged.blocks[0].times_s
    assert list(times_s) == sorted(times_s)


def test_others_fill_the_time_before_and_after() -> None:
    """The leader began late and was killed; the other ranks have the rest."""
    owner = journal(steps(12.0, 15.0, 0.1))
    early = journal(steps(10.0, 14.0, 1.0))
    heir = journal(steps(11.0, 20.0, 0.5), late_s=0.03)
    merged = merged_journal([owner, early, heir])
    assert energy_j(merged, 10.0, 20.0) == pytest.approx(POWER_W * 10, rel=0.01)


def test_counters_with_different_zeros_are_joined() -> None:
    """perf events count from the moment a process opened them: no joule is lost or invented."""
    owner = journal(steps(10.0, 15.0, 0.1), meter="perf", zero_s=10.0)
    heir = journal(steps(10.4, 20.0, 0.5), meter="perf", zero_s=10.4)
    merged = merged_journal([owner, heir])
    assert energy_j(merged, 10.0, 20.0) == pytest.approx(POWER_W * 10, rel=0.01)


def test_meters_of_only_one_process_are_included() -> None:
    """Rank 1 may see a sensor that rank 0 does not."""
    owner = journal(steps(10.0, 20.0, 0.1))
    other = journal(steps(10.0, 20.0, 0.1))
    other.header["feeds"] = [feed("perf")]
    assert len(recorded_feeds(merged_journal([owner, other]))) == 2
