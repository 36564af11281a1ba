"""`wattloop slurm replay`: bad input without a traceback, and a small replay from end to end."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattloop
from tests.cli.pseudo_terminal import in_terminal
from tests.support.slurm_lab import SlurmLab, why_no_slurm
from wattloop.cli.main import main

needs_slurm = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")


def test_without_slurm_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slurm.conf that is not there is named at once, with exit code 2."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert main(["slurm", "replay", "slurm-lab"]) == 2
    assert "SLURM_CONF=/nowhere/slurm.conf: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-like-this"], "no scenario called"),
        (["slurm-lab", "--policies", "nope"], "unknown policy 'nope'"),
        (["slurm-lab", "--policies", "slurm,slurm"], "name each once"),
        (["slurm-lab", "--speedup", "0"], "speedup 0: give a factor from 1"),
        (["slurm-lab", "--jobs", "0"], "--jobs 0"),
        (["slurm-lab", "--seed", "-1"], "--seed -1"),
        (["slurm-lab", "--interval", "0"], "--interval 0"),
    ],
)
def test_bad_input_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before Slurm is looked for: exit code 2 and a line that says what is allowed."""
    assert main(["slurm", "replay", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    source = str(Path(wattloop.__file__).parent.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", source)  # jobs start in a folder of their own
        types = ["a100", "a100", "h100", "h100"]
        with SlurmLab(nodes=4, gpus=4, gpu_type=types, weights=[2, 2, 1, 1]) as lab:
            for name in ("SLURM_CONF", "PATH"):
                patch.setenv(name, lab.environment[name])
            yield lab


@needs_slurm
def test_a_replay_from_end_to_end(
    lab: SlurmLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm's own scheduler and zeus on three jobs: table, JSON, and what the power is."""
    target = tmp_path / "replay.json"
    words = ["--jobs", "3", "--speedup", "2000", "--policies", "slurm,zeus", "--json", str(target)]
    assert main(["slurm", "replay", "slurm-lab", *words, "--folder", str(lab.folder)]) == 0
    out, err = capsys.readouterr()
    assert "slurm (sched/backfill)" in out
    assert "Power is simulated" in err
    data = json.loads(target.read_text())
    assert [each["policy"] for each in data["policies"]] == ["slurm (sched/backfill)", "zeus"]
    for each in data["policies"]:
        assert each["real"]["done"] == each["simulated"]["done"] == 3
        assert each["power_samples_per_s"] > 0
        assert each["latency"]["starts"] >= 1
    assert lab.run("scontrol", "show", "reservation").strip() == "No reservations in the system"


@needs_slurm
@pytest.mark.parametrize("columns", [60, 200])
def test_a_replay_in_a_terminal(lab: SlurmLab, tmp_path: Path, columns: int) -> None:
    """Its bar and its table fit, and it ends well."""
    command = [sys.executable, "-m", "wattloop", "slurm", "replay", "slurm-lab", "--jobs", "2"]
    command += ["--speedup", "2000", "--policies", "slurm", "--folder", str(lab.folder)]
    found = in_terminal(command, {**os.environ, "TERM": "xterm-256color"}, tmp_path, columns)
    assert found.code == 0, found.text
    assert "Traceback" not in found.text
    assert any("in Slurm" in line for line in found.redrawn) or columns == 60
    assert [line for line in found.redrawn if len(line) > columns] == []
    tables = [line for line in found.text.splitlines() if re.match(r"\S.* {2,}\S.* {2,}\S", line)]
    assert tables
    assert [line for line in tables if len(line) > columns] == []


@needs_slurm
def test_a_scenario_that_does_not_fit_is_refused(
    lab: SlurmLab, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what this Slurm has."""
    assert main(["slurm", "replay", "thesis", "--jobs", "2"]) == 2
    assert "wider than this Slurm" in capsys.readouterr().err


@needs_slurm
def test_a_controller_that_is_away_is_said(
    lab: SlurmLab, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is submitted."""
    lab.kill("slurmctld")
    try:
        assert main(["slurm", "replay", "slurm-lab", "--jobs", "2"]) == 2
        assert "slurmctld does not answer" in capsys.readouterr().err
    finally:
        lab.start("slurmctld")
    assert os.environ["SLURM_CONF"]
