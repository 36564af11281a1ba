"""`wattloop carbon` and `run --when-green`, against a provider that answers as the real ones do."""

import csv
import io
import json
import os
import sys
import time

import pytest

from tests.accounting.test_grid import HOUR, TOKEN, world  # noqa: F401 - a fixture
from tests.cli.pseudo_terminal import in_terminal
from wattloop.accounting.carbon import load_series
from wattloop.cli.commands import carbon as verb
from wattloop.cli.main import main


@pytest.fixture
def falling(world, monkeypatch):  # noqa: F811 - the fixture
    """A grid whose intensity falls for the next five hours, and rises again."""
    world.value = lambda s: 100.0 + 20 * abs((s - world.now_s) / HOUR - 5)
    monkeypatch.setenv("WATTLOOP_CARBON_PROVIDER", f"electricity-maps:DE@{world.base}")
    return world


def test_the_forecast_and_the_best_start(here, falling, capsys):
    assert main(["carbon", "--lasts", "1h"]) == 0
    out, err = capsys.readouterr()
    assert "average intensity of DE by Electricity Maps" in err
    assert "start at " in err
    assert "100 instead of" in err
    assert "g/kWh" in out
    assert TOKEN not in out + err


def test_the_start_alone_is_what_sbatch_takes(here, falling, capsys):
    assert main(["carbon", "--lasts", "1h", "--within", "10h", "--begin"]) == 0
    start = time.mktime(time.strptime(capsys.readouterr().out.strip(), "%Y-%m-%dT%H:%M"))
    assert start == falling.now_s + 5 * HOUR


def test_the_file_is_a_carbon_file(here, falling, capsys, tmp_path):
    target = tmp_path / "grid.csv"
    assert main(["carbon", "-o", str(target)]) == 0
    points = load_series(target)
    assert points[0].g_co2e_per_kwh == 200.0
    assert len(points) == 25
    assert main(["carbon", "--past", "5h", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[-1]["g_co2e_per_kwh"] == 200.0


def test_prices_of_the_next_day(here, world, monkeypatch, capsys, tmp_path):  # noqa: F811
    monkeypatch.setenv("WATTLOOP_CARBON_PROVIDER", f"entsoe:FR@{world.base}")
    target = tmp_path / "prices.csv"
    assert main(["carbon", "--prices", "-o", str(target)]) == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [float(row["price_per_kwh"]) for row in rows] == [0.08, 0.08, -0.005]


def test_marginal_is_said(here, world, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("WATTLOOP_CARBON_PROVIDER", f"watttime:CAISO_NORTH@{world.base}")
    assert main(["carbon"]) == 0
    assert "not comparable with averages" in capsys.readouterr().err


def test_without_a_provider_the_country_serves_and_nothing_is_asked(here, monkeypatch, capsys):
    assert main(["carbon"]) != 0
    assert "no zone and no provider" in capsys.readouterr().err
    monkeypatch.setenv("WATTLOOP_ZONE", "FRA")
    assert main(["carbon"]) == 0
    assert "annual mean of France" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lasts", "soon"], "--lasts"),
        (["--lasts", "0h"], "above 0"),
        (["--lasts", "90h"], "shorter --lasts"),
        (["--provider", "grid"], "use electricity-maps"),
        (["--prices"], "publishes no prices"),
    ],
)
def test_mistakes_say_what_would_work(here, falling, capsys, words, says):
    assert main(["carbon", *words]) != 0
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_in_a_terminal(here, falling, columns):
    command = [sys.executable, "-m", "wattloop", "carbon"]
    shown = in_terminal(command, dict(os.environ), here.folder, columns)
    assert shown.code == 0
    assert "start at" in shown.text
    assert max(map(len, shown.text.splitlines()[1:-2])) <= columns


def test_run_waits_for_the_green_hours(here, falling, monkeypatch, capsys):
    """Promise: the program starts in the best hour, and the wait is announced."""
    clock = [falling.now_s + 1]
    monkeypatch.setattr(verb.time, "time", lambda: clock[0])
    monkeypatch.setattr(verb.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    assert main(["run", "--when-green", "12h", "--", "true"]) == 0
    assert clock[0] == falling.now_s + 5 * HOUR
    assert "less carbon (average intensity of DE" in capsys.readouterr().err


def test_run_starts_now_without_a_forecast(here, falling, capsys):
    falling.status = 503
    assert main(["run", "--when-green", "12h", "--", "true"]) == 0
    assert "no forecast, starting now" in capsys.readouterr().err


def test_when_green_without_a_provider_starts_nothing(here, capsys, tmp_path):
    mark = tmp_path / "ran"
    assert main(["run", "--when-green", "12h", "--", "touch", str(mark)]) != 0
    assert "needs a forecast" in capsys.readouterr().err
    assert not mark.exists()
    assert main(["run", "--lasts", "1h", "--", "true"]) != 0
    assert "add --when-green" in capsys.readouterr().err
