"""Promises of `sampler_process` and `sampler_child`: they read separately, do no harm, and end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from wattloop.core.records import Gap
from wattloop.core.settings import Settings, settings_from
from wattloop.measure import sampler_child, sampler_process
from wattloop.measure.sampler_process import SamplerConfig, why_impossible
from wattloop.store.journal import Journal, read_journal

from .conftest import Machine
from .sampler_runs import gone, open_with_reader, wait_until

PROGRAM = """
import os, sys, time, wattloop
from wattloop.measure.api import active_session
wattloop.measure("x", interval_s=0.02, sampler="process").begin()
while not active_session().reader.sampling_pid:
    time.sleep(0.01)
print(active_session().reader.sampling_pid, flush=True)
"""


def started(*more: str) -> tuple["subprocess.Popen[str]", int]:
    """Start a program that measures itself and continues with `more`, and its sampling process."""
    code = PROGRAM + "\n".join(more)
    pipe = subprocess.PIPE
    program = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert program.stdout is not None
    return program, int(program.stdout.readline())


def test_energy_and_samples_are_those_of_the_machine(slow_wrapping_machine: Machine) -> None:
    """Energy equals that of the counters, samples are in order, and no process stays."""
    machine = slow_wrapping_machine  # a reading that comes late is still unique
    session = open_with_reader()
    pid = session.reader.sampling_pid
    with session.begin("window") as window:
        track, until_s = session.feeds[0].tracks[0], time.monotonic() + 0.7
        wait_until(lambda: len(track.times_s) > 20 and track.times_s[-1] > until_s)
        wait_until(lambda: session.power_w()["cpu:0/package"] == pytest.approx(50.0, rel=0.3))
    run = session.close()
    for result in (run.result, window.result):
        assert result.energy_j == machine.about_j(result.end_s - result.begin_s, rel=0.05)
        assert result.complete
    assert run.result.warnings == ()
    wait_until(lambda: gone(pid))
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None and journal.end is not None
    times_s = [t for block in journal.blocks for t in block.times_s]
    assert times_s == sorted(times_s)
    assert len(times_s) > 20


def test_own_thread_stops_reading(machine: Machine) -> None:
    """Readings in the curve come from the other process."""
    session = open_with_reader()
    meter = session.feeds[0].meter
    wait_until(lambda: bool(session.reader._share()[0]) is False)
    time.sleep(0.1)
    reads: list[float] = []
    read = meter.sample
    meter.sample = lambda: (reads.append(0.0), read())[1]  # type: ignore[method-assign] # counted
    before = len(session.feeds[0].tracks[0].times_s)
    wait_until(lambda: len(session.feeds[0].tracks[0].times_s) > before + 20)
    assert not reads
    session.close()
    assert machine.root.is_dir()


def test_fault_of_a_sensor_is_reported_with_its_reason(machine: Machine) -> None:
    """When a counter breaks, the run gives the reason as if it had read the counter itself."""
    session = open_with_reader()
    machine.driver.stop()
    broken = machine.root / "broken"
    broken.write_text("nonsense\n")
    broken.replace(machine.package.energy_file)  # never seen half-written
    track = session.feeds[0].tracks[0]
    wait_until(lambda: (session.reader.refresh(), session.power_w(), track.last_gap)[2] is not None)
    assert track.last_gap is not None
    assert "nonsense" in track.last_gap[1]
    session.close()


def held_by(pid: int) -> list[str]:
    """Return the open files of a process, without those that it closes meanwhile."""
    held = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.append(str(link.readlink()))
    return held


def test_process_inherits_no_file_of_the_program(machine: Machine) -> None:
    """It inherits no pipe, file or terminal, so readers of the program's output do not block."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    session = open_with_reader()
    pid = session.reader.sampling_pid
    theirs = str(Path(f"/proc/self/fd/{writing}").readlink())
    held = held_by(pid)
    assert theirs not in held
    assert held.count("/dev/null") == 2
    assert os.getsid(pid) != os.getsid(0)
    session.close()
    for fd in (reading, writing):
        os.close(fd)
    assert machine.root.is_dir()


