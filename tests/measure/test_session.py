"""Promises of `session`: a run from beginning to end, under any fault of the machine."""

import os
import threading
import time
from pathlib import Path

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure import run_journal
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import new_run_id
from wattloop.measure.session import Session
from wattloop.measure.window_energy import Window
from wattloop.meters.base import Context
from wattloop.store.journal import journal_is_live, read_journal
from wattloop.store.run_record import RunRecord, record_of

from .conftest import Machine
from .sampler_runs import wait_until


def test_run_is_measured_and_its_journal_is_whole(machine: Machine) -> None:
    """Energy within the stated interval; header, samples, windows and end in the journal."""
    session = Session.open(name="training", tags={"model": "tiny"})
    with session.begin("epoch") as window:
        time.sleep(0.6)
    run = session.close(exit_code=0)
    truth_j = machine.driver.true_energy_j(
        machine.package, run.result.begin_s, run.result.end_s
    ) + machine.driver.true_energy_j(machine.dram, run.result.begin_s, run.result.end_s)
    assert run.energy_j is not None
    assert abs(run.energy_j - truth_j) <= max(2 * run.result.uncertainty_j, 0.05 * truth_j)
    assert run.result.complete
    assert window.energy_j is not None
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert journal.header["tags"] == {"model": "tiny"}
    assert {d["name"] for d in journal.header["feeds"][0]["domains"]} == {"cpu:0/package", "dram:0"}
    assert [e["window"]["name"] for e in journal.events if e["type"] == "window"] == ["epoch"]
    assert journal.end is not None
    assert journal.end["status"] == "finished"
    assert sum(len(b.times_s) for b in journal.blocks) >= 5


def test_closing_twice_gives_the_same_result(machine: Machine) -> None:
    """The second close changes neither result nor status."""
    session = Session.open()
    first = session.close()
    assert session.close(RunStatus.FAILED) is first
    assert machine.journals.is_dir()


@pytest.mark.parametrize("died", [False, True])
def test_saving_is_part_of_the_run_however_it_ended(machine: Machine, died: bool) -> None:
    """Promise: the saver's result is in the record, also of a run whose measurer was killed."""
    session = Session.open(name="saved")
    path = Path(session.journal_path or "")
    session.record_saving({"state": "probing"})
    session.record_saving({"state": "holding", "cap_w": 450.0})
    if died:
        session._flush(final=True)
        journal = read_journal(path)
    assert session.close().to_dict()["saving"] == {"state": "holding", "cap_w": 450.0}
    journal = journal if died else read_journal(path)
    assert journal is not None
    record = record_of(journal, finalize_orphaned_run)
    assert RunRecord.from_dict(record.to_dict()).saving == {"state": "holding", "cap_w": 450.0}
    assert (record.status is RunStatus.DIED) == died


def test_window_never_closed_ends_with_the_run_and_is_named(machine: Machine) -> None:
    """Open windows are written to the journal at the end, with a warning."""
    session = Session.open()
    session.begin("forgotten")
    run = session.close()
    assert any("'forgotten' was never closed" in w for w in run.result.warnings)
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert [e["window"]["name"] for e in journal.events] == ["forgotten"]


def test_many_forgotten_windows_do_not_hide_other_notes(machine: Machine) -> None:
    """Warnings stay readable: twenty at most, the earliest first."""
    session = Session.open()
    for i in range(100):
        session.begin(f"forgotten {i}")
    run = session.close()
    assert len(run.result.warnings) <= 25
    assert "forgotten 0" in run.result.warnings[0]
    assert machine.root.is_dir()


