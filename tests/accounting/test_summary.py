import json
import re
import subprocess
import sys

import pytest

from tests.accounting.test_idle import idle_line
from tests.accounting.windows import domain, window
from wattloop.accounting.carbon import find_intensity
from wattloop.accounting.summary import account
from wattloop.core.records import Provenance
from wattloop.core.settings import Settings, read_config

RUN = window(
    61.2,
    domain("cpu:0/package", 4_100, uncertainty_j=20.0, tdp_w=150.0),
    domain("gpu:0", 8_000, uncertainty_j=30.0, tdp_w=250.0),
    domain("dram", 300, provenance=Provenance.MODELLED),
)
STATED = Settings(zone="FRA", tariff_per_kwh=0.2, pue=1.3)


def test_the_line_fits_a_log_and_is_complete():
    """Energy, uncertainty, time, parts with weak provenance, carbon, cost and efficiency."""
    assert account(RUN, STATED).line == (
        "wattloop: 3.44 Wh (12.4 kJ) ±0.3% in 1 min 01 s | cpu 1.14 Wh gpu 2.22 Wh dram 0.0833 Wh "
        "(modelled) | from the grid 6.84 Wh (modelled, PUE 1.3): 0.383 g CO2e FRA 2023, "
        "0.0014 EUR | efficiency 0.49 medium"
    )


def test_missing_parts_and_weak_provenance_are_in_the_line():
    """A total with a missing part says so; simulated never passes for measured."""
    run = window(
        10,
        domain("gpu:0", 2_000, provenance=Provenance.SIMULATED, tdp_w=250.0),
        missing=("dram", "cpu:0/package"),
    )
    line = account(run, STATED).line
    assert "gpu 2.00 kJ (simulated)" in line
    assert "dram missing cpu:0/package missing" in line
    assert "(simulated, PUE 1.3)" in line
    assert "medium (simulated)" in line


def test_without_readings_every_figure_is_missing_with_a_reason():
    """Without a sensor every derived number is None with a reason."""
    found = account(window(10, missing=("cpu",)), STATED)
    assert found.line == "wattloop: nothing measured in 10.0 s | cpu missing"
    assert (found.carbon_g, found.cost, found.node.energy_j) == (None, None, None)
    assert found.carbon_reason == "nothing was measured"


def test_what_is_not_set_is_none_with_what_to_set():
    """Without a zone, tariff or idle line the value is None, and the notes say how to get it."""
    found = account(RUN, Settings())
    assert (found.carbon_g, found.cost, found.application) == (None, None, None)
    notes = " ".join(found.notes)
    assert "set zone:" in notes
    assert "set tariff:" in notes
    assert "wattloop idle" in notes
    assert "g CO2e" not in found.line


def test_what_the_notes_say_to_write_can_be_read(tmp_path):
    """The keys that a note names are those of wattloop.yaml."""
    notes = " ".join(account(RUN, Settings()).notes)
    keys = re.findall(r"(?:set|or) (\w+: \{.*?\})", notes)
    assert len(keys) == 2
    file = tmp_path / "wattloop.yaml"
    file.write_text("\n".join(keys))
    found = account(RUN, read_config(file))
    assert (found.carbon_reason, found.cost_reason) == ("", "")


def test_the_example_of_energyscopium_end_to_end():
    """A node of 260 Wh, PUE 1.3, 369 g/kWh: 338.00 Wh and 124.72 g."""
    settings = Settings(pue=1.3, carbon_g_per_kwh=369.0)
    found = account(window(600, domain("node", 260 * 3_600.0)), settings)
    assert found.facility.energy_j / 3_600 == pytest.approx(338.00)
    assert found.carbon_g == pytest.approx(124.72, abs=0.005)


def test_application_energy_comes_with_the_age_of_its_lines():
    """Energy and the age of its lines go together; domains without a line are named."""
    found = account(
        RUN,
        Settings(),
        idle_lines={"gpu:0": idle_line("gpu:0", 2, 60)},
        idle_note="idle line fitted 2025-01-01 (3 days ago)",
    )
    assert found.application.energy_j == pytest.approx(8_000 - 2 - 60 * 61.2)
    assert "idle line fitted 2025-01-01 (3 days ago)" in found.notes
    assert any("without dram" in note for note in found.notes)


def test_a_carbon_series_is_laid_over_the_time_of_the_run(tmp_path):
    """started_wall_s places the window on the series."""
    path = tmp_path / "grid.csv"
    path.write_text("time,g_co2e_per_kwh\n0,100\n3600,300\n")
    found = account(RUN, Settings(carbon_file=str(path)), started_wall_s=3_600.0)
    assert found.intensity.g_co2e_per_kwh == 300


def test_an_intensity_found_before_is_not_looked_for_again():
    """A run of many windows asks a provider once."""
    search = find_intensity(Settings(zone="SWE"))
    found = account(RUN, Settings(carbon_url="http://127.0.0.1:9/"), intensity=search)
    assert found.intensity.zone == "SWE"


def test_the_account_is_plain_data():
    """The account survives JSON, with the keys that other parts of the product use."""
    data = json.loads(json.dumps(account(RUN, STATED).to_dict()))
    assert data["labels"] == {"cpu": "medium", "gpu": "medium", "node": "medium"}
    assert data["cost"]["currency"] == "EUR"
    assert data["node"]["provenance"] == "modelled"
    assert data["facility"]["pue"] == 1.3
    assert {e["name"] for e in data["equivalents"]} >= {"car", "phone"}
    assert data["summary"].startswith("wattloop: ")


def test_importing_the_summary_loads_nothing_heavy():
    """It loads the standard library only, and HTTP on demand."""
    code = (
        "import sys, wattloop.accounting.summary as s;"
        "heavy = {'numpy', 'pydantic', 'yaml', 'sqlalchemy', 'http.client', 'urllib.request',"
        " 'statistics', 'tempfile', 'difflib'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
