"""Promises of `wattloop devices`: helpful where nothing can be read, exact where it can."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Machine
from tests.support.transcripts import not_printed
from wattloop.cli.commands.devices import print_report
from wattloop.cli.main import main
from wattloop.core.errors import MeterUnavailable
from wattloop.meters.registry import Inventory


def test_machine_with_nothing_gets_help(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is missing, why, and the command that would allow it; exit code 0."""
    monkeypatch.delenv("WATTLOOP_METERS")
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert "no energy zone under" in text
    assert "sudo modprobe intel_rapl_msr" in text
    assert "to allow it:" in text
    assert "cpu/governor" in text
    # docs/devices.md shows such a machine
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text("utf-8")
    block = page.partition("    Can be measured\n")[2].partition("\n      ...")[0]
    unlike = ("cpu:0/package", "error is", "Can be")  # an estimate is not used here
    rows = [line.strip() for line in block.splitlines() if line.strip()]
    rows = [row.replace("/sys/class/powercap", "...") for row in rows]
    shown = tuple(row for row in rows if not row.startswith(unlike) and "every" not in row)
    assert len(shown) >= 3
    assert not_printed(shown, [line.strip() for line in text.splitlines()]) == []


def test_json_lists_meters_and_levers_with_reasons(
    here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every meter and lever has `available`, and a reason where it is not."""
    monkeypatch.delenv("WATTLOOP_METERS")
    assert main(["devices", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["meters"]
    assert data["levers"]
    for item in [*data["meters"], *data["levers"]]:
        assert item["available"] is True or item["reason"]
    assert len({tuple(sorted(meter)) for meter in data["meters"]}) == 1, "one shape for all"


def test_readable_package_is_listed(machine: Machine) -> None:
    """A readable package appears with source and provenance; its power limit as a lever."""
    out = machine.folder / "devices.json"
    done = machine.wattloop("devices", "--json", str(out))
    assert done.returncode == 0
    assert "cpu:0/package" in done.stdout.decode()
    data = json.loads(out.read_text())
    (rapl,) = [m for m in data["meters"] if m["name"] == "rapl"]
    assert rapl["available"] is True
    assert rapl["provenance"] == "measured"
    assert rapl["domains"][0]["name"] == "cpu:0/package"
    (limit,) = [lv for lv in data["levers"] if lv["name"] == "cpu:0/power_limit_long_term"]
    assert (limit["value"], limit["high"], limit["unit"]) == (150.0, 200.0, "W")


def test_verify_without_two_sources_says_so(machine: Machine) -> None:
    """--verify with one source per domain explains that there is nothing to compare."""
    done = machine.wattloop("devices", "--verify", "--seconds", "0.5")
    assert "nothing to compare" in done.stdout.decode()


def test_unreadable_counter_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal is printed with the parts it would read and the command that would allow it."""
    refusal = MeterUnavailable(
        "rapl", "energy_uj is not readable", "run 'sudo chmod a+r energy_uj'", ("cpu:0/package",)
    )
    inventory = Inventory(refusals=[refusal])
    print_report(inventory, [], None, everything=False)
    text = capsys.readouterr().out
    assert "rapl (would read cpu:0/package): energy_uj is not readable" in text
    assert "to allow it: run 'sudo chmod a+r energy_uj'" in text
    assert "never zero" in text


def test_gpus_that_a_run_leaves_out_are_named(machine: Machine) -> None:
    """Promise: all cards are listed, and those that the environment hides from a run are named."""
    variables = {"CUDA_VISIBLE_DEVICES": "1", "WATTLOOP_VIRTUAL_GPUS": "2", "WATTLOOP_METERS": ""}
    done = machine.wattloop("devices", "--json", "devices.json", **variables)
    data = json.loads((machine.folder / "devices.json").read_text())
    assert [part["name"] for part in data["left_out"]] == ["gpu:0"]
    assert "gpu:0 is not counted: CUDA_VISIBLE_DEVICES is '1'" in done.stdout.decode()
