"""Promises of copying runs from one store to another without loss."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.store.database import open_store
from wattloop.store.export import copy_runs
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunFilter, find_run, list_runs
from wattloop.store.sample_queries import read_curve, read_samples
from wattloop.store.samples import find_series
from wattloop.testing.journals import close_journal, ended, header, write_journal


def test_a_copy_has_everything_and_copying_again_adds_nothing(tmp_path: Path) -> None:
    """Record, tags, samples and curves are the same in both stores."""
    with open_store(tmp_path / "a.db") as old, open_store(tmp_path / "b.db") as new:
        head = header("r1", tags={"k": "v"})
        write_journal(old.journals, "r1", seconds=60, head=head, end=ended())
        write_journal(old.journals, "r2", end=ended())
        import_orphaned(old, close_journal)
        assert sorted(copy_runs(old, new)[0]) == ["r1", "r2"]
        assert sorted(copy_runs(old, new)[1]) == ["r1", "r2"]
        assert list_runs(new) == list_runs(old)
        assert [r.run_id for r in list_runs(new, RunFilter(tags={"k": "v"}))] == ["r1"]
        series = find_series(find_run(new, "r1").feeds, "gpu:0")
        assert read_samples(new, "r1", series) == read_samples(old, "r1", series)
        assert read_curve(new, "r1", series, 100) == read_curve(old, "r1", series, 100)


def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    """The same location twice is an error, not a deadlock."""
    with open_store(tmp_path / "a.db") as store, pytest.raises(ConfigError, match="same store"):
        copy_runs(store, store)
