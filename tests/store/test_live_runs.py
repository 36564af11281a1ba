"""Promises of live runs: they are known from their journals, and only from those."""

from pathlib import Path

from wattloop.store.database import open_store
from wattloop.store.journal import JournalWriter
from wattloop.store.runs import live_runs
from wattloop.testing.journals import header, write_journal


def test_only_held_journals_are_running(tmp_path: Path) -> None:
    """An unlocked journal is not a running run; an empty or damaged one is not a run at all."""
    with open_store(tmp_path / "runs.db") as store:
        assert live_runs(store) == []
        write_journal(store.journals, "dead")
        (store.journals / "empty.journal").touch()
        (store.journals / "noise.journal").write_bytes(b"\x01" * 99)
        writer = JournalWriter(store.journals / "now.journal", header("now", tags=None))
        (record,) = live_runs(store)
        assert (record.run_id, record.status, record.tags) == ("now", "running", {})
        writer.close()
        assert live_runs(store) == []
