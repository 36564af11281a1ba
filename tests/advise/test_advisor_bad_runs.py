"""Promises of advice on incomplete runs: it is silent or right, and never fails."""

from wattloop.advise.advisor import advice_on
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunRecord, find_run, insert_run
from wattloop.testing.journals import ended, header, write_journal


def test_a_crashed_run_is_read_as_far_as_it_goes(store: Store) -> None:
    """Promise: without an end or a limit of the GPU there is no advice, and no error."""
    store.journals.mkdir(parents=True, exist_ok=True)
    write_journal(store.journals, "died", seconds=40)
    write_journal(store.journals, "ended", seconds=40, head=header("ended"), end=ended())
    list(import_orphaned(store, finalize_orphaned_run))
    assert advice_on(store, find_run(store, "died")) == []
    assert advice_on(store, find_run(store, "ended")) == []


def test_a_record_without_samples_or_result_is_silent(store: Store) -> None:
    """Promise: imported runs, and runs without measurements, get no advice."""
    record = RunRecord(run_id="bare", command=["x"])
    insert_run(store, record)
    assert advice_on(store, record) == []
