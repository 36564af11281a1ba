"""Promises of live runs: a run is followed through its journal, with gaps and its end."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import RunNotFound
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.measure.live import JournalView, find_live_journal
from wattloop.store.journal import JournalWriter, journal_directory


def header(run_id: str) -> dict[str, Any]:
    domain = Domain(
        name="gpu:0", kind=DomainKind.GAUGE, scope=Scope.GPU, source="test", update_period_s=0.1
    )
    signal = {"name": "gpu:0/utilisation", "unit": "fraction"}
    return {
        "run_id": run_id,
        "name": "training",
        "started_s": 100.0,
        "settings": {},
        "feeds": [{"meter": "test", "domains": [domain._asdict()], "signals": [signal]}],
        "missing": [{"name": "dram", "reason": "no DIMM data", "remedy": ""}],
    }


def written(folder: Path, run_id: str = "20260101-000000-aaaaaa") -> JournalWriter:
    writer = JournalWriter(folder / f"{run_id}.journal", header(run_id))
    times_s = array("d", [100.0 + i / 10 for i in range(41)])
    writer.samples(0, 1, times_s, array("d", [200.0] * 41))
    writer.samples(1000, 1, array("d", [104.0]), array("d", [0.75]))
    return writer


def test_power_energy_history_and_signals(tmp_path: Path) -> None:
    """200 W for 4 s: 200 W now, 800 J so far, four seconds of history, the last signals."""
    writer = written(tmp_path)
    view = JournalView(writer.path)
    look = view.look()
    assert look.total_w == pytest.approx(200.0)
    assert look.result.energy_j == pytest.approx(800.0, rel=0.02)
    assert look.history_w["gpu:0"] == pytest.approx((200.0,) * 4)
    assert look.signals == {"gpu:0/utilisation": (0.75, "fraction")}
    assert look.result.missing[0].name == "dram"
    assert look.ended == ""
    view.close()
    writer.close()


def test_gap_is_shown_with_its_reason(tmp_path: Path) -> None:
    """A reading that fails now is shown with the reason in the journal."""
    writer = written(tmp_path)
    view = JournalView(writer.path)
    view.look()
    writer.samples(0, 1, array("d", [104.1]), array("d", [float("nan")]))
    writer.event({"type": "gap", "time_s": 104.1, "domain": "gpu:0", "reason": "driver busy"})
    assert view.look().gaps == (("gpu:0", "driver busy"),)
    view.close()
    writer.close()


def test_end_and_crash_are_distinguished(tmp_path: Path) -> None:
    """A run with an end in the journal is finished; one without a writer is crashed."""
    finished = written(tmp_path, "20260101-000000-aaaaaa")
    finished.end({"type": "end", "status": "finished"})
    finished.close()
    died = written(tmp_path, "20260101-000000-bbbbbb")
    died.close()
    assert JournalView(finished.path).look().ended == "finished"
    assert "died" in JournalView(died.path).look().ended


def test_live_run_is_found_by_a_prefix(tmp_path: Path) -> None:
    """A unique prefix is enough; an ambiguous or ended one is explained."""
    store = str(tmp_path / "runs.db")
    folder = journal_directory(store)
    one = written(folder, "20260101-000000-aaaaaa")
    two = written(folder, "20260102-000000-bbbbbb")
    assert find_live_journal(store, "20260102") == two.path
    with pytest.raises(RunNotFound, match="give more of it"):
        find_live_journal(store, "2026")
    two.close()
    with pytest.raises(RunNotFound, match="measured now: 20260101-000000-aaaaaa"):
        find_live_journal(store, "20260102")
    one.close()
