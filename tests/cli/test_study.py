"""Promises of `wattloop study` as a process: it names the next step, and errors are sentences."""

import json
from pathlib import Path

import pytest

from wattloop.cli.commands.study import print_step
from wattloop.core.table import Table
from wattloop.report.document import Note
from wattloop.report.study import report_of_study
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment

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


def test_a_report_says_what_the_terminal_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: every row and number of a step reads the same in both."""
    best = {"metric": "EDP", "of": "", "setting": "400 W", "gain_pct": 1.04, "beyond_noise": False}
    twin = {"metric": "energy_kwh", "measured": 1.23456789, "simulated": 1.2, "off": 0.028}
    verdict = {"metric": "energy_kwh", "goal": "-10%", "before": 2.0, "after": 1.5, "met": True}
    judged = {**verdict, "change": None, "verdict": "met", "why": "-30% to -20%"}
    steps = {
        "characterize": {"note": "", "best": [{**best, "provenance": "measured", "sweep": "s-1"}]},
        "simulate": {
            "twin": [{**twin, "within": True}],
            "candidates": {"zeus": {"verdicts": [judged]}},
            "base": "pollux",
            "source": "c-1",
        },
        "validate": {
            "choice": "zeus",
            "verdicts": [judged],
            "differed": [
                {"metric": "energy_kwh", "predicted": None, "found": 1.5},
                {"metric": "time_s", "predicted": 1 / 3, "found": 0.5},
            ],
            "success": True,
            "provenance": "measured",
            "source": "r-1",
        },
    }
    study = Experiment(experiment_id="study-1", kind="study", facts={"steps": steps})
    with open_store(tmp_path / "runs.db") as store:
        document = report_of_study(store, study)
    blocks = [block for section in document.sections for block in section.blocks]
    for step, found in steps.items():
        print_step(step, found)
    said = capsys.readouterr()
    printed = [" ".join(line.split()) for line in said.out.splitlines()]
    rows = [row for block in blocks if isinstance(block, Table) for row in block.rows]
    assert len(rows) == 4
    for row in rows:
        shown = " ".join(row[:4]) if "s-1" not in row else " ".join(row)
        assert any(line.startswith(shown) for line in printed), (shown, printed)
    told = [b.text for b in blocks if isinstance(b, Note) and b.title == "Differed:"]
    assert told == ["energy_kwh predicted -, found 1.5", "time_s predicted 0.33333, found 0.5"]
    assert [line.partition("differed: ")[2] for line in said.err.splitlines()] == told
