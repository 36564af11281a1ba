"""State directory of levers: locks and journals, shared by all users of the machine.

The second copy of each journal is in another directory: clearing one of them leaves the other.
"""

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from wattloop.core.errors import LeverError
from wattloop.core.paths import user_path

STATE_VARIABLE = "WATTLOOP_STATE_DIR"
DEFAULT_PLACE = Path("/var/tmp/wattloop-control")
"""Survives a reboot, is the same for every user, and can be created by any user.

/var/lib would need root to prepare it, and two places would mean two locks for one device.
"""

EVERYBODY = 0o1777
COPY_VARIABLE = "WATTLOOP_STATE_COPY_DIR"
ROOT_COPIES = Path("/var/lib/wattloop/levers")
USER_COPIES = "/tmp/wattloop-levers-{uid}"
"""Not in the home: machines may share it, and values of levers belong to one machine."""


def state_directory(directory: Path | None = None, *, create: bool = True) -> Path:
    """Return the given directory, that of `WATTLOOP_STATE_DIR`, or the machine's."""
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


def copy_directories(place: Path, uid: int | None = None) -> list[Path]:
    """Return directories for second copies of a user's journals, the preferred one first."""
    uid = os.geteuid() if uid is None else uid
    key = hashlib.sha256(os.fsencode(place)).hexdigest()[:12]
    named = os.environ.get(COPY_VARIABLE)
    if named:
        return [user_path(named).absolute() / key]
    roots = [ROOT_COPIES] if uid == 0 else []
    return [root / key for root in (*roots, Path(USER_COPIES.format(uid=uid)))]


def make_copy_directory(path: Path) -> None:
    """Create one of `copy_directories`. Raises OSError if others could replace files there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    for folder in (path.parent, path):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(13, f"{folder} is not a directory of this user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(13, f"other users may write to {folder}")


def fsync_directory(path: Path) -> None:
    """Make names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o777, parents=True)
    # Another user may have created a link there to redirect our writes.
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
