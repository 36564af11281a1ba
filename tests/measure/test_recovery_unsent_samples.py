"""Promises of unsent samples: a crashed run's journal is completed once, in order; a live one
never.
"""

import os
from array import array
from pathlib import Path

import pytest

from wattloop.measure.node_leader import NodeLock
from wattloop.measure.recovery import append_unsent_samples, complete_journal
from wattloop.store.journal import EVENT, JournalWriter, json_frame, read_journal, samples_frame


def samples(*times_s: float) -> bytes:
    """Return a frame of stream 0 with joules that equal the time."""
    return samples_frame(0, 1, array("d", times_s), array("d", times_s))


def journal_with(path: Path, *times_s: float) -> JournalWriter:
    """Write a journal of one stream."""
    writer = JournalWriter(path, {"run_id": "r"})
    writer.samples(0, 1, array("d", times_s), array("d", times_s))
    return writer


def times_in(path: Path) -> list[float]:
    """Return the times that a reader finds."""
    journal = read_journal(path)
    assert journal is not None
    assert journal.torn_bytes == 0
    return [t for block in journal.blocks for t in block.times_s]


def test_only_what_is_newer_is_added(tmp_path: Path) -> None:
    """Frames that were written whole or in part are not written again."""
    path = tmp_path / "a.journal"
    journal_with(path, 1.0, 2.0).close()
    sent = [samples(1.0), json_frame(EVENT, {"type": "gap"}) + samples(2.0, 3.0), samples(4.0)]
    assert complete_journal(path, sent) == 4.0
    assert times_in(path) == [1.0, 2.0, 3.0, 4.0]
    assert complete_journal(path, sent) == 4.0
    assert times_in(path) == [1.0, 2.0, 3.0, 4.0]


def test_torn_frame_does_not_hide_what_is_added(tmp_path: Path) -> None:
    """After a kill in the middle of a write the half frame is cut off first."""
    path = tmp_path / "a.journal"
    journal_with(path, 1.0).close()
    with path.open("ab") as file:
        file.write(samples(2.0)[:-3])
    assert complete_journal(path, [samples(2.0)]) == 2.0
    assert times_in(path) == [1.0, 2.0]


def test_journal_of_a_live_or_ended_run_is_not_changed(tmp_path: Path) -> None:
    """Its writer has it locked, or has written its end."""
    path = tmp_path / "a.journal"
    writer = journal_with(path, 1.0)
    assert complete_journal(path, [samples(2.0)]) is None
    writer.end({"status": "finished"})
    writer.close()
    assert complete_journal(path, [samples(2.0)]) is None
    assert times_in(path) == [1.0]
    assert complete_journal(tmp_path / "folded.journal", [samples(2.0)]) is None


def test_nothing_is_added_once_another_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader counts from the end of the journal; moving that end would count twice."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "a.journal"
    journal_with(path, 1.0).close()
    heir = NodeLock("job")
    assert heir.take({"run_id": "another", "pid": os.getpid()})
    append_unsent_samples("job", "r", path, [samples(2.0)])
    heir.release()
    append_unsent_samples("job", "r", path, [samples(2.0)])
    assert times_in(path) == [1.0]


def test_next_one_to_count_begins_where_the_journal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock names the time up to which the crashed run counts."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "a.journal"
    journal_with(path, 1.0).close()
    dead = NodeLock("job")
    assert dead.take({"run_id": "r", "journal": str(path)})
    dead.forget()
    append_unsent_samples("job", "r", path, [samples(2.0)])
    assert times_in(path) == [1.0, 2.0]
    heir = NodeLock("job")
    assert heir.take({"run_id": "another"})
    assert heir.before == {"run_id": "r", "journal": str(path), "until_s": 2.0}
    heir.release()
