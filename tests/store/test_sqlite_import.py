"""Promises of the import without SQLAlchemy: the same rows as the full import, or none."""

import runpy
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from wattloop.store.database import open_store
from wattloop.store.journal import JournalWriter, journal_directory
from wattloop.store.journal_import import ImportStatus, import_orphaned
from wattloop.store.runs import find_run
from wattloop.store.sqlite_import import SCHEMA, import_ended
from wattloop.testing.journals import close_journal, ended, header, write_journal

ROOT = Path(__file__).parents[2]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(" ".join(line.split()) for line in connection.iterdump())


def test_the_schema_is_the_declared_one() -> None:
    """Promise: `schema.sql` equals `schema`; scripts/make_sqlite_schema.py writes it."""
    script = runpy.run_path(str(ROOT / "scripts" / "make_sqlite_schema.py"))
    assert SCHEMA.read_text("utf-8") == script["schema_text"]()


@pytest.mark.parametrize("exists", [False, True])
def test_both_ways_store_the_same(tmp_path: Path, exists: bool) -> None:
    """Promise: every table has the same content, for finished and crashed runs."""
    first, second = tmp_path / "first" / "runs.db", tmp_path / "second" / "runs.db"
    folder = journal_directory(str(first))
    head = {**header("r1"), "tags": {"model": "gpt", "cluster": "lab"}, "user": "ann"}
    write_journal(folder, "r1", seconds=70, end=ended(), head=head)
    write_journal(folder, "r2", seconds=3)
    shutil.copytree(folder, journal_directory(str(second)))
    if exists:
        open_store(first).close()
    assert import_ended(str(first), close_journal)
    assert not list(folder.iterdir())
    with open_store(second) as store:
        outcomes = [found.outcome for found in import_orphaned(store, close_journal)]
    assert outcomes == [ImportStatus.IMPORTED, ImportStatus.IMPORTED]
    assert dump(first) == dump(second)
    assert any('INSERT INTO "sample_levels"' in line for line in dump(first))
    with closing(sqlite3.connect(first)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_needs_no_sqlalchemy(tmp_path: Path) -> None:
    """Promise: loading it does not delay the end of a run."""
    program = (
        "import sys\n"
        "from wattloop.measure.recovery import finalize_orphaned_run\n"
        "from wattloop.store.sqlite_import import import_ended\n"
        "assert import_ended(sys.argv[1], finalize_orphaned_run)\n"
        "assert 'sqlalchemy' not in sys.modules\n"
    )
    place = tmp_path / "runs.db"
    write_journal(journal_directory(str(place)), "r1", end=ended())
    subprocess.run([sys.executable, "-c", program, str(place)], check=True, timeout=600)
    with open_store(place) as store:
        assert find_run(store, "r1").status == "finished"


def test_other_cases_are_left_to_the_full_import(tmp_path: Path) -> None:
    """Promise: a journal stays unless its run is stored as a whole."""
    place = tmp_path / "runs.db"
    folder = journal_directory(str(place))

    def left() -> bool:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        complete = import_ended(str(place), close_journal)
        assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
        return not complete

    scheduler = {"id": "7", "kind": "slurm", "scheduler": {"scheduler": "slurm", "job": "7"}}
    head = {**header("of-a-job"), "job": scheduler}
    write_journal(folder, "of-a-job", end=ended(), head=head)
    assert left()
    with open_store(place) as store:
        import_orphaned(store, close_journal)
    write_journal(folder, "of-a-job", end=ended())
    assert left()  # it is in the store already
    (folder / "of-a-job.journal").write_bytes(b"no journal")
    assert left()
    (folder / "of-a-job.journal").unlink()
    write_journal(folder, "r1", end=ended())
    with closing(sqlite3.connect(place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert left()
        other.execute("ROLLBACK")
        other.execute("UPDATE meta SET value = '2'")
        assert left()
        other.execute("UPDATE meta SET value = '3'")
        other.execute("DROP TABLE trials")
    assert left()
    assert not import_ended("postgresql://host/name", close_journal)
    assert not import_ended(":memory:", close_journal)
    place.write_bytes(b"no database at all, but a file of some length" * 100)
    assert left()


def test_a_run_that_is_being_measured_is_not_touched(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    writer = JournalWriter(journal_directory(str(place)) / "r1.journal", header("r1"))
    assert import_ended(str(place), close_journal)
    assert not place.exists()
    writer.close()
    assert import_ended(str(place), close_journal)
    with open_store(place) as store:
        assert find_run(store, "r1").status == "died"
