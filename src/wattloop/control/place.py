"""Where locks and journals of levers are: one place for all users of the machine."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from wattloop.core.errors import LeverError
from wattloop.core.user_path import user_path

__all__ = ["DEFAULT_PLACE", "STATE_VARIABLE", "fsync_directory", "state_directory"]

STATE_VARIABLE = "WATTLOOP_STATE_DIR"
DEFAULT_PLACE = Path("/var/tmp/wattloop-control")
"""Survives a reboot, is the same for every user, and can be made by whoever comes first.

/var/lib would need root to prepare it, and two places would mean two locks for one device.
"""
EVERYBODY = 0o1777


def state_directory(directory: Path | None = None, *, create: bool = True) -> Path:
    """The directory given, the one `WATTLOOP_STATE_DIR` names, or the machine's.

    Raises:
        LeverError: it cannot be made or used; without it nothing may be set.
    """
    named = os.environ.get(STATE_VARIABLE)
    path = directory or (user_path(named) if named else DEFAULT_PLACE)
    if create:
        try:
            _make(path)
        except OSError as error:
            raise LeverError(
                f"{path}: journals of levers cannot be kept there ({error.strerror}), so nothing "
                f"is set; name a writable directory with {STATE_VARIABLE}"
            ) from None
    return path.absolute()


def fsync_directory(path: Path) -> None:
    """Make names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o777, parents=True)
    # Somebody else may have put a link there to make us write elsewhere.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if path == DEFAULT_PLACE and os.geteuid() in (0, found.st_uid):
            if os.geteuid() == 0 and found.st_uid != 0:
                os.fchown(descriptor, 0, 0)
            if stat.S_IMODE(found.st_mode) != EVERYBODY:
                os.fchmod(descriptor, EVERYBODY)
    finally:
        os.close(descriptor)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(13, "not writable for this user")
