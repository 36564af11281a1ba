"""Promises of run records: the events of a run are read back as they were written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wattloop.store.database import Store, open_store
from wattloop.store.export import export_table
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import read_events, read_steps
from wattloop.store.runs import find_run
from wattloop.testing.journals import close_journal, ended, write_journal

BATCH: dict[str, Any] = {
    "type": "steps",
    "kind": "step",
    "index": [7, 9],
    "epoch": [0, 1],
    "begin_s": [1.0, 1.5],
    "end_s": [1.5, 2.5],
    "domains": ["cpu:0/package", "gpu:0"],
    "energy_j": [[20.0, None], [150.0, 300.0]],
    "uncertainty_j": [[2.0, None], [1.5, None]],
    "loss": [0.5, None],
    "metrics": {"accuracy": [None, 0.75]},
    "count": [1, 2],
}
SINGLES: list[dict[str, Any]] = [
    {
        "kind": "step",
        "index": 7,
        "begin_s": 1.0,
        "end_s": 1.5,
        "energy": {"cpu:0/package": [20.0, 2.0], "gpu:0": [150.0, 1.5]},
        "metrics": {"accuracy": None, "loss": 0.5},
        "epoch": 0,
        "count": 1,
    },
    {
        "kind": "step",
        "index": 9,
        "begin_s": 1.5,
        "end_s": 2.5,
        "energy": {"gpu:0": [300.0, None]},
        "metrics": {"accuracy": 0.75, "loss": None},
        "epoch": 1,
        "count": 2,
    },
]
EPOCH: dict[str, Any] = {"kind": "epoch", "index": 1, "begin_s": 1.0, "end_s": 2.5, "energy": {}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


def folded(store: Store, *events: dict[str, Any]) -> None:
    write_journal(store.journals, "r1", events=events, end=ended())
    import_orphaned(store, close_journal)


def exported(store: Store) -> list[dict[str, Any]]:
    table = export_table("steps", store, [find_run(store, "r1")])
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_batch_of_steps_comes_back_as_single_steps(store: Store) -> None:
    """In order, next to steps written alone; a missing energy is absent, not 0."""
    folded(store, BATCH, {"type": "step"} | EPOCH)
    assert read_steps(store, "r1") == [*SINGLES, EPOCH]
    assert read_events(store, "r1") == []


def test_a_batch_need_not_have_loss_metrics_epoch_or_count(store: Store) -> None:
    """Missing fields of a batch are not invented."""
    optional = ("loss", "metrics", "epoch", "count")
    folded(store, {key: value for key, value in BATCH.items() if key not in optional})
    first, second = read_steps(store, "r1")
    assert first["metrics"] == second["metrics"] == {}
    assert not {"epoch", "count"} & (first.keys() | second.keys())
    assert [row["count"] for row in exported(store)] == [1, 1]


def test_steps_are_exported_with_what_they_stand_for(store: Store) -> None:
    """One row per entry, with epoch and count; null energies and metrics are empty cells."""
    folded(store, BATCH, {"type": "step"} | EPOCH)
    first, second, epoch = exported(store)
    assert (first["index"], first["epoch"], first["count"]) == (7, 0, 1)
    assert (first["energy_j cpu:0/package"], first["uncertainty_j cpu:0/package"]) == (20.0, 2.0)
    assert (first["metric loss"], first["metric accuracy"]) == (0.5, None)
    assert (second["index"], second["epoch"], second["count"]) == (9, 1, 2)
    assert second["energy_j cpu:0/package"] is None
    assert (second["energy_j gpu:0"], second["uncertainty_j gpu:0"]) == (300.0, None)
    assert (second["metric loss"], second["metric accuracy"]) == (None, 0.75)
    assert (epoch["kind"], epoch["epoch"], epoch["count"]) == ("epoch", None, 1)


@pytest.mark.parametrize(
    "broken",
    [
        {"domains": ["gpu:0"]},
        {"energy_j": [[20.0], [150.0]]},
        {"index": ["seven", "nine"]},
        {"begin_s": None},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_a_broken_batch_does_not_cost_the_run(store: Store, broken: dict[str, Any]) -> None:
    """Inconsistent data are left out and reported; the run and its other steps are stored."""
    folded(store, BATCH | broken, {"type": "step"} | EPOCH)
    assert read_steps(store, "r1")[-1] == EPOCH
    record = find_run(store, "r1")
    assert record.energy_j == 3_500.0
    assert record.notes == ["1 of its events made no sense and were left out"]
