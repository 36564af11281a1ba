"""Promises of advice outside the run: cleaner hours, and a machine that idles afterwards."""

from pathlib import Path

import pytest

from tests.advise.conftest import Written, busy
from wattloop.accounting.energy_slope import Line
from wattloop.accounting.idle import IdleLine, IdleRecord, idle_path, save_idle
from wattloop.advise.advisor import advice_on
from wattloop.core.records import Provenance
from wattloop.core.settings import Settings
from wattloop.store.database import Store

START_S = 1_800_000_000.0


@pytest.fixture
def series(tmp_path: Path) -> Settings:
    """Return a series of 500 g/kWh at the run's begin, 200 three hours later and 300 after five."""
    hours = [500, 480, 450, 200, 210, 300]
    rows = "".join(f"{START_S - 60 + 3_600 * i:.0f},{g}\n" for i, g in enumerate(hours))
    file = tmp_path / "grid.csv"
    file.write_text(f"time,g_co2e_per_kwh\n{rows}")
    return Settings(carbon_file=str(file))


def test_the_cleanest_start_within_a_day_is_named(
    store: Store, written: Written, series: Settings
) -> None:
    """Promise: the hour comes from the user's own series, in grams and not in joules."""
    record = written(busy(), settings=series)
    (advice,) = advice_on(store, record, series)
    assert (advice.rule, advice.saving_j) == ("carbon-hour", None)
    assert advice.saving_share == pytest.approx(0.6)
    grams = (record.accounting or {})["carbon_g"]
    assert advice.saving_g == pytest.approx(0.6 * grams)


def test_without_a_series_no_hour_is_named(store: Store, written: Written) -> None:
    """Promise: a yearly mean of a country says nothing about hours."""
    settings = Settings(zone="FRA")
    assert advice_on(store, written(busy(), settings=settings), settings) == []


def test_a_missing_series_is_left_out(store: Store, written: Written) -> None:
    """Promise: an unreadable series is left out of the advice."""
    settings = Settings(carbon_file="/nowhere/grid.csv", carbon_g_per_kwh=100.0)
    assert advice_on(store, written(busy(), settings=settings), settings) == []


def test_a_machine_that_idles_until_the_next_run_is_named(store: Store, written: Written) -> None:
    """Promise: it needs an idle line of the machine, and a later run that bounds the idle time."""
    record = written(busy())
    assert advice_on(store, record) == []
    line = Line(0.0, 150.0, 1.0, 0.0, 6, 10.0, 700.0)
    lines = {"node": IdleLine("node", line, "socket", Provenance.MEASURED)}
    place = idle_path(str(store.journals.parent / "runs.db"), "machine")
    save_idle(place, IdleRecord("machine", "node1", "6.1", START_S - 86_400, lines))
    assert advice_on(store, record) == []  # its waiting time is still unknown
    written(busy(), run_id="run-2", started_wall_s=START_S + 60 + 7_200)
    (advice,) = advice_on(store, record)
    assert advice.rule == "idle-node"
    assert advice.saving_j == pytest.approx(150 * 7_200, rel=0.01)
    assert "idle line" in advice.source
