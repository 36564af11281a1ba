"""One process at a time sets a device.

Each user has a lock file of their own per device, which no other user can open: opening is all
that it takes to lock. Before a lock counts, the lock files of the other users are looked at. Root's
counts for everyone; that of another user only if that user may set the device. So a user without
rights on a device cannot keep others from setting it.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from wattloop.control.descriptors import close_private, is_locked, keep_private, try_lock
from wattloop.control.lever import Lever
from wattloop.control.lock_holder import LockHolder, lock_holder
from wattloop.control.owner import Owner, group_ids
from wattloop.core.errors import DeviceBusy, LeverError

__all__ = ["DeviceLock", "may_set"]

SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
MOST_B = 4_096
"""An owner is described in less."""
NAMES = 32
"""Names to try for a lock file of ours, where other users have taken the first ones."""

Counts = Callable[[int], bool]


class DeviceLock:
    """Held until `release`, or until this process ends in whatever way.

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
        """The lock of `device`.

        Args:
            device: as in `Lever.device`.
            directory: where locks are.
            owner: this process.
            wait_s: how long to wait for it.
            counts: whether the lock of another user, who is not root, is one: see `may_set`.

        Raises:
            DeviceBusy: another process has it; the message names it.
        """
        give_up_s = time.monotonic() + wait_s
        path, descriptor = _opened(device, directory)
        keep_private(descriptor)
        while True:
            if not try_lock(descriptor, max(0.0, give_up_s - time.monotonic())):
                rival: Path | None = path
            else:
                rival = _rival(device, path, lambda uid: uid in (0, os.geteuid()) or counts(uid))
            if rival is None:
                break
            if time.monotonic() >= give_up_s:
                close_private(descriptor)
                raise DeviceBusy(_busy(device, rival))
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # the other one may be waiting for ours
            time.sleep(0.01)
        data = json.dumps(owner.to_dict()).encode()
        with suppress(OSError):  # a full disk costs others our name, not us the lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)
        return cls(device, descriptor)

    def release(self) -> None:
        """Let others have it."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        close_private(self._descriptor)


def may_set(levers: Iterable[Lever]) -> Counts:
    """Whether a user who is not root may set one of these levers, by the rights on its file.

    A lever that is not a file is set through a driver, which lets only root do so.
    """
    files = [Path(lever.state().source) for lever in levers]

    def allowed(uid: int) -> bool:
        return any(_may_write(file, uid) for file in files if file.is_absolute())

    return allowed


def lock_path(device: str, directory: Path, uid: int | None = None, number: int = 0) -> Path:
    """The lock file of a device and a user."""
    uid = os.geteuid() if uid is None else uid
    return directory / f"{_stem(device)}.{uid}{f'.{number}' if number else ''}.lock"


def holder(device: str, directory: Path) -> Owner | None:
    """Which process of this user says to hold it; None when none does."""
    return _owner_in(lock_path(device, directory))


def _stem(device: str) -> str:
    readable = re.sub(r"[^\w.-]+", "-", device)[:60].strip("-")
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:8]}"


def _owner_in(path: Path) -> Owner | None:
    try:
        # a pipe that another user put there would keep us waiting
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
    """A lock file of ours: the first of its names that no other user has taken."""
    fault = "other users have taken all its names"
    for number in range(NAMES):
        path = lock_path(device, directory, number=number)
        for _ in range(3):
            try:
                descriptor = _own(path)
            except FileNotFoundError as error:  # removed again, or there is no directory
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
            if os.geteuid() != 0:
                break
            with suppress(OSError):
                path.unlink()
    path = lock_path(device, directory)
    raise LeverError(f"{path} cannot be opened to lock the device: {fault}; 'sudo rm {path}'")


def _own(path: Path) -> int | None:
    """Opened, made if need be; None for what is not a file of ours."""
    # Not O_CREAT alone: in a directory for everybody the kernel refuses that for files of others.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o600)
    except FileExistsError:
        if not stat.S_ISREG(path.lstat().st_mode) or _belongs_to_another(path):
            return None
        descriptor = os.open(path, os.O_RDWR | SAFELY)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    os.fchmod(descriptor, 0o600)
    return descriptor


def _belongs_to_another(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def _rival(device: str, own: Path, counts: Counts) -> Path | None:
    """The locked lock file of another user whose lock counts; also that of earlier versions."""
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
        # a process of another container; what may be locked by anyone says nothing of its owner
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
    if real.uid in (0, os.geteuid()):
        return "wait until it has ended"
    return f"wait until it has ended, or have an administrator end it ('sudo kill {real.pid}')"
