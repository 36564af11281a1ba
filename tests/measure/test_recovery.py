"""Promises of recovery: a run whose measurer was killed keeps the energy that was read."""

import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from tests.support.scripted_meter import ScriptedMeter, counter
from wattloop.core.clock import VirtualClock
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import domain_from_dict, feed_to_dict
from wattloop.store.journal import Journal, JournalWriter, SampleBlock, read_journal

from .conftest import Machine


def journal_of(times_s: list[float], joules: list[float], *, feed: int = 0) -> Journal:
    meter = ScriptedMeter(VirtualClock(), [(counter("cpu:0/package"), lambda t: t)])
    header = {
        "name": "training",
        "started_s": 100.0,
        "started_wall_s": 1.7e9,
        "feeds": [feed_to_dict(MeterStream(meter, VirtualClock(), 0))],
        "missing": [{"name": "gpu", "reason": "none", "remedy": ""}],
    }
    block = SampleBlock(feed, 1, array("d", times_s), array("d", joules))
    return Journal(Path("x.journal"), header, [block])


def test_crashed_run_ends_with_its_last_reading() -> None:
    """Status `died`, energy up to the last sample, and missing domains still missing."""
    times_s = [100.0 + 0.1 * i for i in range(101)]
    end = finalize_orphaned_run(journal_of(times_s, [5.0 * i for i in range(101)]))
    assert end["status"] == "died"
    assert end["time_s"] == pytest.approx(110.0)
    assert end["wall_s"] == pytest.approx(1.7e9 + 10.0)
    assert end["result"]["energy_j"] == pytest.approx(500.0, rel=0.01)
    assert end["result"]["missing"][0]["name"] == "gpu"
    assert "died" in end["result"]["warnings"][0]


def test_crashed_run_without_a_reading_has_no_energy() -> None:
    """None, not 0 J."""
    journal = journal_of([], [])
    assert finalize_orphaned_run(journal)["result"]["energy_j"] is None


def test_block_of_an_unknown_stream_is_ignored() -> None:
    """Streams of later versions do not prevent the use of the rest."""
    end = finalize_orphaned_run(journal_of([100.0, 101.0], [1.0, 2.0], feed=1_000))
    assert end["result"]["energy_j"] is None


@pytest.mark.parametrize(
    ("local_rank", "events", "counted"),
    [
        (0, [], (True, None)),
        (3, [], (False, None)),
        (3, [{"type": "role", "counts": False, "counted_by": "first"}], (False, "first")),
        (3, [{"type": "role", "counts": False}, {"type": "role", "counts": True}], (True, None)),
    ],
)
def test_crashed_rank_counts_only_its_own_part(
    local_rank: int, events: list[dict[str, object]], counted: tuple[bool, str | None]
) -> None:
    """A follower that was killed adds nothing to its job; one that had taken over does."""
    journal = journal_of([100.0, 101.0], [1.0, 2.0])
    journal.header["job"] = {"id": "job", "local_rank": local_rank}
    journal.events += events
    end = finalize_orphaned_run(journal)
    assert (end["counted"], end["counted_by"]) == counted


def test_crashed_rank_that_had_taken_over_counts_the_rest() -> None:
    """Energy that the earlier leader has counted is not counted again."""
    journal = journal_of([100.0 + 0.1 * i for i in range(101)], [5.0 * i for i in range(101)])
    journal.header["job"] = {"id": "job", "local_rank": 1}
    journal.events.append({"type": "role", "counts": True, "counts_from_s": 106.0})
    result = finalize_orphaned_run(journal)["result"]
    assert result["energy_j"] == pytest.approx(200.0, rel=0.02)
    assert result["duration_s"] == pytest.approx(10.0)


def test_domain_survives_the_header() -> None:
    """Every field comes back; fields of later versions are ignored."""
    domain = counter("cpu:0/package", wrap_j=262_143.0, inside=None, tdp_w=150.0)
    meter = ScriptedMeter(VirtualClock(), [(domain, lambda t: t)])
    data = feed_to_dict(MeterStream(meter, VirtualClock(), 0))["domains"][0]
    assert domain_from_dict({**data, "from_the_future": 1}) == domain


def test_killed_process_can_be_closed_by_another(machine: Machine) -> None:
    """The files that `kill -9` leaves are enough to state the energy."""
    code = (
        "import wattloop, time, os, signal\n"
        "wattloop.measure('x', interval_s=0.02).begin(); time.sleep(1.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    result = finalize_orphaned_run(journal)["result"]
    assert result["duration_s"] > 0.2
    assert result["energy_j"] == machine.about_j(result["duration_s"])


def test_header_never_holds_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in URLs do not reach a file."""
    from wattloop.core.settings import Settings
    from wattloop.hardware.host import Host
    from wattloop.measure.session import Session
    from wattloop.meters.base import Context

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = Settings(
        meters=("rapl",),
        store="postgresql://me:secret@db/runs?password=secret",
        carbon_url="https://grid/now?zone=FR&auth-token=secret",
    )
    session = Session.open(context=Context(Host(tmp_path), settings))
    path = Path(str(session.journal_path))
    session.close()
    assert b"secret" not in path.read_bytes()
    assert b"***@db/runs" in path.read_bytes()


def test_writer_and_reader_agree_on_the_layout(tmp_path: Path) -> None:
    """The header's streams and the blocks' numbers match after a round trip."""
    source = journal_of([100.0, 101.0, 102.0], [0.0, 7.0, 14.0])
    writer = JournalWriter(tmp_path / "a.journal", source.header)
    for block in source.blocks:
        writer.samples(block.feed, block.width, block.times_s, block.values)
    writer.close()
    journal = read_journal(tmp_path / "a.journal")
    assert journal is not None
    assert finalize_orphaned_run(journal)["result"]["energy_j"] == pytest.approx(14.0, rel=0.05)
