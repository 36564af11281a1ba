"""Promises in a folder that all users share: no user makes another write, wait or leak secrets."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import Rig, eventually
from tests.control.test_restore import dead_owner
from tests.control.test_session import LIMIT, SLEEPER
from wattloop.cli.commands.restore import restore_text
from wattloop.control.lock import DeviceLock, Owner, lock_path
from wattloop.control.restore import RestoreStatus, restore
from wattloop.control.session import lever_session
from wattloop.core.errors import DeviceBusy, LeverError
from wattloop.core.files import try_lock

NOBODY_UID = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that every user can enter and write to."""
    folder = Path(tempfile.mkdtemp(prefix="wattloop-place-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def leftover(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a journal with 150 W for a package that is at 90 W; Wattloop finds the package
    itself.
    """
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(rig.folder / "sys"))
    monkeypatch.setenv("WATTLOOP_STATE_COPY_DIR", "/dev/null/copies")  # one file only
    rig.put_limit_w(90)
    return dead_owner(rig)


def run_without_rights(act: Callable[[], object]) -> str:
    """Run `act` in a process of a user without rights; return its result or its error."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY_UID)
            os.setuid(NOBODY_UID)
            answer = str(act())
        except BaseException as error:  # noqa: BLE001 - the other side judges
            answer = f"{type(error).__name__}: {error}"
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours) as answers:
        return answers.read()


@as_root
def test_journal_of_a_stranger_is_not_believed(rig: Rig, leftover: Path) -> None:
    """Another user's journal would let that user choose what root writes; it needs --force."""
    os.chown(leftover, 12345, 12345)
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.FOREIGN
    assert "was left by user 12345" in result.message
    assert rig.limit_w() == 90
    assert restore(rig.state, force=True)[0].fate is RestoreStatus.RESTORED
    assert rig.limit_w() == 150


def test_lock_file_under_a_second_name_is_not_believed(rig: Rig, leftover: Path) -> None:
    """Every user may write those of earlier versions: a link would make a journal of one."""
    lock = rig.state / "rapl-9-d3adbeef.lock"  # of an earlier version
    lock.write_bytes(leftover.read_bytes())
    lock.chmod(0o666)
    leftover.unlink()
    os.link(lock, rig.state / "1-1-00000000.journal")
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.FOREIGN
    assert "may have been written by any user" in result.message
    assert rig.limit_w() == 90


@as_root
def test_strangers_journal_names_no_files(
    rig: Rig, leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with --force Wattloop locates devices itself, or root would write anywhere."""
    os.chown(leftover, 12345, 12345)
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(rig.folder / "nothing"))
    (result,) = restore(rig.state, force=True)
    assert result.fate is RestoreStatus.FAILED
    assert "is not there any more" in result.message
    assert rig.limit_w() == 90


@as_root
def test_strangers_journal_does_not_stop_a_hold(
    rig: Rig, leftover: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported and stays; found levers are restored, so that its own restore still finds
    them.
    """
    os.chown(leftover, 12345, 12345)
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        assert held.previous == {LIMIT: 90.0}
        held.set({LIMIT: 80.0})
    assert "was left by user 12345" in capsys.readouterr().err
    assert rig.limit_w() == 90
    assert leftover.exists()


@as_root
def test_root_can_forget_what_a_stranger_left(rig: Rig, leftover: Path) -> None:
    """A user who has left cannot come back to restore; nothing is written."""
    os.chown(leftover, 12345, 12345)
    assert [result.fate for result in restore(rig.state, forget=True)] == [RestoreStatus.FORGOTTEN]
    assert rig.limit_w() == 90
    assert rig.journals() == []


def garbage(header: object) -> bytes:
    text = json.dumps(header).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


ME = Owner.this_process().to_dict()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense\n",
        garbage({"owner": ME}),
        garbage({"owner": ME | {"since": float("inf"), "pid": float("inf")}}),
        garbage({"version": 1, "owner": ME, "levers": 7, "environment": {}}),
        garbage({"version": 1, "owner": ME, "levers": [{}], "environment": {}}),
        garbage({"version": 1, "owner": ME, "levers": [], "environment": {}})
        + garbage({"set": {"gpu:0/power_limit": {"": 1}}}),
        garbage(
            {
                "version": 1,
                "owner": ME,
                "levers": [{"name": "\x1b[2J", "device": "cpu", "unit": "", "previous": {"": 1}}],
                "environment": {},
            }
        )
        + garbage({"set": {"\x1b[2J": {"": 2}}}),
    ],
)
@as_root
def test_garbage_of_a_stranger_stops_nobody(rig: Rig, leftover: Path, content: bytes) -> None:
    """`restore` reports it without control characters and restores the rest; sessions still
    work.
    """
    strange = rig.state / "0.journal"
    strange.write_bytes(content)
    os.chown(strange, 12345, 12345)
    (rig.state / "\x1b[2J.journal").write_bytes(content)
    results = restore(rig.state)
    assert {result.fate for result in results} == {RestoreStatus.FOREIGN, RestoreStatus.RESTORED}
    assert all(restore_text(result).isprintable() for result in results)
    assert rig.limit_w() == 150
    with lever_session([rig.lever(LIMIT)], guardian=False):
        pass


