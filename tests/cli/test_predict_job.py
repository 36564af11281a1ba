"""Promises of `wattloop predict job`: a job's estimate on every placement, with its sources."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Machine
from wattloop.cli.main import main

TAG = "wattloop:model=resnet50,precision=tf32,batch=64,samples=1e6"


def test_every_placement_with_its_energy_and_the_best(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts and caps that the comment allows, on the cluster's GPU types."""
    words = ["--cluster", "thesis", "--comment", f"{TAG},gpus=1|2,caps=0.7|1", "--gpus", "2"]
    assert main(["predict", "job", *words]) == 0
    out, said = capsys.readouterr()
    rows = [line for line in out.splitlines() if " x " in line]
    assert len(rows) == 8 and sum("best" in row for row in rows) == 1
    assert all("Wh (" in row for row in rows)
    assert "resnet-50 tf32: known from comment" in said


def test_the_answer_is_that_of_the_service(here: Machine) -> None:
    """`--json` has what the API answers."""
    words = ["--cluster", "thesis", "--comment", TAG, "--json", "answer.json"]
    assert main(["predict", "job", *words]) == 0
    found: Any = json.loads(Path("answer.json").read_text())
    assert {row["provenance"] for row in found["results"]} == {"predicted"}
    assert found["jobs"][0]["best"] is not None


def test_rules_and_refusals_are_told(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the source of an estimate, and rejected statements."""
    Path("jobs.yaml").write_text(
        "rules: [{name: 'res*', job: {model: resnet-50, precision: tf32, batch: 64, samples: 9}}]"
    )
    words = ["--cluster", "thesis", "--mapping", "jobs.yaml", "--name", "resnet"]
    assert main(["predict", "job", *words, "--comment", "wattloop:gpus=0"]) == 0
    said = capsys.readouterr().err
    assert "known from rules" in said and "not believed: comment: gpus='0'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "nowhere"], "no cluster called 'nowhere'"),
        (["--cluster", "thesis", "--time-limit", "soon"], "--time-limit: 'soon' is not a time"),
        (["--cluster", "thesis", "--time-limit", "0"], "must be above 0"),
        (["--cluster", "thesis", "--objective", "x"], "choose one of energy, time, edp"),
        (["--cluster", "thesis", "--json", "no/such/x"], "no folder"),
        (["--cluster", "thesis", "--mapping", "no.yaml"], "no.yaml: cannot be read"),
    ],
)
def test_bad_input_is_told_in_words(
    here: Machine, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Exit code 2, no traceback."""
    assert main(["predict", "job", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_job_of_which_nothing_is_known_says_so(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """No figure is invented."""
    assert main(["predict", "job", "--cluster", "thesis", "--comment", "wattloop:model=x"]) == 0
    out, said = capsys.readouterr()
    assert out == "" and "nothing is known" in said and "no price: model 'x': unknown" in said
