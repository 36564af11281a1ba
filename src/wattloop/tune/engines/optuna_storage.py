"""Files that Optuna keeps studies in: an SQLite database, or its journal."""

import sqlite3
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path
from wattloop.tune.engines.optuna_space import library

__all__ = ["new_storage"]

JOURNALS = (".log", ".journal")
"""Ends of names that mean a journal, as optuna-dashboard takes them."""


def new_storage(file: str) -> Any:
    """A storage of Optuna in a file, which may have other studies.

    Raises:
        ConfigError: no such folder, or the file is something else.
    """
    optuna = library("an Optuna study")
    path = Path(user_path(file))
    if not path.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {path.parent}")
    if path.suffix in JOURNALS:
        _check_journal(path)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        return optuna.storages.JournalStorage(backend)
    _check_database(path)
    return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=_fast())


def _check_database(path: Path) -> None:
    if not path.exists():
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: no SQLite file ({error}); give another name") from None


def _check_journal(path: Path) -> None:
    """Only add to what Optuna has written: lines of JSON with its `op_code`."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as lines:
        first = lines.readline(4096)
    if b'"op_code"' not in first:
        raise ConfigError(f"{path}: no journal of Optuna; give another name")


def _fast() -> dict[str, Any]:
    """A file that can be written again needs no waiting for the disk after each trial."""
    from sqlalchemy.pool import StaticPool

    class Quick(sqlite3.Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.execute("PRAGMA synchronous=OFF")
            self.execute("PRAGMA journal_mode=MEMORY")

    return {"connect_args": {"factory": Quick}, "poolclass": StaticPool}
