"""Files and folders: XDG folders of this user, atomic writes, file locks, trust in files."""

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from wattloop.core.errors import ConfigError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows has none of these flags, and text files unless told otherwise.
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def user_id() -> int:
    """Return the number of the effective user; 0 on Windows, which has none."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def data_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_DATA_HOME/wattloop`: the store and its journals."""
    return _folder("XDG_DATA_HOME", ".local/share", environment)


def config_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_CONFIG_HOME/wattloop`: settings, GPU files, calibrations."""
    return _folder("XDG_CONFIG_HOME", ".config", environment)


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_STATE_HOME/wattloop`: what a service remembers between two starts."""
    return _folder("XDG_STATE_HOME", ".local/state", environment)


def cache_folder(name: str) -> Path:
    """Return `$XDG_CACHE_HOME/wattloop/NAME`: files that can be made again."""
    return _folder("XDG_CACHE_HOME", ".cache", None) / name


def runtime_folder() -> Path:
    """Return a folder of this user on this machine, never on a shared file system."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "wattloop"
    return (
        Path(os.environ.get("TMPDIR") or os.environ.get("TEMP") or "/tmp") / f"wattloop-{user_id()}"
    )


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    return Path((os.environ if environment is None else environment).get("HOME") or Path.home())


def user_path(text: str) -> Path:
    """Expand `~/runs.db` to a path. An unknown user (`~someone/x`) stays as written, so that
    opening the file reports it as missing.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users


def _folder(variable: str, usual: str, environment: Mapping[str, str] | None) -> Path:
    named = Path((os.environ if environment is None else environment).get(variable) or "")
    # the XDG specification: a relative path is invalid and ignored
    folder = named if named.is_absolute() else home_folder(environment) / usual
    return folder / "wattloop"


# Locks. A `flock` belongs to the open file: the kernel releases it when its holder ends, however
# that happens, and a forked child that closes its copy leaves the parent's lock alone. A program
# that another thread starts has a copy until it executes, so closing a file may not unlock it.
_RETRY_S = 0.005
_LOCKED_BYTE = 2**40


def try_lock(descriptor: int, wait_s: float | None = 0.0, *, shared: bool = False) -> bool:
    """Lock an open file, waiting at most `wait_s` (None: as long as it takes); False if another
    process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    give_up_s = None if wait_s is None else time.monotonic() + wait_s
    while not _try_once(descriptor, shared=shared, wait=wait_s is None):
        if give_up_s is not None and time.monotonic() >= give_up_s:
            return False
        time.sleep(_RETRY_S)
    return True


def unlock(descriptor: int) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def unlock_and_close(descriptor: int) -> None:
    with suppress(OSError):  # it is not locked, or its file system has no locks
        unlock(descriptor)
    os.close(descriptor)


def _try_once(descriptor: int, *, shared: bool, wait: bool) -> bool:
    if sys.platform == "win32":
        # Windows locks bytes, and others may not read a locked one: a byte beyond any content.
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK, errno.EAGAIN):
                return False
            raise
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
    else:
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            return False
    return True


def is_locked(path: str | Path, wait_s: float = 0.0) -> bool:
    """Return True if another process holds the lock of a file for the given time; False if the file
    is gone or may not be read.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, wait_s, shared=True)
    finally:
        unlock_and_close(descriptor)


def is_same_file(descriptor: int, path: str | Path) -> bool:
    """Return True if `path` still names the open file; False if it was removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))  # noqa: PTH116 - path is a str or a Path
    except FileNotFoundError:
        return False


