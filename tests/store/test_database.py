"""Promises of opening stores: every kind of failure has its own clear error."""

import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.store.places import POSTGRES, needs_postgres
from wattloop.core.errors import StoreError, StoreLocked, StoreTooNew, StoreUnwritable
from wattloop.store import location, schema
from wattloop.store.database import Store, open_store
from wattloop.store.journal import journal_directory
from wattloop.store.runs import RunRecord, insert_run, list_runs
from wattloop.testing.store_contract import StoreContract


class TestSQLite(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with open_store(tmp_path / "deep" / "runs.db") as store:
            yield store


@needs_postgres
class TestPostgreSQL(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        name = f"wattloop_{uuid.uuid4().hex[:12]}"
        admin = create_engine(
            location.StoreLocation.parse(POSTGRES).server_url(), isolation_level="AUTOCOMMIT"
        )
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        url = (
            location.StoreLocation.parse(POSTGRES)
            .server_url()
            .set(drivername="postgresql", database=name)
        )
        with open_store(url.render_as_string(hide_password=False)) as store:
            yield store
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def test_a_directory_is_refused_with_the_file_to_use(tmp_path: Path) -> None:
    """A store path that is a directory names the file that would work."""
    with pytest.raises(StoreUnwritable, match=r"is a directory.*runs\.db"):
        open_store(tmp_path)


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """A file where a folder should be is named."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnwritable, match=r"file.*WATTLOOP_STORE"):
        open_store(tmp_path / "file" / "runs.db")


def test_an_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission to create the file, the message has the command that grants it."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)  # root may write anything
    with pytest.raises(StoreUnwritable, match=r"chmod u\+w"):
        open_store(tmp_path / "runs.db")


def test_a_read_only_store_can_be_read_but_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a store on a read-only disk are listed; an attempt to write says what to do."""
    path = tmp_path / "runs with space?#.db"
    with open_store(path) as store:
        insert_run(store, RunRecord(run_id="r1"))
    monkeypatch.setattr(location.StoreLocation, "is_read_only", property(lambda self: True))
    with open_store(path) as store:
        assert [run.run_id for run in list_runs(store)] == ["r1"]
        with pytest.raises(StoreUnwritable, match="read-only"):
            insert_run(store, RunRecord(run_id="r2"))


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A user's notes are not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 500)
    with pytest.raises(StoreError, match="not a SQLite database"):
        open_store(path)
    assert path.read_text().startswith("dear diary")


def test_a_newer_store_is_refused_naming_both_versions(tmp_path: Path) -> None:
    """The message has the store's version, the program's version, and the remedy."""
    path = tmp_path / "runs.db"
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    connection.close()
    with pytest.raises(StoreTooNew, match=rf"version 99.*up to {schema.VERSION}.*pip install -U"):
        open_store(path)


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    """A database with its own table `runs` is not taken over."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (x)")
    connection.close()
    with pytest.raises(StoreError, match="not Wattloop's"):
        open_store(path)


def test_a_locked_store_is_reported_after_the_timeout(tmp_path: Path) -> None:
    """While another process writes, StoreLocked is raised, and reading still works."""
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        insert_run(store, RunRecord(run_id="r1"))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")  # excludes readers too, unless the file is in WAL mode
    try:
        with open_store(path, timeout_s=0.05) as store:
            assert len(list_runs(store)) == 1
            with pytest.raises(StoreLocked, match="another process"):
                insert_run(store, RunRecord(run_id="r2"))
    finally:
        holder.close()


def test_an_old_store_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step between the store's version and the program's runs once, in order."""
    path = tmp_path / "runs.db"
    open_store(path).close()
    steps: list[int] = []
    ours = schema.VERSION
    further = {n: lambda _, n=n: steps.append(n) for n in (ours, ours + 1)}
    monkeypatch.setattr(schema, "VERSION", ours + 2)
    monkeypatch.setattr(schema, "MIGRATIONS", further)
    open_store(path).close()
    open_store(path).close()
    assert steps == [ours, ours + 1]


def test_a_table_added_later_appears_in_existing_stores(tmp_path: Path) -> None:
    """New packages declare a table; no migration is needed."""
    path = tmp_path / "runs.db"
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE steps")
    connection.close()
    with open_store(path) as store, store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM steps")).scalar() == 0


def test_many_may_create_the_same_store_at_once(tmp_path: Path) -> None:
    """Ranks of one job that start together all get the store."""
    faults: list[Exception] = []

    def work(number: int) -> None:
        try:
            with open_store(tmp_path / "runs.db", timeout_s=60) as store:  # slow disks
                insert_run(store, RunRecord(run_id=f"r{number}"))
        except StoreError as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with open_store(tmp_path / "runs.db") as store:
        assert len(list_runs(store)) == 8


@pytest.mark.parametrize("location", ["~/a.db", "sqlite:///~/b.db", "c.db", "sqlite:///d.db"])
def test_a_store_looks_for_journals_where_runs_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """The folder must not depend on the notation: a run in another folder would never be
    imported.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with open_store(location) as store:
        assert store.journals == journal_directory(location)
        assert store.journals.absolute().parent == tmp_path
        assert len(list(tmp_path.glob("*.db"))) == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@127.0.0.1:1/x",
        "postgresql://127.0.0.1:1/x?user=ada&password=secret",
        "postgresql://ada@127.0.0.1:1/x?sslpassword=secret",
    ],
)
def test_passwords_never_appear_in_messages(url: str) -> None:
    """A server that cannot be reached is named without its password."""
    pytest.importorskip("psycopg", reason="the PostgreSQL driver is an extra")
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        open_store(url, timeout_s=2)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg the message has the command that installs it."""
    monkeypatch.setattr("wattloop.store.database.find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"wattloop\[postgres\]"):
        open_store("postgresql://localhost/x")


@pytest.mark.parametrize("location", ["mysql://localhost/x", "postgresql://[", ""])
def test_places_that_cannot_hold_runs_are_refused(location: str) -> None:
    """Other databases and broken URLs are refused before anything is opened."""
    with pytest.raises(StoreError):
        open_store(location)


@needs_postgres
def test_a_missing_database_says_how_to_create_it() -> None:
    """PostgreSQL: the server answers but the database is not there."""
    url = (
        location.StoreLocation.parse(POSTGRES)
        .server_url()
        .set(drivername="postgresql", database="nope")
    )
    with pytest.raises(StoreError, match="createdb"):
        open_store(url.render_as_string(hide_password=False))
