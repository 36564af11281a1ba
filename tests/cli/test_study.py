"""Promises of `wattloop study` as a process: the next step is told, faults are sentences."""

import json

import pytest

from wattloop.cli.study_view import print_step

from .conftest import Machine


def test_the_example_can_be_studied_at_once(machine: Machine) -> None:
    """Promise: `init` writes a file that every step takes, and `status` tells the next one."""
    done = machine.wattloop("study", "init")
    assert b"wattloop study baseline study.yaml" in done.stderr
    status = machine.wattloop("study", "status")
    assert status.returncode == 0, status.stderr
    assert b"1 objective" in status.stdout
    assert b"next: wattloop study baseline study.yaml" in status.stderr
    told = json.loads(machine.wattloop("study", "status", "--json", "-").stdout)
    assert list(told["steps"]) == ["objective"]


def test_init_tells_programs_what_it_wrote(machine: Machine) -> None:
    """Promise: `--json` names the file and the next step."""
    told = json.loads(machine.wattloop("study", "init", "mine.yaml", "--json", "-").stdout)
    assert told["next"] == "wattloop study baseline mine.yaml"
    assert (machine.folder / "mine.yaml").samefile(told["file"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["baseline", "none.yaml"], "wattloop study init none.yaml"),
        (["simulate"], "wattloop study baseline"),
        (["init"], "name another file"),
        (["init", "/proc/study.yaml"], "choose another"),
        (["status", "--json", "none/x.json"], "no folder"),
    ],
)
def test_what_cannot_be_done_is_said(machine: Machine, words: list[str], said: str) -> None:
    """Promise: exit code 2 with what to do, never a traceback."""
    machine.wattloop("study", "init")
    done = machine.wattloop("study", *words)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert said in done.stderr.decode()


def test_a_gain_within_noise_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: characterize tells a proven gain of a sweep from chance, and simulated from real."""
    row = {"sweep": "s-1", "of": "", "provenance": "simulated"}
    sure = {**row, "metric": "EDP", "setting": "400 W", "gain_pct": 11.3, "beyond_noise": True}
    chance = {**row, "metric": "ED2P", "setting": "600 W", "gain_pct": 1.0, "beyond_noise": False}
    print_step("characterize", {"note": "", "best": [sure, chance]})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3:] for line in lines[1:]] == [
        ["W", "+11.3", "simulated", "s-1"],
        ["W", "+1.0", "(within", "noise)", "simulated", "s-1"],
    ]
