"""Device locks: one process at a time sets a device, and others can see which one."""

import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.control.lever import Lever
from wattloop.core.errors import DeviceBusy, LeverError
from wattloop.core.files import (
    CLOSE_ON_EXEC,
    NO_FOLLOW,
    NO_WAIT,
    is_locked,
    try_lock,
    unlock,
    unlock_and_close,
    user_id,
    user_name,
)
from wattloop.core.units import format_duration
from wattloop.hardware.host import Host

_private: set[int] = set()


def keep_private(descriptor: int) -> int:
    """Close this descriptor in children from now on, whether they fork or execute."""
    os.set_inheritable(descriptor, False)
    _private.add(descriptor)
    return descriptor


def close_private(descriptor: int) -> None:
    """Close the descriptor, unless a fork already has."""
    if descriptor in _private:
        _private.discard(descriptor)
        unlock_and_close(descriptor)


def _close_in_child() -> None:
    # Closing is not unlocking: the parent's own descriptor keeps the lock.
    for descriptor in list(_private):
        os.close(descriptor)
    _private.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


PROC = Path("/proc")
"""Process numbers belong to this namespace, whatever WATTLOOP_PROCFS_ROOT says."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, distinguished from a later one with the same number by its start time.

    Attributes:
        started: clock ticks after boot at which it started.
        since: seconds since 1970 at which it acquired the lock.
        namespace: of its number; in another container the same number is another process.
    """

    pid: int
    started: int
    boot_id: str
    command: str
    user: str
    since: float
    namespace: str = ""

    @classmethod
    def this_process(cls) -> "Owner":
        pid = os.getpid()
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])[:120]
        user = user_name(user_id())
        return cls(pid, _started(pid), Host().boot_id, command, user, time.time(), _namespace())

    @classmethod
    def from_dict(cls, data: Any) -> "Owner | None":
        """Convert back from `to_dict`; None for anything else."""
        try:
            return cls(
                int(data["pid"]),
                int(data["started"]),
                str(data["boot_id"]),
                _printable(data["command"]),
                _printable(data["user"]),
                float(data["since"]),
                str(data.get("namespace", "")),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Return True if the process still runs. A zombie does not: its locks are released.

        A process of another container cannot be checked and counts as alive: its lock decides.
        """
        if self.boot_id != Host().boot_id:
            return False
        return self._elsewhere or _started(self.pid) == self.started

    def __str__(self) -> str:
        where = " in another container" if self._elsewhere else ""
        return f"process {self.pid} ({self.command}) of {self.user}{where}, since {self._since()}"

    @property
    def _elsewhere(self) -> bool:
        return self.namespace not in ("", _namespace())

    def _since(self) -> str:
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        except (OverflowError, OSError, ValueError):
            return "an unknown time"


def _started(pid: int) -> int:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _namespace() -> str:
    """Return the namespace of process numbers; empty where the kernel does not provide it."""
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _printable(text: Any) -> str:
    """Return printable text: any user can write a lock file, and its content reaches a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))[:200]


