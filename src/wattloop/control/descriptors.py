"""Files that hold a lock: closed in forked children, which must not keep it alive."""

import fcntl
import os
import time

__all__ = ["close_private", "keep_private", "try_lock"]

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
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
