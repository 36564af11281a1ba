"""Files that hold a lock: closed in forked children, which must not keep it alive."""

import fcntl
import os
import time
from pathlib import Path

__all__ = ["close_private", "is_locked", "keep_private", "try_lock"]

_private: set[int] = set()


def keep_private(descriptor: int) -> int:
    """From now on this descriptor is closed in children, whether they fork or execute."""
    os.set_inheritable(descriptor, False)
    _private.add(descriptor)
    return descriptor


def close_private(descriptor: int) -> None:
    """Close it, unless a fork already has."""
    if descriptor in _private:
        _private.discard(descriptor)
        os.close(descriptor)


def try_lock(descriptor: int, wait_s: float = 0.0) -> bool:
    """Take the exclusive `flock`, waiting at most so long; the kernel drops it when we die."""
    return _locked(descriptor, fcntl.LOCK_EX, wait_s)


def is_locked(path: Path, wait_s: float = 0.0) -> bool:
    """Whether somebody has the lock of a file and keeps it for so long; no if the file is gone.

    Whoever may read the file may ask.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH, wait_s)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, how: int, wait_s: float) -> bool:
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(0.005)


def _close_in_child() -> None:
    # Closing is not unlocking: the parent's own descriptor keeps the lock.
    for descriptor in list(_private):
        os.close(descriptor)
    _private.clear()


os.register_at_fork(after_in_child=_close_in_child)
