"""`wattloop cap`: find on virtual GPUs, evaluate on tables, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.characterize.virtual_caps import SRC, machine, settle, virtual_curve, wattloop
from wattloop.characterize.cap_run import ProgressLines
from wattloop.characterize.cap_table import COLUMNS
from wattloop.cli.main import main
from wattloop.control.registry import find_levers, levers_named
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings

TRAIN = [sys.executable, "-m", "wattloop.virtual.train", "--gpus", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """This process, too, is on the machine with virtual GPUs."""
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def limits():
    found = levers_named(find_levers(settings=Settings(virtual_gpus=2)), "gpu/power_limit")
    return {lever.read() for lever in found}


def table(folder):
    caps = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
    rows = [",".join(COLUMNS)]
    for intensity in (20.0, 150.0, 300.0, 600.0):
        curve = virtual_curve("v100", intensity, caps)
        rows += [
            f"d,n{intensity:g},1,sgd,{cap},{time_s},{power_w}"
            for cap, time_s, power_w in zip(caps, curve.time_s, curve.power_w, strict=True)
        ]
    path = folder / "power.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_evaluate_writes_every_field(tmp_path):
    """Promise: the fields that other programs read, of a table of the stated shape."""
    done = wattloop(
        tmp_path, "cap", "evaluate", "--table", str(table(tmp_path)), "--metric", "eds",
        "--k", "1.5", "--noise", "2", "--seeds", "2", "--json", "e.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["curves"] == 4
    assert 1 <= found["responsive_curves"] <= 4
    assert 0 <= found["within_2pct_share"] <= 1
    assert 1 <= found["median_probes"] <= 4
    assert found["worst_regret_pct"] >= 0
    assert 0 <= found["exhaustive_within_2pct_share"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "--table", "absent.csv"], "no such file"),
        (["evaluate", "--table", "power.csv", "--metric", "joule"], "unknown metric"),
        (["evaluate", "--table", "power.csv", "--k", "1"], "above 1"),
        (["evaluate", "--table", "power.csv", "--noise", "-1"], "--noise"),
        (["evaluate", "--table", "power.csv", "--seeds", "0"], "--seeds"),
        (["find"], "no command"),
        (["find", "--metric", "joule", "--", "true"], "unknown metric"),
        (["find", "--k", "0.5", "--", "true"], "above 1"),
        (["find", "--gpus", "9", "--", "true"], "no gpu:9"),
        (["find", "--caps", "5,10", "--", "true"], "outside"),
        (["find", "--apply", "--", "true"], "--apply"),
        (["find", "--timeout", "0", "--", "true"], "--timeout"),
        (["find", "--progress", "(", "--", "true"], "not a regular expression"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2(tmp_path, words, message, capsys):
    """Promise: what is wrong, exit code 2, no traceback."""
    table(tmp_path)
    assert main(["cap", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_machine_without_levers_says_what_it_would_need(monkeypatch, capsys):
    """Promise: no GPU is a message, with the virtual one as a way to try."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "0")
    assert main(["cap", "find", "--", "true"]) == 2
    assert "WATTLOOP_VIRTUAL_GPUS" in capsys.readouterr().err


def test_find_runs_the_command_per_probe_and_puts_the_caps_back(tmp_path):
    """Promise: few runs, a cap with gains and how to use it, limits as before."""
    job = [*TRAIN, "--steps", "5", "--time-scale", "300"]
    done = wattloop(
        tmp_path, "cap", "find", "--metric", "edp", "--caps", "300:700:100", "--probes", "3",
        "--json", "r.json", "--", *job,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["provenance"] == "simulated"
    assert found["probes"][0]["cap_w"] == 700
    assert found["choice"]["cap_w"] in (300, 400, 500, 600, 700)
    assert "best cap for edp" in done.stdout
    assert "wattloop set gpu:0,1/power_limit=" in done.stdout
    assert limits() == {700}


def test_a_command_that_fails_or_hangs_is_told_and_the_probes_are_kept(tmp_path):
    """Promise: exit code 2, what the command said, limits back; paid probes are not paid again."""
    script = tmp_path / "job.py"
    script.write_text(
        "import pathlib, sys\n"
        "runs = pathlib.Path('runs'); runs.write_text(runs.read_text() + 'x' if runs.exists() "
        "else 'x')\n"
        "if len(runs.read_text()) == 2: sys.exit('out of memory')\n"
        "from wattloop.virtual.train import main\n"
        "main(['--gpus', '2', '--steps', '3', '--time-scale', '400'])\n"
    )
    words = [
        "cap",
        "find",
        "--caps",
        "300:700:100",
        "--probes",
        "2",
        "--",
        sys.executable,
        "job.py",
    ]
    failed = wattloop(tmp_path, *words)
    assert failed.returncode == 2
    assert "out of memory" in failed.stderr
    again = wattloop(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert "going on with" in again.stderr
    assert len((tmp_path / "runs").read_text()) == 3
    hung = wattloop(
        tmp_path, "cap", "find", "--timeout", "0.5", "--", sys.executable, "-c",
        "import time; time.sleep(60)",
    )  # fmt: skip
    assert hung.returncode == 2
    assert "did not end within 0.5 s" in hung.stderr
    assert limits() == {700}


def test_dry_run_shows_every_write_and_runs_nothing(tmp_path, capsys):
    """Promise: nothing is set, nothing is started."""
    assert main(["cap", "find", "--dry-run", "--caps", "300,700", "--", "touch", "x"]) == 0
    assert "power_limit = 300 W" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()
    assert limits() == {700}


def test_progress_probes_within_one_run(tmp_path):
    """Promise: one run, several caps, the rest of the run at the cap found, limits back."""
    job = [*TRAIN, "--steps", "400", "--time-scale", "8"]
    done = wattloop(
        tmp_path, "cap", "find", "--metric", "edp", "--caps", "300:700:100", "--probes", "2",
        "--probe-seconds", "1", "--progress", r"step (\d+)/", "--apply", "--json", "r.json",
        "--", *job,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["probes"]) >= 1
    assert done.stdout.count("step 1/400") == 1
    assert limits() == {700}


def test_progress_that_never_matches_says_so(tmp_path):
    """Promise: no cap found, and why."""
    done = wattloop(tmp_path, "cap", "find", "--progress", "epoch", "--", "echo", "step 1")
    assert done.returncode == 2
    assert "0 lines matched" in done.stderr


def test_ctrl_c_puts_the_caps_back(tmp_path):
    """Promise: interrupted in the middle of a probe, nothing stays set and nothing runs on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wattloop", "cap", "find", "--caps", "300,400", "--",
         sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, **machine(tmp_path), "PYTHONPATH": f"{tmp_path / 'site'}:{SRC}"},
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # the reference has begun: 400 W is set or about to be
    give_up_s = time.monotonic() + 20
    while limits() != {400} and time.monotonic() < give_up_s:
        time.sleep(0.1)
    assert limits() == {400}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert limits() == {700}


def test_lines_of_progress_are_counted():
    """Promise: a number counts how far it has grown, a line without one is one unit."""
    numbered = ProgressLines(r"step (\d+)")
    assert [numbered.units(f"step {n}") for n in (10, 20, 50, 10)] == [0, 10, 30, 0]
    assert numbered.units("loss 3") is None
    assert ProgressLines("done").units("batch done") == 1
    with pytest.raises(ConfigError, match="not a regular expression"):
        ProgressLines("[")
