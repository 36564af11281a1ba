"""Access tokens by role and node; the file holds only their hashes."""

import hashlib
import json
import logging
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.files import FileLock, atomic_write_json
from wattloop.fleet.delivery.client import NODE_NAME


class Role(StrEnum):
    """Purpose of a token."""

    NODE = "node"
    """Writes runs and status of one node, and reads nothing."""
    READER = "reader"
    """Reads everything."""
    WRITER = "writer"
    """Reads everything, and writes runs of machines that are no node."""
    SCHEDULER = "scheduler"
    """Reads everything: power of the fleet, predictions, jobs."""
    ADMIN = "admin"
    """The server's own `--token`: everything."""
    ANYBODY = "anybody"
    """Without a token."""


class Caller(NamedTuple):
    """The sender of a request."""

    name: str
    role: Role
    node: str = ""

    @property
    def may_read(self) -> bool:
        """Return True when pages and data may be read."""
        return self.role not in (Role.NODE, Role.ANYBODY)

    @property
    def may_write_runs(self) -> bool:
        """Return True when pieces of journals are accepted."""
        return self.role in (Role.NODE, Role.WRITER, Role.ADMIN)

    def may_speak_for(self, node: str) -> bool:
        """Return True when the status of a node is accepted."""
        return self.role is Role.ADMIN or (self.role is Role.NODE and self.node == node)

    def __str__(self) -> str:
        if self.role is Role.ANYBODY:
            return "a caller without a token"
        where = f" of {self.node}" if self.node else ""
        return f"token {self.name!r} ({self.role.value}{where})"


ADMIN = Caller("--token", Role.ADMIN)
ANYBODY = Caller("", Role.ANYBODY)
ROLES = (Role.NODE, Role.READER, Role.WRITER, Role.SCHEDULER)
CHECK_EVERY_S = 1.0
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@-]{0,99}")
_HASH = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger("wattloop.tokens")


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file.

    Attributes:
        sha256: of the secret. Secrets are 32 random bytes, so a hash without salt is enough.
        created: day and time, UTC.
    """

    name: str
    role: Role
    sha256: str
    node: str = ""
    created: str = ""

    @property
    def caller(self) -> Caller:
        return Caller(self.name, self.role, self.node)


class TokenFile:
    """The valid tokens: the file is read again when it changes.

    A file that others may write, or that is damaged, admits no caller and logs the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._checked_s = -CHECK_EVERY_S
        self._seen: tuple[int, ...] = ()
        self._by_hash: dict[str, Caller] = {}
        self._fault = ""
        self._load()  # report a mistake at the start

    def caller(self, secret: str) -> Caller | None:
        """Return the caller that this secret belongs to; None for an unknown secret."""
        digest = hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
        with self._guard:
            now_s = time.monotonic()
            if now_s - self._checked_s >= CHECK_EVERY_S:
                self._checked_s = now_s
                self._refresh()
            return self._by_hash.get(digest)

    def _refresh(self) -> None:
        try:
            if _signature(self.path) != self._seen:
                self._load()
            self._fault = ""
        except (ConfigError, OSError) as error:
            self._by_hash, self._seen = {}, ()
            if str(error) != self._fault:
                _log.error("no caller is admitted: %s", error)
            self._fault = str(error)

    def _load(self) -> None:
        try:
            seen = _signature(self.path)
        except OSError:  # reported below, with the remedy
            seen = ()
        self._by_hash = {token.sha256: token.caller for token in list_tokens(self.path)}
        self._seen = seen


def list_tokens(path: Path) -> list[Token]:
    """Return the tokens of the file.

    Raises:
        ConfigError: it is not there, others may write it, or it makes no sense.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: cannot be read ({reason}); make one with: wattloop fleet tokens add --file "
            f"{path} --role node --node NAME"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: others may read or write it; run 'chmod 600 {path}'")
    try:
        return [_token(row) for row in json.loads(text)["tokens"]]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not a token file ({error}); restore it or remove it") from None


def add_token(path: Path, name: str, role: Role, node: str = "") -> str:
    """Create a token and return its secret; the file holds only its hash.

    Raises:
        ConfigError: the name is taken, or role and node do not go together.
    """
    if role not in ROLES:
        raise ConfigError(f"role {role}: choose one of {', '.join(ROLES)}")
    if (role is Role.NODE) != bool(node):
        raise ConfigError("a token of role 'node' has a --node, and no other has")
    if not _NAME.fullmatch(name) or (node and not NODE_NAME.fullmatch(node)):
        raise ConfigError(f"{name!r}, {node!r}: letters, digits, '.', '_' and '-' only")
    secret = secrets.token_urlsafe(32)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    token = Token(name, role, hashlib.sha256(secret.encode()).hexdigest(), node, created)
    with _locked(path):
        known = list_tokens(path) if path.exists() else []
        if any(other.name == name for other in known):
            raise ConfigError(f"there is a token {name!r} already; revoke it, or choose a name")
        _write(path, [*known, token])
    return secret


def revoke_token(path: Path, name: str) -> Token:
    """Remove a token; the server refuses it within a second."""
    with _locked(path):
        known = list_tokens(path)
        gone = next((token for token in known if token.name == name), None)
        if gone is None:
            names = ", ".join(token.name for token in known) or "none"
            raise ConfigError(f"{path}: no token {name!r}; there are {names}")
        _write(path, [token for token in known if token is not gone])
    return gone


def _token(row: Any) -> Token:
    token = Token(
        str(row["name"]),
        Role(row["role"]),
        str(row["sha256"]),
        str(row.get("node") or ""),
        str(row.get("created") or ""),
    )
    if token.role not in ROLES or not _HASH.fullmatch(token.sha256):
        raise ValueError(f"token {token.name!r} has no role or hash that could be used")
    if (token.role is Role.NODE) != bool(token.node):
        raise ValueError(f"token {token.name!r}: a node's token names the node, no other does")
    return token


def _write(path: Path, tokens: list[Token]) -> None:
    rows = [asdict(token) for token in tokens]
    atomic_write_json(path, {"tokens": rows}, mode=0o600, durable=True, indent=1)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with FileLock(path.with_name(f".{path.name}.lock")):
            yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _signature(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
