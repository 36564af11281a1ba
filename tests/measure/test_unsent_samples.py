"""Promises of `bequest`: a dead journal is completed once, in order, and never a living one."""

import os
from array import array
from pathlib import Path

import pytest

from wattloop.measure.node_leader import NodeLock
from wattloop.measure.recovery import append_unsent_samples, complete_journal
from wattloop.store.journal import EVENT, JournalWriter, json_frame, read_journal, samples_frame


def samples(*times_s: float) -> bytes:
    """A frame of feed 0 with joules that equal the time."""
    return samples_frame(0, 1, array("d", times_s), array("d", times_s))


def journal_with(path: Path, *times_s: float) -> JournalWriter:
    """A journal of one feed."""
    writer = JournalWriter(path, {"run_id": "r"})
    writer.samples(0, 1, array("d", times_s), array("d", times_s))
    return writer


def times_in(path: Path) -> list[float]:
    """What a reader finds."""
    journal = read_journal(path)
    assert journal is not None
    assert journal.torn_bytes == 0
    return [t for block in journal.blocks for t in block.times_s]


def test_only_what_is_newer_is_added(tmp_path: Path) -> None:
    """Frames that were written, and those written in part, are not written again."""
    path = tmp_path / "a.journal"
    journal_with(path, 1.0, 2.0).close()
    sent = [samples(1.0), json_frame(EVENT, {"type": "gap"}) + samples(2.0, 3.0), samples(4.0)]
    assert complete_journal(path, sent) == 4.0
    assert times_in(path) == [1.0, 2.0, 3.0, 4.0]
    assert complete_journal(path, sent) == 4.0
    assert times_in(path) == [1.0, 2.0, 3.0, 4.0]


def test_torn_frame_does_not_hide_what_is_added(tmp_path: Path) -> None:
    """Killed in the middle of a write: the half is cut off first."""
    path = tmp_path / "a.journal"
    journal_with(path, 1.0).close()
    with path.open("ab") as file:
        file.write(samples(2.0)[:-3])
    assert complete_journal(path, [samples(2.0)]) == 2.0
    assert times_in(path) == [1.0, 2.0]


def test_journal_of_a_living_or_ended_run_is_left_alone(tmp_path: Path) -> None:
    """Its writer holds it, or has said how it ended."""
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
    """Who took over counts from the end of the journal; moving that end would count twice."""
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
    """The claim says up to when the dead run counts."""
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
