"""Promises of `node_reader`: a reader process where it pays, and the thread everywhere else."""

import signal
import sys
import time

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure import sampler, sampler_process
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.store.journal import read_journal

from .conftest import Machine
from .sampler_runs import gone, kill, open_with_reader, settings, wait_until


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every requested process."""
    asked: list[object] = []

    def refuse(self: object, order: object) -> None:
        asked.append(order)
        raise PermissionError(13, "no more processes")

    monkeypatch.setattr(sampler_process.SamplerProcess, "__init__", refuse)
    return asked


def flushes(monkeypatch: pytest.MonkeyPatch) -> list[sampler.NodeReader]:
    """Record the runs that checked if a process is due, once per check."""
    flushed: list[sampler.NodeReader] = []
    flush = sampler.NodeReader.flush

    def counted(reader: sampler.NodeReader, *, ending: bool = False) -> bool:
        changed = flush(reader, ending=ending)
        flushed.append(reader)
        return changed

    monkeypatch.setattr(sampler.NodeReader, "flush", counted)
    return flushed


def test_short_measurement_starts_no_process(
    machine: Machine, starts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most measurements in tests and notebooks last less than a second."""
    monkeypatch.setattr(sampler, "PROCESS_AFTER_S", 600.0)
    flushed = flushes(monkeypatch)
    session = Session.open(settings(sampler="auto"))
    wait_until(lambda: session.reader in flushed)
    session.close()
    assert not starts
    assert machine.root.is_dir()


def test_process_is_started_once_the_measurement_lasts(
    machine: Machine, starts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot start, the thread continues without a message."""
    monkeypatch.setattr(sampler, "PROCESS_AFTER_S", 0.1)
    session = Session.open(settings(sampler="auto"))
    wait_until(lambda: len(starts) == 1)
    before = len(session.feeds[0].tracks[0].times_s)
    wait_until(lambda: len(session.feeds[0].tracks[0].times_s) > before + 10)
    run = session.close()
    assert len(starts) == 1
    assert run.result.warnings == ()
    assert run.result.complete
    assert machine.root.is_dir()


def test_requested_process_that_cannot_start_is_reported(
    machine: Machine, starts: list[object]
) -> None:
    """A user who sets `sampler: process` learns why there is none."""
    session = Session.open(settings())
    wait_until(lambda: bool(starts and session.notes))
    assert "no more processes" in session.close().result.warnings[0]
    assert machine.root.is_dir()


@pytest.mark.parametrize("reason", ["thread", "replay", "estimate", "watcher", "clock"])
def test_no_process_where_it_does_not_apply(
    machine: Machine, starts: list[object], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """On request, for sources of this process only or of high cost, for a watcher, or another
    clock.
    """
    monkeypatch.setattr(sampler, "PROCESS_AFTER_S", 0.0)
    flushed = flushes(monkeypatch)
    if reason == "thread":
        session = Session.open(settings(sampler="thread"))
    elif reason == "replay":
        recorded = machine.root / "old.csv"
        recorded.write_text(
            "time_s,domain,kind,value\n0,cpu:0/package,counter,0\n9,cpu:0/package,counter,90\n"
        )
        session = Session.open(settings(replay_file=str(recorded), meters="replay"))
        assert session.channels
    elif reason == "estimate":
        monkeypatch.setenv("WATTLOOP_PROCFS_ROOT", "/proc")
        monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(machine.root / "run"))
        given = settings(meters="estimate,dram", dimms="2x16", sampler="auto")
        session = Session.open(given)
        assert {feed.meter.name for feed in session.reader.used} == {"estimate", "dram"}
    elif reason == "watcher":
        session = Session.open(settings(), in_process=False)
    else:
        context = Context(Host(machine.root / "sys"), Settings(sampler="process"), VirtualClock())
        session = Session.open(context=context, keep=False)
        session.reader.flush()
        session.reader.flush()
    wait_until(lambda: len(flushed) > 1)
    session.close()
    assert not starts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_thread_takes_over_from_a_process_that_dies_or_hangs(
    slow_wrapping_machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No energy of a counter is lost, and the run says what happened and when."""
    machine = slow_wrapping_machine
    session = open_with_reader()
    monkeypatch.setattr(sampler_process, "SILENT_S", 1.5)  # not earlier: it may start slowly
    pid = session.reader.sampling_pid
    kill(pid, number)
    wait_until(lambda: session.reader.sampling_pid == 0)
    before = len(session.feeds[0].tracks[0].times_s)
    wait_until(lambda: len(session.feeds[0].tracks[0].times_s) > before + 10)
    run = session.close()
    wait_until(lambda: gone(pid))
    assert run.energy_j == machine.about_j(run.result.end_s - run.result.begin_s, rel=0.05)
    assert any("thread of the program reads them again" in w for w in run.result.warnings)
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert [e["type"] for e in journal.events] == ["note"]


def test_run_that_ends_while_its_process_starts_does_not_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process finds its parent gone, and ends."""
    monkeypatch.setattr(
        sampler_process, "BOOT", "import time; time.sleep(1)" + sampler_process.BOOT
    )
    session = Session.open(settings())
    wait_until(lambda: session.reader._process is not None)
    begin_s = time.process_time()
    run = session.close()
    assert run.result.complete
    assert time.process_time() - begin_s < 1.0
    assert session.reader.sampling_pid == 0
    assert sys.executable
    assert machine.root.is_dir()


def test_follower_starts_no_process(
    machine: Machine, starts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the ranks that share a node, only the leader has a reader process."""
    flushed = flushes(monkeypatch)
    first = Session.open(settings(sampler="thread"))
    second = Session.open(settings())
    assert not second.role.counts
    wait_until(lambda: flushed.count(second.reader) > 1)
    second.close()
    first.close()
    assert not starts
    assert machine.root.is_dir()