def process_command(pid: int) -> str:
    """Return the command of a process for people, shortened; a process may choose any name."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()[:400]
    except OSError:
        return ""
    words = data.decode(errors="replace").split("\0")
    return _printable(" ".join([Path(words[0]).name, *words[1:]]).strip()[:120])


def group_ids(uid: int) -> frozenset[int]:
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()


class LockHolder(NamedTuple):
    """A process that holds the lock of a file.

    Attributes:
        for_s: how long it has been running; it has the lock for no longer.
    """

    pid: int
    user: str
    uid: int
    command: str
    for_s: float

    def __str__(self) -> str:
        return (
            f"process {self.pid} ({self.command}) of {self.user}, which runs for "
            f"{format_duration(self.for_s)}"
        )


def lock_holder(path: Path) -> LockHolder | None:
    """Return the holder of a file's `flock`; None when unlocked, or locked in another container."""
    try:
        file = path.stat()
        lines = (PROC / "locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        words = line.split()
        # a line with an arrow is of a process that waits for it
        if len(words) < 6 or words[1] != "FLOCK" or not words[4].isdigit():
            continue
        if words[5].rpartition(":")[2] == str(file.st_ino):
            found = _process(int(words[4]), path)
            if found is not None:
                return found
    return None


def _process(pid: int, path: Path) -> LockHolder | None:
    """Return the process, if it exists and has this very file open, as far as this user may see."""
    place = PROC / str(pid)
    try:
        uid = place.stat().st_uid
        ticks = float((place / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    if not _has_open(place, path):
        return None
    for_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return LockHolder(pid, user_name(uid), uid, process_command(pid) or "?", max(for_s, 0.0))


def _has_open(place: Path, path: Path) -> bool:
    """Return False only if it is certain: an inode number is unique on one file system only."""
    try:
        links = list((place / "fd").iterdir())
    except OSError:
        return True  # another user's process: not readable
    for link in links:
        with suppress(OSError):
            if link.samefile(path):
                return True
    return False


# Device locks: one process at a time sets a device.
#
# Each user has a lock file per device that no other user can open, since opening is enough to lock.
# Before a lock is valid, the lock files of the other users are checked. Root's counts for everyone;
# that of another user only if that user may set the device. So a user without rights on a device
# cannot keep others from setting it.

SAFELY = CLOSE_ON_EXEC | NO_FOLLOW | NO_WAIT
MOST_B = 4_096
"""Limit of a lock file's size; the description of an owner is shorter."""

NAMES = 32
"""Number of names to try for a lock file, where other users occupy the first ones."""

Counts = Callable[[int], bool]


class DeviceLock:
    """A lock that is held until `release`, or until this process ends for any reason.

    The file stays; what counts is the kernel's lock on it. Its content names the owner for
    other processes of the same user. A forked child does not hold it.
    """

    def __init__(self, device: str, descriptor: int) -> None:
        self.device = device
        self._descriptor = descriptor

    @classmethod
    def take(
        cls,
        device: str,
        directory: Path,
        owner: Owner,
        wait_s: float = 0.0,
        counts: Counts = lambda uid: False,
    ) -> "DeviceLock":
        """Acquire the lock of `device`. Raises DeviceBusy, naming its holder.

        `counts` decides which locks of users other than root count: see `may_set`.
        """
        give_up_s = time.monotonic() + wait_s
        path, descriptor = _opened(device, directory)
        keep_private(descriptor)
        while True:
            if not try_lock(descriptor, max(0.0, give_up_s - time.monotonic())):
                rival: Path | None = path
            else:
                rival = _rival(device, path, lambda uid: uid in (0, user_id()) or counts(uid))
            if rival is None:
                break
            if time.monotonic() >= give_up_s:
                close_private(descriptor)
                raise DeviceBusy(_busy(device, rival))
            unlock(descriptor)  # the other process may be waiting for ours
            time.sleep(0.01)
        data = json.dumps(owner.to_dict()).encode()
        with suppress(OSError):  # a full disk only hides the owner's name; the lock is held
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)
        return cls(device, descriptor)

    def release(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        close_private(self._descriptor)


def may_set(levers: Iterable[Lever]) -> Counts:
    """Return True if a user who is not root may set one of these levers, by the rights on its file.

    A lever that is not a file is set through a driver, which lets only root do so.
    """
    files = [Path(lever.state().source) for lever in levers]

    def allowed(uid: int) -> bool:
        return any(_may_write(file, uid) for file in files if file.is_absolute())

    return allowed


def lock_path(device: str, directory: Path, uid: int | None = None, number: int = 0) -> Path:
    uid = user_id() if uid is None else uid
    return directory / f"{_stem(device)}.{uid}{f'.{number}' if number else ''}.lock"


def holder(device: str, directory: Path) -> Owner | None:
    return _owner_in(lock_path(device, directory))


def _stem(device: str) -> str:
    readable = re.sub(r"[^\w.-]+", "-", device)[:60].strip("-")
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:8]}"


def _owner_in(path: Path) -> Owner | None:
    try:
        # a pipe that another user created there would block
        descriptor = os.open(path, os.O_RDONLY | SAFELY)
    except OSError:
        return None
    try:
        return Owner.from_dict(json.loads(os.read(descriptor, MOST_B)))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _opened(device: str, directory: Path) -> tuple[Path, int]:
    """Open this user's lock file: the first of its names that no other user occupies."""
    fault = "other users have taken all its names"
    for number in range(NAMES):
        path = lock_path(device, directory, number=number)
        for _ in range(3):
            try:
                descriptor = _own(path)
            except FileNotFoundError as error:  # removed again, or the directory does not exist
                fault = str(error.strerror)
                continue
            except OSError as error:
                if not _belongs_to_another(path):
                    message = f"{path} cannot be opened to lock the device: {error.strerror}"
                    raise LeverError(message) from None
                fault = str(error.strerror)
                break
            if descriptor is not None:
                return path, descriptor
            if user_id() != 0:
                break
            with suppress(OSError):
                path.unlink()
    path = lock_path(device, directory)
    raise LeverError(f"{path} cannot be opened to lock the device: {fault}; 'sudo rm {path}'")


def _own(path: Path) -> int | None:
    """Open or create the file; None for a file of another user."""
    # Not O_CREAT alone: in a world-writable directory the kernel refuses that for files of others.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o600)
    except FileExistsError:
        if not stat.S_ISREG(path.lstat().st_mode) or _belongs_to_another(path):
            return None
        descriptor = os.open(path, os.O_RDWR | SAFELY)
    status = os.fstat(descriptor)
    if status.st_uid != user_id() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    os.fchmod(descriptor, 0o600)
    return descriptor


def _belongs_to_another(path: Path) -> bool:
    try:
        return path.lstat().st_uid != user_id()
    except OSError:
        return False


def _rival(device: str, own: Path, counts: Counts) -> Path | None:
    """Return another user's lock file that is locked and counts, also one of an earlier version."""
    for path in sorted(own.parent.glob(f"{_stem(device)}.*lock")):
        if path == own:
            continue
        try:
            status = path.lstat()
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        process = lock_holder(path)
        if process is not None:
            if process.pid != os.getpid() and counts(process.uid):
                return path
        # a process of another container: a file that any user may lock does not identify it
        elif status.st_mode & 0o077 == 0 and counts(status.st_uid) and is_locked(path):
            return path
    return None


def _may_write(file: Path, uid: int) -> bool:
    try:
        status = file.stat()
    except OSError:
        return False
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IWUSR)
    if status.st_gid in group_ids(uid):
        return bool(status.st_mode & stat.S_IWGRP)
    return bool(status.st_mode & stat.S_IWOTH)


def _busy(device: str, path: Path) -> str:
    said = _held(device, path)
    if device.startswith("virtual:"):
        said += "; or have virtual GPUs of your own: name another file in WATTLOOP_VIRTUAL_STATE"
    return said


def _held(device: str, path: Path) -> str:
    owner = _owner_in(path)
    real = lock_holder(path)
    if real is not None and real.pid == os.getpid():
        return f"{device} is already held by this process; use the hold that it has"
    if real is not None and (owner is None or owner.pid != real.pid):
        return f"{device} is held by {real}; {_remedy(real)}"
    if owner is None:
        return f"{device} is held by another process; try again when it has ended"
    if owner.pid == os.getpid() and owner.alive:
        return f"{device} is already held by this process; use the hold that it has"
    if not owner.alive:
        return (
            f"{device} was held by {owner}, which has ended, but a process that it started still "
            "holds its files; end that one"
        )
    remedy = "wait until it has ended" if real is None else _remedy(real)
    return f"{device} is held by {owner}; {remedy}"


def _remedy(real: LockHolder) -> str:
    if real.uid in (0, user_id()):
        return "wait until it has ended"
    return f"wait until it has ended, or have an administrator end it ('sudo kill {real.pid}')"