def test_what_is_no_file_is_no_journal(rig: Rig, leftover: Path) -> None:
    """A pipe blocks no reader, a link is not followed, and a file that is too long is not read."""
    os.mkfifo(rig.state / "0.journal")
    (rig.state / "1.journal").symlink_to("/dev/zero")
    long = rig.state / "2.journal"
    long.touch()
    os.truncate(long, 1 << 40)
    signal.alarm(30)
    try:
        results = restore(rig.state)
    finally:
        signal.alarm(0)
    assert {result.fate for result in results} == {RestoreStatus.FAILED, RestoreStatus.RESTORED}
    assert rig.limit_w() == 150


def test_pipe_for_a_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The owner of the device cannot be read from it, but the kernel knows it."""
    os.mkfifo(lock_path("cpu", tmp_path))
    first = DeviceLock.take("cpu", tmp_path, Owner.this_process())
    signal.alarm(30)
    try:
        with pytest.raises(DeviceBusy, match="already held by this process"):
            DeviceLock.take("cpu", tmp_path, Owner.this_process())
    finally:
        signal.alarm(0)
    first.release()


def test_link_for_a_lock_stops_no_restore(rig: Rig) -> None:
    """The link is not followed, and the restore continues."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    lock = lock_path("cpu", rig.state)
    lock.unlink()
    lock.symlink_to("/etc/passwd")
    before = Path("/etc/passwd").stat()
    assert {result.fate for result in restore(rig.state)} == {RestoreStatus.RESTORED}
    assert rig.limit_w() == 150
    assert Path("/etc/passwd").stat() == before


