"""Promises of ingest when the server is killed at the worst moment."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.fleet.delivery.served import header_of, whole
from wattloop.core.errors import StoreError, StoreUnwritable
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store, open_store
from wattloop.store.ingest import spool
from wattloop.store.ingest.received_run import RunSource
from wattloop.store.ingest.uploads import Ingest
from wattloop.store.journal import (
    FRAME,
    HEADER,
    LARGEST_FRAME_B,
    SAMPLES,
    JournalTail,
    frames_in,
    json_frame,
)
from wattloop.store.runs import find_run, list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series
from wattloop.store.schema import sample_chunks

RUN = "20260101-000000-abcdef"
NODE = RunSource("n1", None, is_trusted=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """Return a whole journal of eleven samples."""
    whole(tmp_path, RUN)
    return (tmp_path / f"{RUN}.journal").read_bytes()


def samples(store: Store) -> int:
    record = find_run(store, RUN)
    return len(read_samples(store, RUN, find_series(record.feeds, "gpu:0"))[0])


def test_killed_between_commit_and_removal_the_run_is_there_once(store: Store, data: bytes) -> None:
    """After a restart the partial file still exists: it is found to be stored, and removed."""
    ingest = Ingest(store, finalize_orphaned_run)
    assert ingest.append(RUN, 0, data, NODE).complete
    path = ingest.parts()[0]
    note = path.with_suffix(".from")
    kept = path.read_bytes(), note.read_bytes()
    assert ingest.import_run(RUN).ended
    path.write_bytes(kept[0])
    note.write_bytes(kept[1])
    again = Ingest(store, finalize_orphaned_run)
    assert again.complete(search=True) == [RUN]
    assert again.import_run(RUN).ended
    assert again.parts() == []
    assert (len(list_runs(store)), samples(store)) == (1, 11)
    with store.reading() as connection:
        rows = connection.execute(select(func.count()).select_from(sample_chunks)).scalar_one()
    assert rows == 2


@pytest.mark.parametrize("cut", [1, 300, 901, 950])
def test_killed_while_it_wrote_a_piece_it_goes_on_from_there(
    store: Store, data: bytes, cut: int
) -> None:
    """The bytes on disk are the beginning of the piece, and the rest follows."""
    Ingest(store, finalize_orphaned_run).append(RUN, 0, data[:900], NODE)
    part = Ingest(store, finalize_orphaned_run).parts()[0]
    part.write_bytes(data[: max(900, cut)])
    ingest = Ingest(store, finalize_orphaned_run)
    offset = ingest.received(RUN, NODE).offset
    assert offset == max(900, cut)
    assert ingest.append(RUN, 800, data[800:], NODE).complete
    assert ingest.import_run(RUN).ended
    assert samples(store) == 11


def test_final_is_remembered_through_a_restart(store: Store, data: bytes) -> None:
    """A run without an end that no client continues is stored though the server was killed."""
    Ingest(store, finalize_orphaned_run).append(RUN, 0, data[:900], NODE, final=True)
    ingest = Ingest(store, finalize_orphaned_run)
    assert ingest.complete(search=True) == [RUN]
    assert ingest.import_run(RUN).ended
    assert find_run(store, RUN).status == "died"


def test_a_disk_that_refuses_leaves_the_part_as_it_was(
    store: Store, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a piece does not stay, since the next one would not fit."""
    ingest = Ingest(store, finalize_orphaned_run)
    ingest.append(RUN, 0, data[:900], NODE)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("wattloop.store.ingest.spool.os.fsync", full)
        with pytest.raises(StoreUnwritable, match="No space"):
            ingest.append(RUN, 900, data[900:], NODE)
    assert ingest.received(RUN, NODE).offset == 900
    assert ingest.append(RUN, 900, data[900:], NODE).complete


def test_a_store_that_is_away_is_not_asked_for_every_piece(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are taken at once; no client waits for a connection that does not come."""
    asked: list[str] = []

    def away(*_: object) -> None:
        asked.append("once")
        raise StoreError("cannot be reached")

    monkeypatch.setattr("wattloop.store.ingest.uploads.has_run", away)
    ingest = Ingest(store, finalize_orphaned_run)
    for number in range(20):
        run_id = f"20260101-0000{number:02}-abcdef"
        piece = json_frame(HEADER, {"format": 1, **header_of(run_id)})
        assert ingest.append(run_id, 0, piece, NODE).offset == len(piece)
    assert asked == ["once"]


def test_a_server_that_starts_without_its_store_knows_what_waits_when_that_is_back(
    store: Store, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node has to send a run again that is here: it is found at the start and stored at once."""
    assert Ingest(store, finalize_orphaned_run).append(RUN, 0, data, NODE).complete
    again = Ingest(store, finalize_orphaned_run)
    with monkeypatch.context() as patched:
        patched.setattr(again, "_is_away", lambda: True)
        assert again.complete(search=True) == []
    assert again.complete() == [RUN]
    assert again.import_run(RUN).ended


def test_a_writer_waits_for_a_store_that_is_away(
    store: Store, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file could be a node's run: if a writer began it, the server would not import it."""
    ingest = Ingest(store, finalize_orphaned_run)
    ingest.append(RUN, 0, data[:900], NODE)
    assert ingest.abandoned(time.time() + 3_600) == [RUN]

    def away(*_: object) -> None:
        raise StoreError("cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr("wattloop.store.ingest.uploads.has_run", away)
        with pytest.raises(StoreUnwritable, match="whose run"):
            ingest.append(RUN, 0, data, RunSource())
        assert ingest.append(RUN, 0, data, NODE).complete


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.pack(2**32 - 1, 0, SAMPLES),
        FRAME.pack(50_000, 0, SAMPLES),
        FRAME.pack(10, 0, SAMPLES) + bytes(10),
    ],
    ids=["never whole", "whole later, damaged", "damaged"],
)
def test_a_frame_that_does_not_end_is_not_read_again_with_every_piece(
    store: Store, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    """A sender of single bytes must not make the server read all earlier bytes each time."""
    read_b = 0

    def counted(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        nonlocal read_b
        read_b += len(data)
        return frames_in(data)

    monkeypatch.setattr(spool, "frames_in", counted)
    ingest = Ingest(store, finalize_orphaned_run)
    sent = json_frame(HEADER, header_of(RUN, host="n1")) + frame
    ingest.append(RUN, 0, sent, NODE)
    for _ in range(200):
        assert not ingest.append(RUN, len(sent), bytes(1_000), NODE).complete
        sent += bytes(1_000)
    assert read_b < 3 * len(sent)
    assert ingest.append(RUN, len(sent), b"", NODE, final=True).complete
    assert ingest.import_run(RUN).ended


def test_a_reader_of_a_damaged_journal_keeps_none_of_it(tmp_path: Path) -> None:
    """Bytes after a frame of impossible length are not collected in memory."""
    path = tmp_path / "x.journal"
    good = json_frame(HEADER, header_of(RUN, host="n1"))
    path.write_bytes(good + FRAME.pack(LARGEST_FRAME_B + 1, 0, SAMPLES))
    tail = JournalTail(path)
    assert [kind for kind, _ in tail.poll()] == [HEADER]
    with path.open("ab") as file:
        file.write(bytes(10**6))
    assert list(tail.poll()) == []
    assert len(tail._rest) < 100
    tail.close()
