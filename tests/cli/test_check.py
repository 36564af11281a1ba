"""Promises of `wattloop check`, tested by real processes."""

import json

import pytest

from .conftest import Machine

SLEEP = ("python3", "-c", "import sys, time; time.sleep(float(sys.argv[1])); print('hello')")


def check(machine: Machine, seconds: float, *options: str) -> tuple[int, str, str]:
    done = machine.wattloop(
        "check", "--baseline", "b.json", "--name", "nap", "--repeats", "1", *options,
        "--", *SLEEP, str(seconds),
    )  # fmt: skip
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def scattered(machine: Machine, figure: str, *values: float) -> None:
    """Put these values into the baseline, so that no verdict depends on how busy we are."""
    file = machine.folder / "b.json"
    data = json.loads(file.read_text())
    data["entries"]["nap"][0]["figures"][figure]["values"] = values
    file.write_text(json.dumps(data))


def test_joules_are_compared_where_there_is_a_sensor(machine: Machine) -> None:
    """Promise: 3 where noise leaves it unclear, 1 and a Markdown table for more, 0 for less."""
    code, _, said = check(machine, 0.1, "--update")
    assert code == 0
    assert "b.json: nap: energy" in said
    scattered(machine, "energy", 1.0, 5_000.0)
    code, printed, _ = check(machine, 0.1, "--json", "same.json")
    assert (code, "energy (measured)" in printed) == (3, True)
    code, _, said = check(machine, 0.1, "--strict")
    assert (code, "cannot tell" in said) == (1, True)
    same = json.loads((machine.folder / "same.json").read_text())
    assert same["verdict"] == "unclear"
    assert same["parts"] == ["cpu:0/package"]
    assert len(same["runs"]) == 1
    scattered(machine, "energy", 1.0, 1.1)
    code, _, _ = check(machine, 0.1, "--markdown", "pr.md")
    assert code == 1
    table = (machine.folder / "pr.md").read_text()
    assert "### Energy check: regression" in table
    assert "| energy (measured) |" in table
    assert "❌ **regression**" in table
    scattered(machine, "energy", 50_000.0, 50_001.0)
    code, printed, _ = check(machine, 0.1)
    assert (code, "improved" in printed) == (0, True)


def test_without_a_sensor_cpu_time_is_compared_and_said(bare: Machine) -> None:
    """Promise: no joules, so what the kernel counts; programs print to standard error."""
    code, _, said = check(bare, 0.01, "--update")
    assert code == 0
    assert "no sensor can be read here, so " in said
    judged = json.loads((bare.folder / "b.json").read_text())["entries"]["nap"][0]["judged"]
    scattered(bare, judged, 0.0001, 1e12)
    code, printed, said = check(bare, 0.01, "--json", "-")
    assert code == 3, said
    found = json.loads(printed)
    assert found["judged"]["figure"] in ("cpu_time", "instructions")
    assert found["provenance"] == "counted"
    assert "compared in its place" in found["remarks"][0]
    assert said.count("hello") == 1
    data = json.loads((bare.folder / "b.json").read_text())
    data["entries"]["nap"][0]["machine"]["cpu"] = "Another"
    (bare.folder / "b.json").write_text(json.dumps(data))
    code, _, said = check(bare, 0.01)
    assert code == 2
    assert "taken on another machine (Another" in said
    code, _, said = check(bare, 0.01, "--other-machine")
    assert (code, "compared with another kind of machine" in said) == (3, True)


def test_a_baseline_in_joules_is_not_compared_with_seconds(machine: Machine) -> None:
    """Promise: sensors that are gone make no comparison, unless another figure is chosen."""
    assert check(machine, 0.02, "--update")[0] == 0
    blind = Machine(machine.folder, {**machine.environment, "WATTLOOP_METERS": "yokogawa"})
    code, _, said = check(blind, 0.02)
    assert code == 2
    assert "judges energy, and here it would be" in said
    scattered(machine, "cpu_time", 0.0001, 1_000.0)
    code, _, _ = check(blind, 0.02, "--figure", "cpu_time")
    assert code == 3


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (["--baseline", "none.json"], ["true"], "no such baseline yet"),
        (["--baseline", "torn.json"], ["true"], "not JSON"),
        (["--baseline", "newer.json"], ["true"], "upgrade wattloop"),
        (["--baseline", "new.json", "--update"], ["false"], "the command failed (exit code 1)"),
        (["--baseline", "new.json", "--update"], ["no-such-program"], "command not found"),
        (["--baseline", "new.json", "--tolerance", "5"], ["true"], "write a share"),
        (["--baseline", "new.json", "--figure", "joy"], ["true"], "choose one of energy"),
        (["--baseline", "none/b.json", "--update"], ["true"], "no folder"),
        (["--baseline", "new.json", "--update", "--figure", "energy"], ["true"], "no energy"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(
    options: list[str], command: list[str], said: str, here: Machine,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Promise: never a traceback, never a verdict on what was not compared."""
    from wattloop.cli.main import main

    (here.folder / "torn.json").write_text("{")
    (here.folder / "newer.json").write_text('{"format": "wattloop-baselines", "version": 9}')
    assert main(["check", "--repeats", "1", *options, "--", *command]) == 2
    assert said in capsys.readouterr().err
    assert not (here.folder / "new.json").exists()
