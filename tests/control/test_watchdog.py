"""Promises of watchdog, journal and locks: `kill -9` leaves no lever set."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.control.conftest import Rig, eventually
from tests.control.test_session import LIMIT, SLEEPER, is_back
from wattloop.control import watchdog
from wattloop.control.journal import read_journal
from wattloop.control.restore import restore
from wattloop.control.session import lever_session
from wattloop.core.files import try_lock

FORKING = f"""
held = hold([lever("{LIMIT}")]).__enter__()
held.set({{"{LIMIT}": 90.0}})
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
"""An owner with a child that outlives it; it prints the child's number."""


def guardian_of(owner: subprocess.Popen[str]) -> int:
    return int(owner.first_line)  # type: ignore[attr-defined]  # set by Rig.start


def gone(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_kill_9_of_the_owner_is_put_right_by_the_guardian(rig: Rig) -> None:
    """The watchdog restores without any command, and ends."""
    owner = rig.start(SLEEPER)
    assert rig.limit_w() == 90
    owner.kill()
    assert eventually(lambda: is_back(rig) and not rig.journals())
    assert eventually(lambda: gone(guardian_of(owner)))


def test_kill_9_of_both_is_put_right_by_restore(rig: Rig) -> None:
    """With the watchdog killed too, the values stay until `restore`."""
    owner = rig.start(SLEEPER)
    os.kill(guardian_of(owner), signal.SIGKILL)
    assert eventually(lambda: gone(guardian_of(owner)))
    owner.kill()
    owner.wait()
    assert rig.limit_w() == 90
    fates = {(r.lever, r.part): r.fate.value for r in restore(rig.state)}
    assert set(fates.values()) == {"restored"}
    assert len(fates) == 3
    assert is_back(rig)
    assert rig.journals() == []


def test_kill_9_of_both_is_put_right_by_the_next_hold(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next session on the device restores first, says so, and reads the restored value."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    with lever_session([rig.lever(LIMIT)]) as held:
        assert held.previous == {LIMIT: 150.0}
        assert rig.cpufreq.all("scaling_governor") == ["schedutil", "schedutil"], "not its device"
        assert f"restored {LIMIT} to 150 W, left by process {owner.pid}" in capsys.readouterr().err
    assert len(rig.journals()) == 1, "the governor is still to be restored"
    restore(rig.state)
    assert is_back(rig)
    assert rig.journals() == []


def test_killed_watchdog_does_no_harm(rig: Rig) -> None:
    """The owner continues and restores by itself."""
    with lever_session([rig.lever(LIMIT)]) as held:
        held.set({LIMIT: 90.0})
        assert held.guardian_pid is not None
        os.kill(held.guardian_pid, signal.SIGKILL)
    assert rig.limit_w() == 150
    assert rig.journals() == []


def test_guardian_ends_with_the_hold(rig: Rig) -> None:
    """No process stays behind after the block, though the program continues."""
    with lever_session([rig.lever(LIMIT)]) as held:
        pid = held.guardian_pid
        assert pid is not None
        assert not gone(pid)
    assert gone(pid)


def test_guardian_has_nothing_of_the_users_open(rig: Rig) -> None:
    """It has its own session, no terminal, no pipe of the owner and another working directory."""
    with lever_session([rig.lever(LIMIT)]) as held:
        process = Path(f"/proc/{held.guardian_pid}")
        assert os.getsid(int(process.name)) == int(process.name)
        streams = [str((process / f"fd/{number}").readlink()) for number in range(3)]
        assert streams == ["/dev/null"] * 3
        assert (process / "cwd").readlink() == Path("/")


def test_output_pipe_closes_with_the_program(rig: Rig) -> None:
    """`program | cat` ends when the program does, whatever the watchdog does meanwhile."""
    owner = rig.start(SLEEPER)
    os.kill(guardian_of(owner), signal.SIGSTOP)
    owner.kill()
    assert owner.stdout is not None
    assert owner.stdout.read() == "", "end of file although the guardian lives"
    os.kill(guardian_of(owner), signal.SIGCONT)
    assert eventually(lambda: not rig.journals())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_guardian_survives_what_ends_its_owner(rig: Rig, number: signal.Signals) -> None:
    """A signal to stop does not end it before its owner has ended."""
    with lever_session([rig.lever(LIMIT)]) as held:
        assert held.guardian_pid is not None
        ignored = f"/proc/{held.guardian_pid}/status"

        def is_ready() -> bool:
            lines = Path(ignored).read_text().splitlines()
            (mask,) = [int(x.split()[1], 16) for x in lines if x.startswith("SigIgn")]
            return bool(mask >> (number - 1) & 1)

        assert eventually(is_ready)
        os.kill(held.guardian_pid, number)
        assert not gone(held.guardian_pid)


def test_forked_child_does_not_keep_the_lock(rig: Rig) -> None:
    """The owner dies while its forked child still runs: device and journal are free at once."""
    owner = rig.start(FORKING, WATTLOOP_GUARDIAN="0")
    child = guardian_of(owner)
    try:
        owner.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        assert {result.fate.value for result in restore(rig.state)} == {"restored"}
        assert rig.limit_w() == 150
        assert not gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_forked_child_does_not_hold_up_the_guardian(rig: Rig) -> None:
    """Such a child does not hide the owner's end from the watchdog."""
    owner = rig.start(FORKING)
    child = guardian_of(owner)
    try:
        owner.send_signal(signal.SIGKILL)
        assert eventually(lambda: rig.limit_w() == 150 and not rig.journals())
        assert not gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


KILLED_AT = f"""
from pathlib import Path
print(flush=True)
rename, names = Path.rename, []
def renamed(self, target):
    if len(names) == {{at}}:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(self, target)
    names.append(target)
    if len(names) == 2 and {{at}} == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Path.rename = renamed
hold([lever("{LIMIT}")]).__enter__()
"""
"""An owner that is killed while its journal's two files get their names."""


@pytest.mark.parametrize("named", [0, 1, 2])
def test_kill_9_while_the_journal_is_written_leaves_no_file(rig: Rig, named: int) -> None:
    """The watchdog exists before the journal: nothing is left for `wattloop restore`."""
    owner = rig.start(KILLED_AT.replace("{at}", str(named)))
    assert owner.wait() == -signal.SIGKILL
    assert rig.state.exists()

    def left() -> list[Path]:
        return [p for p in (*rig.state.iterdir(), *rig.copies.rglob("*")) if p.suffix != ".lock"]

    assert eventually(lambda: not any(path.is_file() for path in left()), 20.0), left()
    assert rig.limit_w() == 150


def test_guardian_tries_again_while_a_device_does_not_answer(rig: Rig) -> None:
    """A fault that passes within seconds of the owner's end does not leave a lever set."""
    owner = rig.start(SLEEPER)
    limit = rig.package / "constraint_0_power_limit_uw"
    text = limit.read_text()
    limit.unlink()
    owner.kill()
    owner.wait()
    assert eventually(lambda: rig.cpufreq.all("scaling_governor") == ["powersave", "performance"])
    limit.write_text(text)
    assert eventually(lambda: is_back(rig) and not rig.journals(), 20.0)


def test_guardian_waits_for_an_owner_that_takes_long_to_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that outlasts the retries, and a retry that fails, do not leave a lever set."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    (journal,) = rig.journals()
    tries: list[Path] = []

    def failing(directory: Path, *, journal: Path) -> object:
        tries.append(journal)
        if len(tries) == 1:
            raise MemoryError
        return restore(directory, journal=journal)

    monkeypatch.setattr("wattloop.control.restore.restore", failing)
    monkeypatch.setattr(watchdog, "AGAIN_S", 0.01)
    lock = os.open(journal, os.O_RDONLY)
    assert try_lock(lock)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            monkeypatch.setattr(watchdog, "TRY_FOR_S", 10.0)
            os.close(lock)

    monkeypatch.setattr(watchdog, "TRY_FOR_S", 0.0)
    monkeypatch.setattr(watchdog.time, "sleep", sleep)
    watchdog._restore_one(journal, parent=0)
    assert len(tries) == 2
    assert is_back(rig)
    assert not rig.journals()


def test_torn_record_is_recognised(rig: Rig) -> None:
    """Half a line at the end is not taken for a value, and the records before it are restored."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    (journal,) = rig.journals()
    with journal.open("ab") as file:
        file.write(b'12345678 {"set": {"cpu:0/power_limit_long_term": {"": 1')
    assert read_journal(journal).damaged == 1
    assert len(restore(rig.state)) == 3
    assert is_back(rig)
    assert rig.journals() == []
