"""Trusted files: configuration for root that only root or the daemon's user can have written."""

import os
import stat
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.files import CLOSE_ON_EXEC, NO_FOLLOW, NO_WAIT, user_id, user_name

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_B = 1 << 20


def read_trusted(path: Path) -> str:
    """Read a file of root or of this user, in folders of root or of this user; links are refused.

    Raises:
        FileNotFoundError: it does not exist.
        ConfigError: another user could have written it, or it cannot be read.
    """
    path = path.absolute()
    try:
        # a pipe would block, a link would lead elsewhere
        flags = os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        link = path.is_symlink()
        reason = "is a symbolic link; name the file itself" if link else str(error.strerror)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_B:
            raise ConfigError(f"{path}: not a file of at most {MOST_B >> 20} MiB")
        _check(path, status)
        check_folder(path.parent)
        return os.pread(descriptor, MOST_B, 0).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error.reason}") from None
    finally:
        os.close(descriptor)


def check_folder(folder: Path) -> None:
    """Raise ConfigError, with the remedy, if other users can replace files there."""
    real = folder.resolve()
    # also the folder of a link: its owner chooses the target
    for place in dict.fromkeys((real, *real.parents, *folder.absolute().parents)):
        try:
            status = place.stat()
        except OSError as error:
            raise ConfigError(f"{place}: cannot be looked at: {error.strerror}") from None
        # in a sticky folder other users cannot rename or remove our files
        _check(place, status, shared=bool(status.st_mode & stat.S_ISVTX))


def _check(path: Path, status: os.stat_result, *, shared: bool = False) -> None:
    if status.st_uid not in (0, user_id()):
        owner = user_name(status.st_uid)
        raise ConfigError(f"{path}: belongs to {owner}, not to root; 'sudo chown root {path}'")
    if status.st_mode & OTHERS_WRITE and not shared:
        raise ConfigError(f"{path}: others may write it; 'sudo chmod go-w {path}'")
