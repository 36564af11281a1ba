"""The daemon's sockets: made safely, one daemon at a time, gone when the daemon goes."""

import os
import re
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wattloop.control.daemon.protocol import trusted_path
from wattloop.control.daemon.trusted_file import check_folder
from wattloop.control.descriptors import close_private, keep_private, try_lock
from wattloop.core.errors import ConfigError

__all__ = ["Listener"]

LONGEST_PATH_B = 100
"""The kernel takes 107 bytes, and the new socket has a longer name for a moment."""
BACKLOG = 256


class Listener:
    """Listening Unix sockets: one of the given mode and group, and one per trusted user and group.

    A crowd of clients fills the kernel's queue of a socket, and then no other client gets in. So
    each user and group that the rules trust has a socket of its own (`protocol.trusted_path`),
    which no others can open.

    It is made under another name, with its rights, and then takes its place at once: nobody
    connects to one half made, and a dead one is replaced. A link or any other file there is left
    alone, and is an error.

    Raises:
        ConfigError: another daemon listens, or the place cannot be used.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        gid: int | None,
        trusted_uids: Iterable[int] = (),
        trusted_gids: Iterable[int] = (),
    ) -> None:
        self.path = path
        self.trusted: list[socket.socket] = []
        self._trusted_paths: list[Path] = []
        self._wanted: list[tuple[int, int, int]] = []
        if len(os.fsencode(path)) > LONGEST_PATH_B:
            raise ConfigError(f"{path}: too long for a socket; at most {LONGEST_PATH_B} bytes")
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            check_folder(path.parent)
            _check_free(path)
            self._lock = self._locked()
        except OSError as error:
            raise ConfigError(f"{path}: cannot listen there: {error.strerror}") from None
        try:
            self.socket, self._identity = _bound(path, mode, gid)
        except OSError as error:
            close_private(self._lock)
            raise ConfigError(f"{path}: cannot listen there: {error.strerror}") from None
        self.trust(trusted_uids, trusted_gids)

    def trust(self, uids: Iterable[int], gids: Iterable[int]) -> None:
        """Listen for these users and groups, and for our own user, apart from the others."""
        wanted = [(uid, -1, 0o600) for uid in sorted({os.geteuid(), *uids})]
        wanted += [(-1, gid, 0o660) for gid in sorted(set(gids))]
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._close_trusted()
        for stale in trusted_sockets(self.path):  # of a daemon that was killed
            with suppress(OSError):
                stale.unlink()
        for uid, gid, mode in wanted:
            path = trusted_path(self.path, uid=uid, gid=gid)
            # only root gives files away, and a name can be too long: they use the common socket
            with suppress(OSError):
                self.trusted.append(_bound(path, mode, gid, uid)[0])
                self._trusted_paths.append(path)

    def _close_trusted(self) -> None:
        for path in self._trusted_paths:
            with suppress(OSError):
                path.unlink()
        for line in self.trusted:
            line.close()
        self.trusted, self._trusted_paths = [], []

    def close(self) -> None:
        """Stop listening, and take the socket away unless it is another daemon's by now."""
        with suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()
                self._close_trusted()
        for line in (self.socket, *self.trusted):
            line.close()
        close_private(self._lock)

    def _locked(self) -> int:
        path = self.path.with_name(self.path.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = keep_private(os.open(path, flags, 0o600))
        if not try_lock(descriptor):
            close_private(descriptor)
            raise ConfigError(f"{self.path}: another control daemon listens there; stop it first")
        return descriptor


def _check_free(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path}: is there already and no socket; move it away")


def trusted_sockets(path: Path) -> list[Path]:
    """Those that are there."""
    pattern = re.compile(re.escape(path.name) + r"\.[ug]\d+(\.new)?")
    try:
        return [found for found in path.parent.iterdir() if pattern.fullmatch(found.name)]
    except OSError:
        return []


def _bound(
    path: Path, mode: int, gid: int | None, uid: int = -1
) -> tuple[socket.socket, tuple[int, int]]:
    fresh = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)  # nobody connects before it has its mode and group
        try:
            line.bind(str(fresh))
        finally:
            os.umask(before)
        if gid is not None:
            os.chown(fresh, uid, gid, follow_symlinks=False)
        os.chmod(fresh, mode)  # noqa: PTH101 - beside chown, which pathlib has not
        line.listen(BACKLOG)
        line.setblocking(False)
        identity = _identity(fresh)
        fresh.rename(path)
    except OSError:
        line.close()
        with suppress(OSError):
            fresh.unlink()
        raise
    return line, identity


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
