"""Steps of stored runs, as `wattloop run` noticed them or as the program recorded them."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from wattloop.integrations import stored_steps
from wattloop.integrations.phases import format_totals
from wattloop.integrations.stored_steps import read_step_points, read_step_totals
from wattloop.store.database import Store, open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import event_rows
from wattloop.store.runs import find_run
from wattloop.testing.journals import close_journal, ended, write_journal

STEPS: dict[str, Any] = {
    "type": "steps",
    "kind": "step",
    "index": [0, 1, 2],
    "epoch": [0, 0, 0],
    "begin_s": [1_000.0, 1_001.0, 1_002.0],
    "end_s": [1_001.0, 1_002.0, 1_004.0],
    "domains": ["cpu:0/package", "gpu:0", "gpu:0/memory"],
    "energy_j": [[50.0, 50.0, 100.0], [250.0, None, 500.0], [1.0, 1.0, 1.0]],
    "uncertainty_j": [[0.0] * 3] * 3,
    "loss": [2.0, None, 1.0],
    "metrics": {"samples": [8, 8, 8]},
    "count": [1, 1, 2],
}
EPOCH = {"type": "step", "kind": "epoch", "index": 0, "begin_s": 1_000.0, "end_s": 1_004.0}
PHASES: dict[str, Any] = {
    "type": "phases",
    "time_s": 1_010.0,
    "steps": 4,
    "step_s": 1.0,
    "step_j": 300.0,
    "samples": 32.0,
    "tokens": 1_200.0,
    "processes": 1,
    "phases": [
        {"name": "start-up", "time_s": 6.0, "energy_j": 300.0, "parts": 1},
        {"name": "training", "time_s": 4.0, "energy_j": 1_200.0, "parts": 1},
    ],
    "notes": [],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


def add_run(store: Store, *events: dict[str, Any], run_id: str = "r1") -> None:
    write_journal(store.journals, run_id, events=events, end=ended())
    import_orphaned(store, close_journal)


def test_phases_and_costs_of_a_run(store: Store) -> None:
    """Promise: a stored run has the totals that `wattloop run` printed."""
    add_run(store, STEPS, PHASES)
    totals = read_step_totals(store, find_run(store, "r1"))
    assert totals is not None
    assert [phase.name for phase in totals.phases] == ["start-up", "training"]
    assert totals.costs == {"step_j": 300.0, "step_s": 1.0, "sample_j": 37.5, "token_j": 1.0}


def test_steps_of_a_callback(store: Store) -> None:
    """Promise: without phases the steps add up: no joule twice, none for what was not read."""
    add_run(store, STEPS, EPOCH)
    record = find_run(store, "r1")
    first, unread, two = read_step_points(store, record)
    assert (first.energy_j, first.loss) == (300.0, 2.0)
    assert (unread.energy_j, unread.loss) == (None, None)
    assert (two.steps, two.energy_j) == (2, 600.0)
    totals = read_step_totals(store, record)
    assert totals is not None
    assert (totals.steps, totals.step_s, totals.step_j) == (4, 1.0, 300.0)
    assert totals.samples is None  # a row of two steps has those of the second
    assert format_totals(totals) == ["4 steps of 300 J and 1.00 s"]


def test_a_run_without_steps(store: Store) -> None:
    add_run(store, EPOCH)
    assert read_step_totals(store, find_run(store, "r1")) is None


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    math.nan,
    math.inf,
    "x",
    [],
    {},
    [None],
    {"a": 1},
]


def changed_events() -> Iterator[dict[str, Any]]:
    """The events with one value of another kind, at every place."""
    whole = {"type": "step", "kind": "step", "index": 1, "begin_s": 1.0, "end_s": 2.0}
    whole |= {"energy": {"gpu:0": [1.0, 0.1]}, "metrics": {"loss": 1.0}, "count": 1}
    for event in (PHASES, whole):
        for place in places(event):
            for value in ODD:
                changed = deepcopy(event)
                inner: Any = changed
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = value
                yield changed


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield (*path, key)
            yield from places(value, (*path, key))


def test_no_event_breaks_a_report(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: journals of other machines may hold anything; a report shows what is valid."""
    pytest.importorskip("altair", reason="Altair is not installed")
    from wattloop.report.run import step_blocks
    from wattloop.serve.blocks import blocks_html

    add_run(store, STEPS, PHASES)
    record = find_run(store, "r1")
    shown = 0
    for event in changed_events():
        tables, _ = event_rows("r1", [event])
        for name in ("steps", "events"):
            bodies = [json.loads(row["body"]) for row in tables[name]]
            monkeypatch.setattr(stored_steps, f"read_{name}", lambda *_, found=bodies: found)
        shown += bool(blocks_html(step_blocks(store, record)))
    assert shown > 100
