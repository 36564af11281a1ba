"""One process at a time sets a device."""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from wattloop.control.descriptors import close_private, keep_private, try_lock
from wattloop.control.lock_holder import LockHolder, lock_holder
from wattloop.control.owner import Owner
from wattloop.control.place import STATE_VARIABLE
from wattloop.core.errors import DeviceBusy, LeverError

__all__ = ["DeviceLock"]

SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
MOST_B = 4_096
"""An owner is described in less."""


class DeviceLock:
    """Held until `release`, or until this process ends in whatever way.

    The file stays; what counts is the kernel's lock on it. Its content names the owner for
    others to read. A forked child does not hold it.
    """

    def __init__(self, device: str, descriptor: int) -> None:
        self.device = device
        self._descriptor = descriptor

    @classmethod
    def take(cls, device: str, directory: Path, owner: Owner, wait_s: float = 0.0) -> "DeviceLock":
        """The lock of `device`.

        Raises:
            DeviceBusy: another process has it; the message names it.
        """
        path = lock_path(device, directory)
        descriptor = keep_private(_opened(path))
        if not try_lock(descriptor, wait_s):
            close_private(descriptor)
            raise DeviceBusy(_busy(device, path))
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


def lock_path(device: str, directory: Path) -> Path:
    """A file name for any device."""
    readable = re.sub(r"[^\w.-]+", "-", device)[:60].strip("-")
    return directory / f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.lock"


def holder(device: str, directory: Path) -> Owner | None:
    """Who says to hold it; None when nobody does."""
    try:
        # a pipe that somebody put there would keep us waiting
        descriptor = os.open(lock_path(device, directory), os.O_RDONLY | SAFELY)
    except OSError:
        return None
    try:
        return Owner.from_dict(json.loads(os.read(descriptor, MOST_B)))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    # Not O_CREAT alone: in a directory for everybody the kernel refuses that for files of others.
    try:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | SAFELY)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask: others must be able to lock it
            return descriptor
        return os.open(path, os.O_RDWR | SAFELY)  # somebody else has just made it
    except OSError as error:
        raise LeverError(f"{path} cannot be opened to lock the device: {error.strerror}") from None


def _busy(device: str, path: Path) -> str:
    owner = holder(device, path.parent)
    real = lock_holder(path)
    if real is not None and real.pid == os.getpid():
        return f"{device} is already held by this process; use the hold that it has"
    if real is not None and (owner is None or owner.pid != real.pid):
        return f"{device} is held by {real}; {_remedy(real, path)}"
    if owner is None:
        return f"{device} is held by another process; try again when it has ended"
    if owner.pid == os.getpid() and owner.alive:
        return f"{device} is already held by this process; use the hold that it has"
    if not owner.alive:
        return (
            f"{device} was held by {owner}, which has ended, but a process that it started still "
            "holds its files; end that one"
        )
    remedy = "wait until it has ended" if real is None else _remedy(real, path)
    return f"{device} is held by {owner}; {remedy}"


def _remedy(real: LockHolder, path: Path) -> str:
    """What to do: any user may hold a lock in a directory for everybody."""
    if real.uid in (0, os.geteuid()):
        return "wait until it has ended"
    return (
        f"wait until it has ended, or have an administrator end it ('sudo kill {real.pid}'); where "
        f"users are not to block each other, let {STATE_VARIABLE} name a directory of root's "
        f"instead of {path.parent}"
    )