def test_journal_that_another_has_locked_is_not_used(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user can read and so lock it; without a lock it would pass for a leftover."""
    from wattloop.control import journal

    theirs: list[int] = []

    def too_late(descriptor: int) -> bool:
        theirs.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
        fcntl.flock(theirs[0], fcntl.LOCK_EX)
        return try_lock(descriptor)

    monkeypatch.setattr(journal, "try_lock", too_late)
    with pytest.raises(LeverError, match="so nothing is set"), lever_session([rig.lever(LIMIT)]):
        pass
    os.close(theirs[0])
    assert rig.journals() == []


def test_lock_file_cannot_draw_on_a_terminal(tmp_path: Path) -> None:
    """Text that any user can write is escaped before it is printed."""
    lock = DeviceLock.take("cpu", tmp_path, Owner.this_process())
    text = json.dumps(ME | {"pid": 2**22 + 1, "command": "\x1b[2Jsu\n", "since": 1e300})
    lock_path("cpu", tmp_path).write_text(text)
    with pytest.raises(DeviceBusy) as refusal:
        DeviceLock.take("cpu", tmp_path, Owner.this_process())
    assert str(refusal.value).isprintable()
    lock.release()


def test_journal_has_no_secrets(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user can read it: it has the data that find the devices, and no password."""
    monkeypatch.setenv("WATTLOOP_REDFISH_PASSWORD", "hunter2")
    monkeypatch.setenv("WATTLOOP_STORE", "postgresql://me:hunter2@host/runs")
    with lever_session([rig.lever(LIMIT)], guardian=False):
        (journal,) = rig.journals()
        assert "hunter2" not in journal.read_text()


@as_root
def test_living_owner_is_left_alone_by_another_user(rig: Rig, place: Path) -> None:
    """A user without write access sees that it is locked; sessions on other devices still work."""
    rig.extra["WATTLOOP_STATE_DIR"] = str(place)
    owner = rig.start(SLEEPER)
    answer = run_without_rights(lambda: [result.fate.value for result in restore(place)])
    assert answer == str(["in use"] * 3)
    assert (
        run_without_rights(lambda: restore(place, devices=["virtual:1"])[0].fate.value) == "in use"
    )
    assert owner.poll() is None
    owner.kill()  # and its watchdog restores before the folder is removed
    assert eventually(lambda: not list(place.glob("*.journal")))


@as_root
def test_folder_that_may_not_be_read_is_not_empty(place: Path) -> None:
    """'Nothing is left' would be a guess."""
    place.chmod(0o700)
    assert "cannot be read (Permission denied)" in run_without_rights(lambda: restore(place))


@as_root
def test_lock_that_cannot_be_made_is_reported(place: Path) -> None:
    """In a read-only folder it is an error that names the file, not a traceback."""
    place.chmod(0o755)
    answer = run_without_rights(lambda: DeviceLock.take("cpu", place, Owner.this_process()))
    assert answer.startswith("LeverError: ")
    assert answer.endswith("cannot be opened to lock the device: Permission denied")


@as_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare to make a namespace")
def test_owner_in_another_container_is_left_alone(rig: Rig) -> None:
    """Its process number has no meaning here, but the lock on its journal does."""
    program = f"import sys; sys.argv = ['-c']\n{SLEEPER_IN_CONTAINER}"
    process = subprocess.Popen(
        [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            sys.executable,
            "-c",
            program,
        ],
        env=rig.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rig.processes.append(process)
    assert process.stdout is not None
    if not process.stdout.readline():
        pytest.skip(f"no namespaces here: {process.communicate()[1]}")
    results = restore(rig.state, patience_s=0.1)
    assert {result.fate for result in results} == {RestoreStatus.IN_USE}
    assert "in another container" in results[0].message
    with pytest.raises(
        DeviceBusy, match=r"held by process \d+ \(.*\) of .* runs for .*; wait until it has ended"
    ):
        lever_session([rig.lever(LIMIT)]).__enter__()
    process.kill()
    process.wait()
    fates = {result.fate for result in restore(rig.state)}
    assert fates <= {RestoreStatus.RESTORED}, "nothing where the guardian was quicker"
    assert rig.limit_w() == 150


SLEEPER_IN_CONTAINER = f"""
import time
from wattloop.control.session import lever_session as hold
from wattloop.control.registry import find_levers, lever_named
from wattloop.hardware.host import Host
levers = find_levers(Host.from_environment())
with hold([lever_named(levers, "{LIMIT}")]) as held:
    held.set({{"{LIMIT}": 90.0}})
    print("ready", flush=True)
    time.sleep(60)
"""


LOCKER = """
import fcntl, os, sys, time
os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
files = []
for path in sys.argv[2:]:
    try:
        files.append(open(path, "r" if path.endswith(".journal") else "a+"))
        fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        print(type(error).__name__, end=" ")
print("locked", flush=True)
time.sleep(60)
"""
STRANGER = 12345


@pytest.fixture
def lockers() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Return processes that lock files as a user, and the files that each failed to lock."""
    with ExitStack() as running:

        def start(uid: int, *paths: Path) -> tuple[subprocess.Popen[str], str]:
            words = [sys.executable, "-c", LOCKER, str(uid), *map(str, paths)]
            process = running.enter_context(
                subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            )
            running.callback(process.kill)
            assert process.stdout is not None
            return process, process.stdout.readline()

        yield start


def lock_names(device: str, place: Path) -> list[Path]:
    """Return every name under which another user could lock a device."""
    current = lock_path(device, place)
    legacy = current.with_name(current.name.replace(f".{os.geteuid()}.lock", ".lock"))
    names = [lock_path(device, place, uid) for uid in (os.geteuid(), STRANGER)]
    return [legacy, *names, lock_path(device, place, number=1)]


def test_lock_file_is_for_its_user_only(place: Path) -> None:
    """A user who can open a file can lock it."""
    DeviceLock.take("cpu", place, Owner.this_process()).release()
    assert lock_path("cpu", place).stat().st_mode & 0o777 == 0o600


@as_root
@pytest.mark.parametrize("first", ["stranger", "root"])
def test_user_without_rights_cannot_hold_a_device(
    rig: Rig, place: Path, lockers: Callable[..., Any], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sticky folder, by any name of a lock, before or after root has used the device."""
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(place))
    lever = rig.lever(LIMIT)
    if first == "root":
        with lever_session([lever], guardian=False):
            pass
    _, answer = lockers(STRANGER, *lock_names(lever.device, place))
    assert answer == ("PermissionError locked\n" if first == "root" else "locked\n")
    with lever_session([lever], guardian=False) as held:
        held.set({LIMIT: 90.0})
        assert rig.limit_w() == 90
        with pytest.raises(DeviceBusy, match="already held by this process"):
            DeviceLock.take(lever.device, place, Owner.this_process())
    assert rig.limit_w() == 150


@as_root
def test_user_without_rights_cannot_take_the_names_of_another(
    place: Path, lockers: Callable[..., Any]
) -> None:
    """A user who may not remove the other's file uses the next name."""
    lockers(STRANGER, lock_path("cpu", place, NOBODY_UID), lock_path("cpu", place, NOBODY_UID, 1))

    def twice() -> str:
        DeviceLock.take("cpu", place, Owner.this_process())
        try:
            DeviceLock.take("cpu", place, Owner.this_process())
        except DeviceBusy as error:
            return str(error)
        return "both"

    assert "already held by this process" in run_without_rights(twice)


@as_root
def test_user_who_may_set_the_device_is_named_by_the_kernel(
    rig: Rig, place: Path, lockers: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file's text is not used; the message has the running time and how to end the
    process.
    """
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(place))
    lever = rig.lever(LIMIT)
    os.chown(rig.package / "constraint_0_power_limit_uw", STRANGER, STRANGER)
    process, _ = lockers(STRANGER, lock_path(lever.device, place, STRANGER))
    with pytest.raises(DeviceBusy) as refused:
        lever_session([lever], guardian=False).__enter__()
    said = str(refused.value)
    assert f"is held by process {process.pid} (" in said
    assert "which runs for" in said
    assert f"'sudo kill {process.pid}'" in said
    process.kill()
    process.wait()
    with lever_session([lever], guardian=False):
        pass


@as_root
def test_lock_of_root_counts_for_every_user(place: Path) -> None:
    """Other users cannot open root's lock file, but the kernel reports its lock."""
    lock = DeviceLock.take("cpu", place, Owner.this_process())
    answer = run_without_rights(lambda: DeviceLock.take("cpu", place, Owner.this_process()))
    assert answer.startswith(f"DeviceBusy: cpu is held by process {os.getpid()} (")
    lock.release()
    assert "DeviceLock" in run_without_rights(
        lambda: DeviceLock.take("cpu", place, Owner.this_process())
    )


@as_root
def test_stranger_who_locks_a_leftover_journal_does_not_stop_its_restore(
    rig: Rig, place: Path, lockers: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its owner has ended, every user can read it, and so lock it."""
    rig.extra["WATTLOOP_STATE_DIR"] = str(place)
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(place))
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    (journal,) = place.glob("*.journal")
    _, answer = lockers(STRANGER, journal)
    assert answer == "locked\n"
    assert {result.fate for result in restore(place, patience_s=0.1)} == {RestoreStatus.RESTORED}
    assert rig.limit_w() == 150
    assert list(place.glob("*.journal")) == []


def test_removed_lock_file_does_not_give_a_device_away(rig: Rig) -> None:
    """Its owner is running and has its journal locked: the device is in use."""
    owner = rig.start(SLEEPER)
    for lock in rig.state.glob("*.lock"):
        lock.unlink()
    with pytest.raises(LeverError, match=f"held by process {owner.pid}"):
        lever_session([rig.lever(LIMIT)], guardian=False).__enter__()
    assert rig.limit_w() == 90
