"""What databases and file systems complain about, in words that help."""

import errno
import os
import sqlite3
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from wattloop.core.errors import RunSenseless, StoreError, StoreLocked, StoreUnwritable

__all__ = ["needs_driver", "refused_path", "translated"]

_ELSEWHERE = "choose another place with --store or WATTLOOP_STORE"


def refused_path(path: Path) -> None:
    """Create the folders above `path`; raise `StoreUnwritable` when it cannot hold a store."""
    if path.is_dir():
        raise StoreUnwritable(
            f"{path}: is a directory, a store is a file; use {path / 'runs.db'}, or {_ELSEWHERE}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(
            f"{path.parent}: cannot be created: {error.strerror}; {_ELSEWHERE}"
        ) from error
    if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreUnwritable(
            f"{path}: cannot be created, its folder is not writable; allow it with "
            f"'chmod u+w {path.parent}', or {_ELSEWHERE}"
        )


def needs_driver(module: str, where: str) -> None:
    """Raise `StoreError` when the PostgreSQL driver is not installed."""
    if find_spec(module) is None:
        raise StoreError(
            f"{where}: PostgreSQL needs the driver {module}; install it with: "
            "pip install 'wattloop[postgres]'"
        )


def translated(error: SQLAlchemyError, where: str) -> StoreError:
    """The `StoreError` for what the database reported."""
    if isinstance(error, DBAPIError):
        if isinstance(error.orig, sqlite3.Error):
            return _from_sqlite(error.orig, where)
        return _from_postgresql(error, where)
    return StoreError(f"{where}: {error}")


def _from_sqlite(error: sqlite3.Error, where: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the high bits only say which kind of
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(
            f"{where}: another process has been writing to it for too long; try again, see who "
            f"holds it with 'fuser {where}', or {_ELSEWHERE}"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreUnwritable(
            f"{where}: cannot be opened for writing ({error}); check the permissions of the file "
            f"and its folder, or {_ELSEWHERE}"
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        reason = os.strerror(errno.ENOSPC) if code == sqlite3.SQLITE_FULL else str(error)
        return StoreUnwritable(
            f"{where}: {reason}; make room on the disk ('df -h'), or {_ELSEWHERE}"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{where}: is not a SQLite database; {_ELSEWHERE}")
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreError(
            f"{where}: is damaged ({error}); save what can be read with "
            f"'sqlite3 {where} .recover | sqlite3 repaired.db', or {_ELSEWHERE}"
        )
    return StoreError(f"{where}: {error}; {_ELSEWHERE}")


def _from_postgresql(error: DBAPIError, where: str) -> StoreError:
    state = getattr(error.orig, "sqlstate", None) or ""
    reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "no answer"
    if state in ("55P03", "40P01", "57014"):  # lock_not_available, deadlock, statement timeout
        return StoreLocked(
            f"{where}: another session holds the tables for too long ({reason}); try again, or "
            "see who with: SELECT pid, query FROM pg_stat_activity"
        )
    if state in ("25006", "42501"):  # read-only transaction, insufficient privilege
        return StoreUnwritable(
            f"{where}: {reason}; grant it with: GRANT CREATE, USAGE ON SCHEMA public TO the user "
            "in the URL"
        )
    if state.startswith("53"):  # disk full, out of memory, too many connections
        return StoreUnwritable(f"{where}: {reason}; make room on the server")
    if state.startswith(("22", "23")):  # numbers out of range, texts that are none
        return RunSenseless(f"{where}: cannot hold it: {reason}")
    if state == "3D000" or "does not exist" in reason:
        return StoreError(f"{where}: {reason}; create it with: createdb NAME")
    if not state or state.startswith(("08", "28")):
        return StoreError(
            f"{where}: cannot be reached: {reason}; check host, port, user and password, and that "
            "the server runs (pg_isready)"
        )
    return StoreError(f"{where}: {reason}")
