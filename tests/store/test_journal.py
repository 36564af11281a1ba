"""Promises of `journal`: written records are read back whole, however the writer ended."""

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from wattloop.store.journal import (
    EVENT,
    HEADER,
    SAMPLES,
    JournalTail,
    JournalWriter,
    journal_directory,
    journal_is_live,
    read_journal,
)


def written(path: Path) -> bytes:
    """Write a small journal with every kind of frame."""
    writer = JournalWriter(path, {"run_id": "r", "name": "training"})
    writer.samples(0, 2, array("d", [1.0, 2.0]), array("d", [10.0, 20.0, 11.0, float("nan")]))
    writer.event({"type": "note", "text": "Grüße"})
    writer.end({"type": "end", "status": "finished"})
    writer.close()
    return path.read_bytes()


def test_everything_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Header, samples (gaps as NaN), events and end."""
    written(tmp_path / "a.journal")
    journal = read_journal(tmp_path / "a.journal")
    assert journal is not None
    assert journal.header == {"format": 1, "run_id": "r", "name": "training"}
    (block,) = journal.blocks
    assert (block.feed, block.width, list(block.times_s)) == (0, 2, [1.0, 2.0])
    assert list(block.values)[:3] == [10.0, 20.0, 11.0]
    assert block.values[3] != block.values[3]
    assert journal.events == [{"type": "note", "text": "Grüße"}]
    assert journal.end == {"type": "end", "status": "finished"}
    assert journal.torn_bytes == 0


def test_torn_at_any_byte_keeps_every_whole_frame(tmp_path: Path) -> None:
    """A file cut anywhere reads up to the last whole frame, and never raises."""
    data = written(tmp_path / "a.journal")
    path = tmp_path / "torn.journal"
    parts: list[int] = []
    for length in range(len(data)):
        path.write_bytes(data[:length])
        journal = read_journal(path)
        if journal is None:
            parts.append(0)
            continue
        assert journal.end is None
        assert 0 <= journal.torn_bytes < length
        parts.append(1 + len(journal.blocks) + len(journal.events))
    assert parts == sorted(parts)
    assert set(parts) == {0, 1, 2, 3}


def test_flipped_byte_never_yields_a_wrong_record(tmp_path: Path) -> None:
    """Every payload has a checksum: damage ends the readable part."""
    data = written(tmp_path / "a.journal")
    good = read_journal(tmp_path / "a.journal")
    assert good is not None
    path = tmp_path / "bad.journal"
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x5A]) + data[position + 1 :])
        journal = read_journal(path)
        if journal is not None:
            assert journal.header == good.header
            assert all(event in good.events for event in journal.events)


def test_journal_is_live_exactly_while_its_writer_lives(tmp_path: Path) -> None:
    """The kernel frees the lock of a killed writer: no stale lock, no waiting."""
    path = tmp_path / "a.journal"
    code = (
        "import sys, time; from pathlib import Path;"
        "from wattloop.store.journal import JournalWriter;"
        "w = JournalWriter(Path(sys.argv[1]), {'run_id': 'r'}); print('ready', flush=True);"
        "time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        assert journal_is_live(path)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert not journal_is_live(path)
    journal = read_journal(path)
    assert journal is not None
    assert journal.end is None


def test_missing_journal_is_not_live(tmp_path: Path) -> None:
    """Another process imported it in the meantime."""
    assert not journal_is_live(tmp_path / "none.journal")


def test_tail_sees_frames_as_they_arrive_and_waits_for_half_ones(tmp_path: Path) -> None:
    """A follower gets each frame once, also when it reads in the middle of a write."""
    data = written(tmp_path / "a.journal")
    path = tmp_path / "live.journal"
    path.write_bytes(b"")
    tail = JournalTail(path)
    kinds: list[bytes] = []
    with path.open("ab", buffering=0) as file:
        for i in range(0, len(data), 7):
            file.write(data[i : i + 7])
            kinds += [kind for kind, _ in tail.poll()]
    tail.close()
    assert kinds[:3] == [HEADER, SAMPLES, EVENT]
    assert len(kinds) == 4


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("/data/runs.db", "/data/runs.db.journals"),
        ("sqlite:////data/runs.db", "/data/runs.db.journals"),
        ("~/runs.db", "/home/ada/runs.db.journals"),
        ("sqlite:///~/runs.db", "/home/ada/runs.db.journals"),
        ("postgresql://u@h/db", "/home/x/wattloop/journals"),
    ],
)
def test_journals_lie_beside_a_file_store_and_at_home_for_a_server(
    store: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live journal is always a local file."""
    monkeypatch.setenv("XDG_DATA_HOME", "/home/x")
    monkeypatch.setenv("HOME", "/home/ada")
    assert journal_directory(store) == Path(expected)
