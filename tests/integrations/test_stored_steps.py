"""Promises of the steps of stored runs, detected by `wattloop run` or recorded by the program."""

import itertools
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattloop.integrations import stored_steps
from wattloop.integrations.run_phases import Phase, StepTotals, format_totals
from wattloop.integrations.stored_steps import read_step_points, read_step_totals
from wattloop.store.database import Store, open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import event_rows, read_steps
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

    costs = {"step_j": 300.0, "step_s": 1.0, "sample_j": 37.5, "token_j": 1.0}
    assert totals.costs == costs | {"samples_per_j": 1 / 37.5, "tokens_per_j": 1.0}
    assert format_totals(totals)[0] == (
        "4 steps of 300 J and 1.00 s, 37.5 J per sample (0.0267 samples/s/W), "
        "1.00 J per token (1 tokens/s/W)"
    )


def test_shares_of_phases_are_shares_of_the_energy() -> None:
    """Promise: percent and joules of a phase agree; without joules the percent is said of time."""
    totals = StepTotals.from_dict(PHASES)
    assert format_totals(totals)[1] == "training 80% (1.20 kJ), start-up 20% (0.300 kJ)"
    unread = [*totals.phases, Phase("tail", 10.0, None, 1)]
    line = format_totals(replace(totals, phases=tuple(unread)))[1]
    assert line == "of the time: tail 50%, start-up 30% (0.300 kJ), training 20% (1.20 kJ)"


def test_steps_of_a_callback(store: Store) -> None:
    """Promise: without phases the steps add up: no joule twice, and no energy for unread time."""
    add_run(store, STEPS, EPOCH)
    record = find_run(store, "r1")
    first, unread, two = read_step_points(store, record)
    assert (first.energy_j, first.loss) == (300.0, 2.0)
    assert (unread.energy_j, unread.loss) == (None, None)
    assert (two.steps, two.energy_j) == (2, 600.0)
    totals = read_step_totals(store, record)
    assert totals is not None
    assert (totals.steps, totals.step_s, totals.step_j) == (4, 1.0, 300.0)
    assert totals.samples is None  # a row of two steps has the values of the second
    assert format_totals(totals) == ["4 steps of 300 J and 1.00 s"]


def many_steps(count: int) -> dict[str, Any]:
    """Return steps of 10 ms; step n takes n J of the GPU, and every tenth was not read."""
    numbers = list(range(count))
    return {
        "type": "steps",
        "kind": "step",
        "index": numbers,
        "begin_s": [1_000 + 0.01 * n for n in numbers],
        "end_s": [1_000.01 + 0.01 * n for n in numbers],
        "domains": ["gpu:0"],
        "energy_j": [[None if n % 10 == 0 else float(n) for n in numbers]],
        "uncertainty_j": [[0.0] * count],
        "loss": [2.0 - n / count if n % 100 == 99 else None for n in numbers],
        "metrics": {"samples": [8] * count},
    }


def test_many_steps_are_downsampled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: of 5,000 steps at most 1,000 points are read, with the same sums and curve."""
    add_run(store, many_steps(5_000), EPOCH)
    record = find_run(store, "r1")
    monkeypatch.setattr(stored_steps, "read_steps", lambda *_: pytest.fail("read every step"))
    points = read_step_points(store, record)
    assert 500 <= len(points) <= 1_000
    assert sum(point.steps for point in points) == 5_000
    assert sum(point.time_s for point in points) == pytest.approx(50.0)
    assert [point.number for point in points] == sorted(point.number for point in points)
    for point in points:
        middle_j = point.number + (point.steps - 1) / 2
        assert point.energy_j is not None
        assert point.energy_j / point.steps == pytest.approx(middle_j, abs=1.0)
    losses = [point.loss for point in points if point.loss is not None]
    assert len(losses) == 50
    assert losses == sorted(losses, reverse=True)
    totals = read_step_totals(store, record)
    assert totals is not None
    assert (totals.steps, totals.samples) == (5_000, 40_000)
    assert totals.step_j == pytest.approx(2_500, rel=1e-3)


def test_some_of_many_steps(store: Store) -> None:
    """Promise: evenly spread steps represent all of them, and epochs can be read alone."""
    add_run(store, many_steps(5_000), EPOCH)
    some = read_steps(store, "r1", 100)
    assert 90 <= len(some) <= 100
    assert abs(sum(step["stands_for"] for step in some) - 5_001) < 52
    assert [step["index"] for step in some[:3]] == [0, 51, 102]
    assert "stands_for" not in read_steps(store, "r1", 10_000)[0]
    assert [step["kind"] for step in read_steps(store, "r1", kind="epoch")] == ["epoch"]


def test_a_curve_that_is_not_valid(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a broken curve of another machine is not used; the steps are."""
    add_run(store, STEPS)
    record = find_run(store, "r1")
    whole = {"number": 0, "steps": 4, "time_s": 4.0, "energy": {"gpu:0": [1.0, 4]}}
    whole |= {"loss": None, "samples": None, "tokens": None}
    for key, value in itertools.product(whole, ODD):
        curve = {"type": "step_curve", "points": [{**whole, key: value}]}
        monkeypatch.setattr(stored_steps, "read_events", lambda *_, found=curve: [found])
        assert len(read_step_points(store, record)) in (1, 3)
    for points in ODD:
        curve = {"type": "step_curve", "points": points}
        monkeypatch.setattr(stored_steps, "read_events", lambda *_, found=curve: [found])
        assert len(read_step_points(store, record)) == 3


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
    """Return the events with one value of another kind, at every place."""
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
    """Promise: journals of other machines may have any content, and a report shows the valid
    part.
    """
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
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
