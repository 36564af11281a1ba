"""Promises of the import: nothing is lost, whatever happens to journals, folders or processes."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattloop
from wattloop.core.errors import StoreLocked
from wattloop.store.database import Store, open_store
from wattloop.store.journal import EVENT, FORMAT, JournalWriter, json_frame
from wattloop.store.journal_import import ImportStatus, import_journal, import_orphaned
from wattloop.store.location import StoreLocation
from wattloop.store.run_record import read_windows
from wattloop.store.runs import find_run, list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series
from wattloop.testing.journals import FEEDS, close_journal, ended, header, write_journal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


def test_a_live_journal_is_left_alone(store: Store) -> None:
    """As long as its writer runs, no process imports it."""
    writer = JournalWriter(store.journals / "r1.journal", header("r1"))
    assert [f.outcome for f in import_orphaned(store, close_journal)] == [ImportStatus.HELD]
    writer.close()
    assert [f.outcome for f in import_orphaned(store, close_journal)] == [ImportStatus.IMPORTED]


def test_a_journal_that_is_being_born_is_left_alone(store: Store) -> None:
    """A journal that is created but not yet locked is not touched, not even locked for a moment."""
    store.journals.mkdir()
    path = store.journals / "r1.journal"
    path.touch()
    assert import_journal(store, path, close_journal).outcome is ImportStatus.HELD
    assert path.exists()


def test_another_folder_is_not_disturbed(store: Store) -> None:
    """Of two folders, the second leaves the journal to the first."""
    path = write_journal(store.journals, "r1", end=ended())
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert import_journal(store, path, close_journal).outcome is ImportStatus.HELD
    assert path.exists()


def test_the_good_part_of_a_torn_journal_is_kept_at_every_length(store: Store) -> None:
    """Cut anywhere: the whole frames make a run, or the file is set aside without even a header."""
    whole = write_journal(store.journals, "r0", seconds=3, end=ended()).read_bytes()
    (store.journals / "r0.journal").unlink()
    kept = 0
    for length in random.Random(7).sample(range(1, len(whole)), 40):
        path = store.journals / f"cut{length}.journal"
        path.write_bytes(whole[:length])
        outcome = import_journal(store, path, close_journal).outcome
        assert outcome in (ImportStatus.IMPORTED, ImportStatus.ALREADY, ImportStatus.UNREADABLE)
        if outcome is ImportStatus.IMPORTED:
            kept += 1
            record = find_run(store, "r0")
            assert record.status == "died"
            with store.writing() as connection:
                connection.exec_driver_sql("DELETE FROM runs")
    assert kept > 10


def test_flipped_bits_end_the_readable_part(store: Store) -> None:
    """The damaged frame and the frames after it are left out, and the run says so."""
    path = write_journal(store.journals, "r1", seconds=5, end=ended())
    data = bytearray(path.read_bytes())
    data[-400] ^= 0xFF
    path.write_bytes(data)
    import_journal(store, path, close_journal)
    record = find_run(store, "r1")
    assert record.status == "died"
    assert "torn" in record.notes[0]
    assert len(read_samples(store, "r1", find_series(record.feeds, "gpu:0"))[0]) > 0


def test_an_unreadable_header_is_set_aside_with_a_note(store: Store) -> None:
    """The file stays for a person to read, and is not tried again."""
    store.journals.mkdir()
    path = store.journals / "r1.journal"
    path.write_bytes(os.urandom(500))
    (folded,) = import_orphaned(store, close_journal)
    assert folded.outcome is ImportStatus.UNREADABLE
    aside = store.journals / "r1.journal.corrupt"
    assert aside.stat().st_size == 500
    assert "damaged" in aside.with_name("r1.journal.corrupt.txt").read_text()
    assert import_orphaned(store, close_journal) == []


def test_a_newer_journal_is_left_alone(store: Store) -> None:
    """An unknown format waits for the version that knows it."""
    path = write_journal(store.journals, "r1", head=header("r1", format=FORMAT + 1), end=ended())
    (folded,) = import_orphaned(store, close_journal)
    assert folded.outcome is ImportStatus.NEWER
    assert "upgrade" in folded.note
    assert path.exists()
    assert list_runs(store) == []


def test_a_close_that_fails_does_not_lose_the_run(store: Store) -> None:
    """Even when its energy cannot be computed, the run and its samples are stored."""
    write_journal(store.journals, "r1")

    def broken(_: object) -> dict[str, object]:
        raise RuntimeError("no idea")

    import_orphaned(store, broken)
    record = find_run(store, "r1")
    assert (record.status, record.energy_j) == ("died", None)
    assert "no idea" in record.notes[0]
    assert record.ended_wall_s == pytest.approx(record.started_wall_s + 9.9)


def test_an_end_without_meaning_is_closed_again(store: Store) -> None:
    """An unreadable result is computed from the samples again."""
    write_journal(store.journals, "r1", end=ended() | {"result": {"nonsense": 1}})
    import_orphaned(store, close_journal)
    assert find_run(store, "r1").energy_j == pytest.approx(350.0 * 9.9)


def test_frames_with_nonsense_do_not_stop_the_others(store: Store) -> None:
    """An invalid event or a block of the wrong width is left out, and the rest is imported."""
    writer = JournalWriter(store.journals / "r1.journal", header("r1"))
    writer.samples(0, 7, array("d", [1.0]), array("d", [1.0] * 7))
    writer.samples(55, 1, array("d", [1.0]), array("d", [1.0]))
    writer.event({"type": "window", "window": {"name": "half"}})
    writer._append(json_frame(EVENT, [1, 2]))
    writer.samples(0, 1, array("d", [1_001.0]), array("d", [3.0]))
    writer.end(ended())
    writer.close()
    assert [f.outcome for f in import_orphaned(store, close_journal)] == [ImportStatus.IMPORTED]
    assert read_windows(store, "r1") == []
    assert list(read_samples(store, "r1", find_series(FEEDS, "cpu:0/package"))[1]) == [3.0]


def test_feeds_added_later_have_their_samples(store: Store) -> None:
    """The samples of a device that was plugged in during the run are in the store too."""
    late = {"meter": "file", "domains": [FEEDS[1]["domains"][0] | {"name": "gpu:9"}], "signals": []}
    writer = JournalWriter(store.journals / "r1.journal", header("r1"))
    writer.event({"type": "feeds", "feeds": [late], "first": 2})
    writer.samples(2, 1, array("d", [1_001.0]), array("d", [77.0]))
    writer.end(ended())
    writer.close()
    import_orphaned(store, close_journal)
    series = find_series(find_run(store, "r1").feeds, "gpu:9")
    assert list(read_samples(store, "r1", series)[1]) == [77.0]


def test_samples_out_of_order_are_sorted(store: Store) -> None:
    """Threads that close windows may append late; curves still advance in time."""
    writer = JournalWriter(store.journals / "r1.journal", header("r1"))
    writer.samples(0, 1, array("d", [1_002.0, 1_001.0]), array("d", [2.0, 1.0]))
    writer.end(ended())
    writer.close()
    import_orphaned(store, close_journal)
    times_s, values = read_samples(store, "r1", find_series(FEEDS, "cpu:0/package"))
    assert (list(times_s), list(values)) == ([1_001.0, 1_002.0], [1.0, 2.0])


def test_one_refused_journal_does_not_stop_the_others(store: Store) -> None:
    """A journal that cannot be imported stays, and the next one is imported."""
    stays = write_journal(store.journals, "r1", head=header("r1", feeds=17), end=ended())
    write_journal(store.journals, "r2", end=ended())
    assert [f.outcome for f in import_orphaned(store, close_journal)] == [
        ImportStatus.REFUSED,
        ImportStatus.IMPORTED,
    ]
    assert stays.exists()


def test_a_locked_store_keeps_the_journal(tmp_path: Path) -> None:
    """While the store cannot be written, the run waits in its journal."""
    import sqlite3

    with open_store(tmp_path / "runs.db", timeout_s=0.05) as store:
        path = write_journal(store.journals, "r1", end=ended())
        holder = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked):
            import_orphaned(store, close_journal)
        holder.close()
        assert path.exists()
        assert [f.outcome for f in import_orphaned(store, close_journal)] == [ImportStatus.IMPORTED]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(wattloop.__file__).parents[1])}
FOLDER = """
import sys
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.testing.journals import close_journal
store = open_store(sys.argv[1])
print("go", flush=True)
import_orphaned(store, close_journal)
"""


def test_kill_9_while_folding_loses_nothing(tmp_path: Path) -> None:
    """Killed at random moments, the run is in the store or in its journal, never in neither."""
    dice = random.Random(3)
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        for number in range(8):
            write_journal(store.journals, f"r{number}", seconds=300, end=ended())
        for _ in range(8):
            child = forked_folder(path)
            time.sleep(dice.uniform(0.0, 0.12))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            waiting = {p.stem for p in store.journals.glob("*.journal")}
            stored = {record.run_id for record in list_runs(store)}
            assert waiting | stored == {f"r{number}" for number in range(8)}
        import_orphaned(store, close_journal)
        for record in list_runs(store):
            series = find_series(record.feeds, "gpu:0")
            assert len(read_samples(store, record.run_id, series)[0]) == 3_000
        assert len(list_runs(store)) == 8


def forked_folder(path: Path) -> int:
    """Fork a process, without the imports of a new one, that has begun to import."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with open_store(path) as store:
                os.write(go, b"go")
                import_orphaned(store, close_journal)
        finally:
            os._exit(0)
    os.close(go)
    assert os.read(ready, 2) == b"go"
    os.close(ready)
    return child