def test_meter_that_hangs_does_not_keep_the_run_from_ending(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver never returns: the run ends within seconds, says so, and is stored."""
    from wattloop.meters.rapl import Rapl

    hang, hangs, read = threading.Event(), threading.Event(), Rapl.sample

    def sample(meter: Rapl) -> object:
        if hang.is_set():
            hangs.set()
            release.wait(240)
        return read(meter)

    release = threading.Event()
    monkeypatch.setattr(Rapl, "sample", sample)
    monkeypatch.setattr("wattloop.measure.sampler.HANG_S", 0.3)
    session = Session.open(Settings(interval_s=0.02, meters=("rapl",), store=str(machine.store)))
    hang.set()
    assert hangs.wait(120)
    with session.begin("window") as window:
        pass
    run = session.close()
    release.set()
    assert window.result.duration_s < 60  # the driver would take minutes
    assert any("does not answer" in w for w in run.result.warnings)
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None and journal.end is not None


def test_window_ended_after_the_run_is_harmless(machine: Machine) -> None:
    """A thread that outlives the run may still end its window."""
    session = Session.open()
    window = session.begin("late")
    session.close()
    window.end()
    assert window.result.duration_s >= 0
    assert machine.store.parent.is_dir()


def test_store_that_cannot_be_written_is_a_note_not_an_error(machine: Machine) -> None:
    """The program is measured and its user warned, without an exception."""
    blocked = machine.root / "file"
    blocked.write_text("")
    settings = Settings().overridden({"store": str(blocked / "runs.db"), "meters": "rapl"}, "test")
    with pytest.warns(RuntimeWarning, match="this run will not be kept: cannot write"):
        session = Session.open(settings)
    time.sleep(0.05)
    run = session.close()
    assert run.energy_j is not None
    assert any("will not be kept" in w and "WATTLOOP_STORE" in w for w in run.result.warnings)


@pytest.mark.parametrize("content", [b"loss,accuracy\n" * 9, None])
def test_a_store_that_is_another_file_is_said_before_the_program_runs(
    machine: Machine, content: bytes | None
) -> None:
    """Promise: hours of training do not end with the news that their store is a table."""
    place = machine.root / "results"
    place.mkdir() if content is None else place.write_bytes(content)
    settings = Settings().overridden({"store": str(place), "meters": "rapl"}, "test")
    with pytest.warns(RuntimeWarning, match="results is not a store; choose another place"):
        session = Session.open(settings)
    time.sleep(0.05)
    assert session.close().energy_j is not None
    assert len(list(machine.root.glob("results.journals/*.journal"))) == 1


def test_suspended_machine_is_noted_and_not_counted(machine: Machine) -> None:
    """Monotonic time stands still during suspend, so no energy is invented for it."""
    clock = VirtualClock(start_s=100.0, wall_start_s=1.7e9)
    context = Context(Host(machine.root / "sys"), Settings(meters=("rapl",)), clock)
    session = Session.open(context=context, keep=False)
    clock.suspend(3_600.0)
    run = session.close()
    assert run.result.duration_s < 60.0
    assert any("suspended for 3600 s" in w for w in run.result.warnings)


def test_clock_set_back_does_not_disturb_the_energy(machine: Machine) -> None:
    """Setting the wall clock changes labels only."""
    clock = VirtualClock(start_s=100.0, wall_start_s=1.7e9)
    context = Context(Host(machine.root / "sys"), Settings(meters=("rapl",)), clock)
    session = Session.open(context=context, keep=False)
    clock.set_wall(1.0e9)
    clock.advance(2.0)
    run = session.close()
    assert run.result.duration_s >= 2.0
    assert run.started_wall_s == pytest.approx(1.7e9, abs=5.0)


def test_device_that_is_not_here_is_a_note(machine: Machine) -> None:
    """`--devices gpu:7` on a machine without one gives a note instead of 0 J."""
    settings = Settings(devices=("gpu:7",), meters=("rapl",), store=str(machine.store))
    session = Session.open(settings)
    run = session.close()
    assert run.energy_j is None
    assert any("gpu:7" in w for w in run.result.warnings)


def test_counter_that_disappears_mid_run_is_missing_with_its_reason(machine: Machine) -> None:
    """The total names the incomplete part, and the journal has the time of its loss."""
    session = Session.open(Settings(interval_s=0.02, meters=("rapl",), store=str(machine.store)))
    time.sleep(0.3)
    machine.driver.stop()
    machine.dram.energy_file.unlink()
    time.sleep(0.4)
    run = session.close()
    names = {m.name: m.reason for m in run.result.missing}
    assert "gone" in names["dram:0"]
    assert not run.result.complete
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert any(e["type"] == "gap" and e["domain"] == "dram:0" for e in journal.events)


def test_live_power_is_readable_inside_the_run(machine: Machine) -> None:
    """Watts per domain, now."""
    session = Session.open(Settings(interval_s=0.02, meters=("rapl",), store=str(machine.store)))
    # a counter that a busy machine moves late shows another power for a moment
    wait_until(lambda: 20 < session.power_w().get("cpu:0/package", 0.0) < 100)
    power_w = session.power_w()
    session.close()
    assert set(power_w) == {"cpu:0/package", "dram:0"}


def test_no_sensor_at_all_still_gives_a_run(machine: Machine) -> None:
    """Without a reading the energy is None, and the missing part has reason and remedy."""
    context = Context(
        Host(machine.root / "nothing"), Settings(meters=("rapl",), store=str(machine.store))
    )
    run = Session.open(context=context).close()
    assert run.energy_j is None
    (missing,) = run.result.missing
    assert isinstance(missing, Missing)
    assert missing.remedy


def test_forked_child_does_not_touch_the_parents_run(machine: Machine) -> None:
    """A child that ends, even by an exception, neither writes nor ends the run."""
    session = Session.open()
    window = session.begin("both")
    pid = os.fork()
    if pid == 0:
        session.abandon()
        ok = window.end().result.energy_j is None
        os._exit(0 if ok else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    (path,) = machine.journals.glob("*.journal")
    assert journal_is_live(path)
    time.sleep(0.1)
    run = session.close()
    assert run.energy_j is not None


def test_children_inherit_the_id_of_their_run(machine: Machine) -> None:
    """The variable is set while the run is open and removed after it."""
    session = Session.open()
    assert os.environ["WATTLOOP_JOB"] == session.run_id
    session.close()
    assert "WATTLOOP_JOB" not in os.environ
    assert machine.root.is_dir()


def test_run_ids_sort_by_time_and_differ() -> None:
    """Two runs of one second have different ids."""
    assert new_run_id(0.0).startswith("19700101-000000-")
    assert len({new_run_id(1.0) for _ in range(100_000)}) == 100_000
    assert new_run_id(1.0) < new_run_id(2.0)


def test_run_ids_of_a_forked_child_and_of_other_processes_differ(tmp_path: Path) -> None:
    """A child has its own numbers, and the id of an existing journal is not used again."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, " ".join(new_run_id(1.0) for _ in range(10)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 4_096).decode().split()
    os.close(reader)
    os.close(writer)
    assert len({*theirs, *(new_run_id(1.0) for _ in range(10))}) == 20
    run_journal._suffixes = iter([7, 7, 8])
    try:
        taken = new_run_id(1.0)
        (tmp_path / f"{taken}.journal").touch()
        assert new_run_id(1.0, tmp_path) != taken
    finally:
        run_journal._seed_suffixes()


def test_end_of_a_run_waits_for_the_thread_that_writes_its_windows(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of windows take the sampler's thread longer than the end usually waits."""
    monkeypatch.setattr("wattloop.measure.sampler.HANG_S", 0.05)
    monkeypatch.setattr("wattloop.measure.sampler.LAST_WAIT_S", 0.0)
    session = Session.open(name="busy")
    busy, go_on = threading.Event(), threading.Event()
    resolve = session.resolve

    def slow(window: Window) -> WindowResult:
        if threading.current_thread().name == "wattloop-sampler":
            busy.set()
            go_on.wait(240)
        return resolve(window)

    monkeypatch.setattr(session, "resolve", slow)
    for number in range(50):
        with session.begin(f"w{number}"):
            pass
    assert busy.wait(120)

    def let_go() -> None:
        # from here on only the load of the machine decides the duration of the last reading
        monkeypatch.setattr("wattloop.measure.sampler.HANG_S", 120.0)
        go_on.set()

    threading.Timer(1.0, let_go).start()
    run = session.close()
    assert run.result.warnings == ()
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None and journal.end is not None
    names = [e["window"]["name"] for e in journal.events if e["type"] == "window"]
    assert sorted(names) == sorted(f"w{number}" for number in range(50))
