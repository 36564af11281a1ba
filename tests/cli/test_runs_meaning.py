"""Promises of `runs show` and `runs slope`: they explain a run's joules."""

import pytest

from wattloop.accounting.summary import account
from wattloop.cli.commands.runs.command import slopes_of
from wattloop.cli.commands.runs.view import meaning_lines
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.core.settings import Settings
from wattloop.store.runs import RunRecord


def result(duration_s: float, energy_j: float) -> WindowResult:
    gpu = DomainEnergy(
        name="gpu:0",
        scope=Scope.GPU,
        energy_j=energy_j,
        uncertainty_j=1.0,
        provenance=Provenance.MEASURED,
        source="NVML energy counter",
        tdp_w=300.0,
        tdp_note="enforced power limit 300 W of 700 W default",
        device="NVIDIA H200",
    )
    return WindowResult(
        name="run", window_id=0, parent_id=None, begin_s=0.0, end_s=duration_s, domains=(gpu,)
    )


def test_efficiency_under_a_cap_says_against_what() -> None:
    """The stored account of a capped GPU names the limit that it refers to."""
    told = "\n".join(meaning_lines(account(result(10.0, 2_850.0), Settings()).to_dict()))
    assert "efficiency   gpu:0: 0.95 high (of 300 W: enforced power limit 300 W of 700 W" in told
    assert "insight" in told


def test_carbon_and_cost_are_told_when_they_are_known() -> None:
    """Zone and tariff give a line for what was drawn from the grid, with km by car below."""
    settings = Settings(zone="FRA", tariff_per_kwh=0.2, pue=1.3)
    told = meaning_lines(account(result(3_600.0, 1e6), settings).to_dict())
    (grid,) = [line for line in told if line.startswith("grid")]
    assert "PUE 1.3" in grid
    assert "CO2e" in grid
    assert "EUR" in grid
    assert any("km driven" in line for line in told)


def test_a_run_without_account_tells_nothing() -> None:
    """An imported run has none."""
    assert meaning_lines(None) == []


def test_slope_is_the_power_of_a_further_second() -> None:
    """Runs of 1, 2 and 5 s at 200 W above 50 J lie on a line of 200 W."""
    records = [
        RunRecord(run_id=f"r{t}", result=result(float(t), 50.0 + 200.0 * t)) for t in (1, 2, 5)
    ]
    (slope,) = slopes_of(records)["slopes"]
    assert slope["device"] == "gpu:0 NVIDIA H200"
    assert slope["slope_w"] == pytest.approx(200.0)
    assert slope["intercept_j"] == pytest.approx(50.0)


def test_runs_that_make_no_line_say_so() -> None:
    """Two runs are no line; a run that another one counts is left out."""
    records = [
        RunRecord(run_id="a", result=result(1.0, 250.0)),
        RunRecord(run_id="b", result=result(2.0, 450.0)),
        RunRecord(run_id="c", result=result(5.0, 9.0), counted=False),
    ]
    data = slopes_of(records)
    assert data["slopes"] == []
    assert "no slope" in data["missing"][0]["reason"]