def test_processes_that_fold_together_keep_each_run_once(tmp_path: Path) -> None:
    """Several programs that end at the same time share the journals without an error."""
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        for number in range(12):
            write_journal(store.journals, f"r{number}", seconds=20, end=ended())
        children = [
            subprocess.Popen(
                [sys.executable, "-c", FOLDER, str(path)],
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
            )
            for _ in range(3)
        ]
        assert [child.wait() for child in children] == [0, 0, 0]
        assert len(list_runs(store)) == 12
        assert list(store.journals.glob("*")) == []


@pytest.mark.parametrize(
    ("named", "outcome"),
    [
        ("postgresql://***@db.example:5432/energy", ImportStatus.IMPORTED),
        ("postgresql://***@db.example/energy", ImportStatus.IMPORTED),
        ("postgresql://***@db.example/other", ImportStatus.ELSEWHERE),
        ("postgresql://***@other.example/energy", ImportStatus.ELSEWHERE),
        ("", ImportStatus.IMPORTED),
    ],
)
def test_journals_of_other_servers_stay(store: Store, named: str, outcome: ImportStatus) -> None:
    """All servers share one journal folder; each run goes to its own store."""
    folder = store.journals
    store.place = StoreLocation.parse("postgresql://ada:secret@db.example/energy")
    head = header("r1", settings={"store": named})
    path = write_journal(folder, "r1", head=head, end=ended())
    assert import_journal(store, path, close_journal).outcome is outcome
    assert path.exists() is (outcome is ImportStatus.ELSEWHERE)