class FileLock:
    """An exclusive lock on a file, with a description of its holder.

    `with FileLock(path):` waits for the lock. To refuse instead, call `acquire` first:

        lock = FileLock(path)
        if not lock.acquire(owner=str(os.getpid())):
            raise ConfigError(f"{path}: process {lock.owner()} uses it")
        with lock:
            ...

    Args:
        path: the file; created with its folder.
        mode: permissions of a new file; those of a new folder are private if the file's are.
    """

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode
        self._descriptor = -1
        self._holder_pid = -1

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def acquire(self, wait_s: float | None = 0.0, owner: str = "") -> bool:
        """Lock the file and write `owner` into it; False if another process holds it.

        Raises:
            OSError: the file cannot be created, or its file system has no locks.
        """
        if self.held:
            return True
        folder_mode = 0o700 if self._mode & 0o077 == 0 else 0o777
        self.path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC | NO_FOLLOW
        while True:
            descriptor = os.open(self.path, flags, self._mode)
            try:
                if not self._mode & 0o077 and os.fstat(descriptor).st_mode & 0o077:
                    with suppress(OSError):  # of an earlier release: who can read it can lock it
                        os.fchmod(descriptor, self._mode)
                if not try_lock(descriptor, wait_s):
                    return False
                if is_same_file(descriptor, self.path):
                    self._descriptor, descriptor = descriptor, -1
                    self._holder_pid = os.getpid()
                    break  # else its last holder removed it between the two calls
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        if owner:
            self.describe(owner)
        return True

    def describe(self, owner: str) -> None:
        """Replace the description of the holder; a full disk only hides it."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, owner.encode())

    def owner(self) -> str:
        """Return the description of the present or last holder; empty where there is none."""
        try:
            return self.path.read_text("utf-8", "replace")
        except OSError:
            return ""

    def release(self, *, remove: bool = False) -> None:
        """Unlock the file. In a forked child this closes the copy, and the parent's lock stays."""
        if self.held:
            if remove:
                with suppress(PermissionError):  # Windows removes no open file
                    self.path.unlink(missing_ok=True)
            close = unlock_and_close if os.getpid() == self._holder_pid else os.close
            close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        self.acquire(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# Atomic writes. A reader sees the old content or the new one, also after a crash.
def atomic_write(
    path: Path, data: str | bytes, *, mode: int | None = None, durable: bool = False
) -> None:
    """Write a file whole or not at all, by renaming.

    Args:
        path: the file; its folder exists.
        data: bytes, or text in UTF-8.
        mode: its permissions, whatever the umask says; as usual for a new file unless given.
        durable: sync the file and its name to disk, so that they survive a power failure.

    Raises:
        OSError: it cannot be written; the earlier content stays.
    """
    with atomic_path(path, durable=durable) as temporary:
        # O_EXCL: in a folder of several users, another one may have put a link there
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | CLOSE_ON_EXEC
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            file.write(data.encode() if isinstance(data, str) else data)


def atomic_write_json(
    path: Path, data: Any, *, mode: int | None = None, durable: bool = False, **options: Any
) -> None:
    """Write `json.dumps(data, **options)` as `atomic_write` does."""
    import json

    atomic_write(path, json.dumps(data, **options) + "\n", mode=mode, durable=durable)


@contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path next to `path` for a program to write; it replaces `path` unless the block
    raises.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident():x}")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        if durable:
            _fsync(temporary, os.O_RDONLY)
        temporary.replace(path)
        if durable:
            fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync_directory(path: Path) -> None:
    """Make names in a directory survive a power failure; Windows cannot open a directory."""
    if hasattr(os, "O_DIRECTORY"):
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | CLOSE_ON_EXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Trust. Another user can leave a file in a folder above the working directory, or in a home that
# `sudo` kept. Root obeys only files of its own.
_warned: set[str] = set()


def is_trusted(path: Path, remedy: str = "copy it to a file of your own") -> bool:
    """Return True if a file that was found may be used; warn once, with the reason, if not.

    Args:
        path: a file that exists.
        remedy: what to do where it belongs to another user.
    """
    reason = distrust(path, remedy)
    if reason and reason not in _warned:
        _warned.add(reason)
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
    if not hasattr(os, "geteuid"):
        return ""  # Windows: permissions of folders keep other users out of a profile
    try:
        status = status or path.stat()
        # another user's link chooses the file, and that file may be ours
        owners = {path.lstat().st_uid, status.st_uid}
    except OSError as error:
        return f"{_printable(path)} is ignored: it cannot be looked at ({error.strerror})"
    strangers = owners - {0, os.geteuid()}  # for root that is root alone
    if strangers:
        whose = user_name(min(strangers))
        if os.geteuid() == 0:
            whose += ", and root uses only files of its own"
        return f"{_printable(path)} is ignored: it belongs to {whose}; {remedy}"
    shared = status.st_mode & stat.S_IWGRP and not _is_private_group(status)
    if shared or status.st_mode & stat.S_IWOTH:
        name = _printable(path)
        return f"{name} is ignored: other users may write it; 'chmod go-w {name}' makes it yours"
    return ""


def read_secret(name: str, option: str) -> str:
    """Return the first line of a file; of standard input for `-`.

    Raises:
        ConfigError: it cannot be read, is empty, or other users may read or write it.
    """
    try:
        if name == "-":
            text = sys.stdin.readline()
        else:
            path = user_path(name)
            shared = path.stat().st_mode & (stat.S_IWGRP | stat.S_IRWXO)
            if shared and hasattr(os, "geteuid"):
                raise ConfigError(
                    f"{option} {name}: others may read or write it; run 'chmod 600 {path}'"
                )
            text = path.read_text("utf-8").partition("\n")[0]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {name}: cannot be read: {reason}") from None
    if not text.strip():
        raise ConfigError(f"{option} {name}: is empty; write a secret of 20 characters or more")
    return text.strip()


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


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _printable(path: Path) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(path))
