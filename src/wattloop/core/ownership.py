"""Trust in files that the user did not name: only this user or root can have written them.

Another user can leave a file in a folder above the working directory, or in a home that `sudo`
kept. Root obeys only files of its own.
"""

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

_said: set[str] = set()


def is_trusted(path: Path, remedy: str = "copy it to a file of your own") -> bool:
    """Return True if a file that was found may be used; warn once, with the reason, if not.

    Args:
        path: a file that exists.
        remedy: what to do where it belongs to another user.
    """
    reason = distrust(path, remedy)
    if reason and reason not in _said:
        _said.add(reason)
        if sys.stderr is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"wattloop: {reason}\n")
    return not reason


def distrust(
    path: Path,
    remedy: str = "copy it to a file of your own",
    status: os.stat_result | None = None,
) -> str:
    """Return why a file is not to be used, and the remedy; empty if only this user or root wrote
    it.

    Args:
        path: the file.
        remedy: what to do where it belongs to another user.
        status: of the file that was opened under this name.
    """
    try:
        status = status or path.stat()
        # another user's link chooses the file, and that file may be ours
        owners = {path.lstat().st_uid, status.st_uid}
    except OSError as error:
        return f"{_printable(path)} is ignored: it cannot be looked at ({error.strerror})"
    strangers = owners - {0, os.geteuid()}  # for root that is root alone
    if strangers:
        whose = _user(min(strangers))
        if os.geteuid() == 0:
            whose += ", and root uses only files of its own"
        return f"{_printable(path)} is ignored: it belongs to {whose}; {remedy}"
    shared = status.st_mode & stat.S_IWGRP and not _is_private_group(status)
    if shared or status.st_mode & stat.S_IWOTH:
        name = _printable(path)
        return f"{name} is ignored: other users may write it; 'chmod go-w {name}' makes it yours"
    return ""


def _is_private_group(status: os.stat_result) -> bool:
    """Return True if the file's group has only its owner, as many systems set it up (umask 002)."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    own = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return own and set(group.gr_mem) <= {owner.pw_name}


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _printable(path: Path) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(path))