def test_program_may_wait_for_all_its_children(machine: Machine) -> None:
    """A program that waits for all its children does not wait for the sampling process."""
    program, pid = started(
        "try:",
        "    while True: os.wait()",
        "except ChildProcessError:",
        "    print('childless', flush=True)",
        "sys.stdin.read()",
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "childless\n"
    assert not gone(pid)
    program.communicate()
    assert program.returncode == 0
    wait_until(lambda: gone(pid))
    assert machine.root.is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_process_ends_when_the_program_does_and_not_before(machine: Machine, number: int) -> None:
    """After a signal to the whole job, the program decides when to end."""
    program, pid = started("sys.stdin.read()")
    os.kill(pid, number)
    time.sleep(0.1)
    assert not gone(pid)
    program.kill()
    program.communicate()
    wait_until(lambda: gone(pid))
    assert machine.root.is_dir()


def test_process_ends_with_a_killed_program_whose_workers_live_on(machine: Machine) -> None:
    """A worker forked by a library has copies of all pipes; the process ends all the same."""
    program, pid = started(
        "import ctypes",
        "c = ctypes.PyDLL(None)",
        "if c.fork() == 0:",  # without Python's knowledge, so that nothing is closed
        "    os.close(0); os.close(1); c.sleep(25); c._exit(0)",
        "print('forked', flush=True)",
        "sys.stdin.read()",
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "forked\n"
    program.kill()
    program.communicate()
    wait_until(lambda: gone(pid))
    assert machine.root.is_dir()


def sleeps_of(pid: int) -> int:
    """Return how often a process has waited, for its next reading or otherwise."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in statuses)


def last_s(journal: Journal) -> float:
    return max(block.times_s[-1] for block in journal.blocks)


def journal_rows(journal: Journal) -> int:
    return sum(len(block.times_s) for block in journal.blocks)


def test_readings_of_a_killed_program_are_complete(machine: Machine) -> None:
    """A program is killed while its lock is locked: its process writes the unwritten samples."""
    program, pid = started("import ctypes; ctypes.PyDLL(None).sleep(30)")  # holds the lock
    time.sleep(1.0)  # the program's own samples are written
    (path,) = machine.journals.glob("*.journal")
    written = read_journal(path)
    slept = sleeps_of(pid)
    wait_until(lambda: sleeps_of(pid) > slept + 10)  # it has read in between
    program.kill()
    program.communicate()
    wait_until(lambda: gone(pid))
    journal = read_journal(path)
    assert written is not None and journal is not None
    assert (journal.end, journal.torn_bytes) == (None, 0)
    assert last_s(journal) > last_s(written)
    assert journal_rows(journal) >= journal_rows(written) + 5


def test_the_end_of_a_killed_program_is_when_its_locks_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dying program closes its pipe before its journal: the process waits for the last file."""
    ours, theirs = os.pipe()
    os.close(theirs)  # as the kernel does, while the program's other files are still open
    with subprocess.Popen(["sleep", "60"]) as program, os.fdopen(ours) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        end = sampler_child._End(program.pid)
        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(end.wait)
            done, _ = wait([ended], timeout=0.3)
            assert not done
            program.kill()
            assert ended.result() is False


def test_forked_worker_releases_the_process(machine: Machine) -> None:
    """Its copies are closed, and the program continues with its readings."""
    session = open_with_reader()
    worker = os.fork()
    if worker == 0:
        session.abandon()
        os._exit(0 if session.reader.sampling_pid == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
    before = len(session.feeds[0].tracks[0].times_s)
    wait_until(lambda: len(session.feeds[0].tracks[0].times_s) > before + 5)
    assert session.reader.sampling_pid
    session.close()
    assert machine.root.is_dir()


def test_embedding_application_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that embeds Python would start itself again."""
    assert why_impossible() == ""
    monkeypatch.setattr(sys, "executable", "/opt/blender/blender")
    assert "not a Python interpreter" in why_impossible()
    monkeypatch.setattr(sys, "executable", "")
    assert why_impossible()


def test_passwords_are_not_on_the_command_line(machine: Machine) -> None:
    """A list of processes shows no settings."""
    session = open_with_reader(redfish_url="https://ada:secret@bmc", meters="rapl")
    words = Path(f"/proc/{session.reader.sampling_pid}/cmdline").read_bytes()
    assert b"wattloop sampler of" in words
    assert b"secret" not in words
    session.close()
    assert machine.root.is_dir()


def test_every_setting_reaches_the_process() -> None:
    """The process has the same settings as the program."""
    import json

    from wattloop.measure.sampler_child import settings_from

    given = Settings(devices=("cpu",), gauges=({"name": "a", "path": "/x"},), cpu_tdp_w=65.0)
    assert settings_from(json.loads(json.dumps(given._asdict()))) == given


def test_invalid_data_from_the_process_ends_it_and_not_the_program(machine: Machine) -> None:
    """The program asks for energy, and never gets the exception."""
    session = open_with_reader()
    process = session.reader._process
    assert process is not None
    pid = process.pid
    process._event = None  # type: ignore[assignment, method-assign] # a fault of ours
    process._take = None  # type: ignore[assignment, method-assign] # a fault of ours
    wait_until(lambda: (session.power_w(), session.reader.sampling_pid)[1] == 0)
    wait_until(lambda: gone(pid))
    session.close()
    assert machine.root.is_dir()


def test_gap_without_a_known_reason_is_a_gap() -> None:
    """A NaN is never taken for a number."""
    process = object.__new__(sampler_process.SamplerProcess)
    process._gaps = {}
    assert isinstance(process._gap(0, 0), Gap)


def test_sampling_process_of_a_day_is_as_large_as_that_of_an_hour(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory depends on the number of points, here 100 readings a second: old ones are
    downsampled.
    """
    session = open_with_reader()
    feeds = [feed for feed in session.reader.used if feed.meter.shared]
    settings = {**settings_from(os.environ)._asdict(), "meters": ["rapl"], "sources": {}}
    roots = (str(machine.root / "sys"), str(machine.root / "proc"))
    order = SamplerConfig(settings, roots, 0.01, False, feeds, (), {}, "/", "r", "r", None)
    session.close()
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is wanted
        monkeypatch.setattr(sampler_child, "DATA_FD", nowhere.fileno())
        work = sampler_child._Work(json.loads(order.to_bytes()))
        (feed,) = (feed for feed, _ in work._feeds)
        points = []
        for step in range(300_000):  # 50 minutes at 100 Hz
            feed.take(step / 100, (50.0 + step / 2, 5.0 + step / 20))
            if step % 50 == 49:
                work.flush(step / 100)
            if step % 100_000 == 99_999:
                points.append(sum(len(track.times_s) for track in feed.tracks))
    assert len(feed.tracks) == 2
    assert points[2] < 1.05 * points[1]
    assert points[2] < 2 * (900 * 100 + 10_000)
