"""Promises of events: whole, in order, once, and on the machine's own clock."""

from pathlib import Path

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.fleet.agent.job_events import EventFolder, Instant, JobEvent, parse_event


def test_an_event_that_is_not_whole_or_not_ours_is_none() -> None:
    """A full disk truncates files, and any user may drop a file."""
    assert parse_event("12-7-start", "event=start\njob=7\n") is None
    assert parse_event("README", "whole=yes\n") is None
    found = parse_event("12000000000-7-start", "uptime_s=3.5\nuser=a\x1b[31m\nwhole=yes\n")
    assert found is not None
    assert (found.job, found.kind, found.wall_s, found.uptime_s) == ("7", "start", 12.0, 3.5)
    assert "\x1b" not in found.facts["user"]


def test_the_first_of_a_fact_counts() -> None:
    """A user's statement has less weight than Slurm's."""
    found = parse_event("1-7-start", "uid=1000\ncomment=x\nuid=0\nwhole=yes\n")
    assert found is not None
    assert found.facts["uid"] == "1000"


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\r"])
def test_a_comment_makes_no_further_facts(end: str) -> None:
    """Of all that ends a line somewhere only the hooks' own does: else a job chose its GPUs."""
    text = f"uid=1000\ncomment=x{end}gpus=0,1{end}\nwhole=yes\n"
    found = parse_event("1-7-start", text)
    assert found is not None
    assert "gpus" not in found.facts
    assert found.facts["comment"] == "x gpus=0,1"


def test_events_wait_in_the_order_of_their_times(tmp_path: Path) -> None:
    """An end before a start of the same moment; half-written files are not there yet."""
    folder = EventFolder(tmp_path / "events")
    folder.prepare()
    for name in ("3000-1-end", "1000-1-start", "3000-2-start", ".4000-3-start"):
        (folder.path / name).write_text("whole=yes\n")
    (folder.path / "junk").write_text("")
    events, strange = folder.waiting()
    assert [event.name for event in events] == ["1000-1-start", "3000-1-end", "3000-2-start"]
    assert strange == ["junk"]
    folder.set_aside("junk")
    assert (tmp_path / "strange" / "junk").exists()
    assert folder.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("wall_s", "uptime_s", "found_s"),
    [
        (995.123, 95.12, 95.123),  # both agree: the finer one
        (5_000.0, 95.12, 95.12),  # the time of day was set meanwhile
        (1_010.0, 110.0, 100.0),  # the future is now
        (994.5, None, 94.5),  # nothing but the time of day
    ],
)
def test_times_of_events_are_the_machines_whatever_the_time_of_day_does(
    wall_s: float, uptime_s: float | None, found_s: float
) -> None:
    """Now is 100 s on the monotonic clock, 1000 s of the day and 100 s of uptime."""
    instant = Instant(VirtualClock(100.0, 1_000.0), 100.0)
    event = JobEvent("1-1-start", "start", "1", wall_s, uptime_s)
    assert instant.time_of(event) == pytest.approx(found_s, abs=1e-6)
