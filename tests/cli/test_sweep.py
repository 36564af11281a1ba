"""Promises of `wattloop sweep`, on virtual GPUs."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import SRC, Machine
from tests.support.environment import without
from tests.sweep.conftest import virtual_environment
from wattloop.cli.main import main

WORK = """
from wattloop.virtual.node import shared_machine
from wattloop.virtual.gpu import GpuWork
shared_machine(1).gpus[0].run(GpuWork(flops=989e12 * 0.3))
"""
SPEC = """\
name: caps
levers:
  gpu/power_limit: [300, 500]
repeats: 1
warmup: 0
"""


@pytest.fixture
def node(tmp_path: Path) -> Machine:
    """A machine with two virtual GPUs, for processes of their own."""
    kept = without("WATTLOOP", "XDG")
    own = virtual_environment(tmp_path)
    path = f"{SRC}{os.pathsep}{own.pop('SITE')}"
    environment = {**kept, **own, "PYTHONPATH": path, "HOME": str(tmp_path), "COLUMNS": "200"}
    (tmp_path / "caps.yaml").write_text(SPEC)
    return Machine(tmp_path, environment)


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machine:
    """The same for this process, for what ends before anything is started."""
    for name in os.environ.keys() - without("WATTLOOP", "XDG").keys():
        monkeypatch.delenv(name)
    own = virtual_environment(tmp_path)
    monkeypatch.syspath_prepend(own.pop("SITE"))
    for name, value in {**own, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caps.yaml").write_text(SPEC)
    return Machine(tmp_path, own)


def test_a_sweep_is_run_shown_listed_and_exported(node: Machine) -> None:
    """From a file and a command to a table, JSON, a list and CSV."""
    command = [sys.executable, "-c", WORK]
    done = node.wattloop("sweep", "caps.yaml", "--json", "out.json", "--", *command)
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode()
    assert "caps, energy of gpu (simulated)" in printed
    assert "700 W (default)" in printed
    assert "EDS (k=1.5)" in printed
    data = json.loads((node.folder / "out.json").read_text())
    assert data["status"] == "finished"
    times = [p["time_s"]["mean"] for p in data["points"]]
    assert len(times) == 3
    average_w = [p["average_w"]["gpu"]["mean"] for p in data["points"]]
    assert average_w[0] < average_w[2], "the lower cap draws less"
    assert {b["metric"] for b in data["best"]} >= {"energy", "edp", "ed2p", "eds(1.5)", "eds(2)"}
    identity = data["experiment_id"]
    listed = json.loads(node.wattloop("sweep", "list", "--json", "-").stdout)["sweeps"]
    assert [(s["experiment_id"], s["name"], s["ended"]) for s in listed] == [(identity, "caps", 3)]
    shown = node.wattloop("sweep", "show", identity[-4:], "--tables", "all").stdout.decode()
    assert "Best EDP gain with its time" in shown
    rows = list(csv.DictReader(io.StringIO(node.wattloop("sweep", "export").stdout.decode())))
    assert [float(row["time_s"]) for row in rows if row["gpu/power_limit"] == "300 W"] == [
        pytest.approx(times[0])
    ]
    points = node.wattloop("sweep", "export", "caps", "--what", "points", "-o", "p.json")
    assert points.returncode == 0
    assert len(json.loads((node.folder / "p.json").read_text())) == 3
    runs = json.loads(node.wattloop("runs", "list", "--json", "-").stdout)["runs"]
    assert len(runs) == 3


def test_ctrl_c_leaves_it_resumable_and_the_levers_as_they_were(node: Machine) -> None:
    """The program that ran is ended; the rest is done by `sweep resume`."""
    mark = node.folder / "started"
    script = f"echo x >> {mark}; test $(wc -l < {mark}) -ge 3 || sleep 60"
    words = ["sweep", "caps.yaml", "--timeout", "90", "--", "sh", "-c", script]
    mark.write_text("x\n")
    ours = subprocess.Popen(
        node.command(*words), env=node.environment, cwd=node.folder, stderr=subprocess.PIPE
    )
    while mark.read_text().count("x") < 2:
        time.sleep(0.05)
    ours.send_signal(signal.SIGINT)
    said = ours.communicate(timeout=300)[1].decode()
    assert ours.returncode == 130
    assert "wattloop sweep resume sweep-" in said
    levers = json.loads(node.wattloop("devices", "--json", "-").stdout)["levers"]
    caps = [lever["value"] for lever in levers if lever["name"].endswith("power_limit")]
    assert [cap for cap in caps if cap is not None] == [700.0, 700.0]
    resumed = node.wattloop("sweep", "resume", "--json", "-")
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert json.loads(resumed.stdout)["status"] == "finished"
    assert mark.read_text().count("x") == 2 + 3


def test_only_the_training_counts_with_a_window(node: Machine) -> None:
    """The program starts slowly; the window is as long as the work in it, and tables say so."""
    train = ["-m", "wattloop.virtual.train", "--job", "matmul", "--steps", "2", "--window", "steps"]
    slow = f"sleep 0.5; exec {sys.executable} {' '.join(train)} --time-scale 100"
    words = ["sweep", "caps.yaml", "--window", "steps", "--json", "out.json", "--", "sh", "-c"]
    done = node.wattloop(*words, slow)
    assert done.returncode == 0, done.stderr.decode()
    assert "caps, window 'steps', energy of gpu (simulated)" in done.stdout.decode()
    assert node.wattloop("sweep", "export", "-o", "t.json").returncode == 0
    for trial in json.loads((node.folder / "t.json").read_text()):
        (log,) = node.folder.rglob(f"*{trial['gpu/power_limit'][:3]}*.log")
        worked_s = json.loads(log.read_text().splitlines()[-1])["wall_s"]
        assert worked_s <= trial["time_s"] <= trial["program_s"] - 0.5


def test_a_killed_sweep_is_listed_as_interrupted_and_resumed(node: Machine) -> None:
    """A killed sweep cannot write its end; `resume` finds it among finished ones."""
    mark = node.folder / "started"
    script = f"echo x >> {mark}; test $(wc -l < {mark}) -ge 2 || sleep 60"
    words = ["sweep", "caps.yaml", "--", "sh", "-c", script]
    ours = subprocess.Popen(node.command(*words), env=node.environment, cwd=node.folder)
    while not mark.exists():
        time.sleep(0.02)
    assert _statuses(node) == ["running"]
    for again in (words, ["sweep", "resume"]):
        second = node.wattloop(*again)
        assert second.returncode == 2
        assert f"is being run by process {ours.pid}".encode() in second.stderr
        assert b"going on with" not in second.stderr
    ours.kill()
    ours.wait()
    assert _statuses(node) == ["interrupted"]
    other = node.wattloop("sweep", "--cap=300", "--repeats=1", "--warmup=0", "--", "true")
    assert b"is short for gpu:0" in other.stderr
    assert node.wattloop("sweep", "resume").returncode == 0
    assert _statuses(node) == ["finished", "finished"]
    nothing = node.wattloop("sweep", "resume")
    assert (nothing.returncode, b"every sweep is finished" in nothing.stderr) == (2, True)
    only = node.wattloop("sweep", "--cap=200", "--resume", "--", "true")
    assert (only.returncode, b"no unfinished sweep" in only.stderr) == (2, True)
    assert _statuses(node) == ["finished", "finished"], "a refusal begins no sweep"
    dram = node.wattloop("sweep", "show", "caps", "--scope", "dram").stderr
    assert b"no energy of dram was measured; there is gpu" in dram


def _statuses(node: Machine) -> list[str]:
    listed = json.loads(node.wattloop("sweep", "list", "--json", "-").stdout)["sweeps"]
    return [sweep["status"] for sweep in listed]


def test_a_dry_run_lists_points_and_writes_and_does_nothing(
    inside: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every point, every value of every lever, the command; no store is made."""
    words = ["sweep", "--cap", "300:500:200", "--gpus", "1,2", "--dry-run"]
    assert main([*words, "--", "train", "--n", "{gpus}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("6 points")
    assert printed.count("power_limit = 300 W") == 4
    assert printed.count("$ train --n 2") == 3
    assert "CUDA_VISIBLE_DEVICES=0,1" in printed
    assert not (inside.folder / "runs.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "--cap", "300", "--", "no-such-program"], "command not found"),
        (["sweep", "--cap", "3000", "--", "true"], "3000 W is outside 200 to 700 W"),
        (["sweep", "--lever", "gpu/powr_limit=300", "--", "true"], "did you mean gpu"),
        (["sweep", "--lever", "gpu:5/power_limit=300", "--", "true"], "there is no gpu:5 here"),
        (["sweep", "--lever", "x", "--", "true"], "write NAME=VALUES"),
        (["sweep", "--gpus", "1,16", "--", "true"], "16 asked for, but there are 2 here"),
        (["sweep", "--gpus", "two", "--", "true"], "write numbers with commas"),
        (["sweep", "--cap", "300"], "no command to sweep"),
        (["sweep", "--cap", "300", "--repeats", "x", "--", "true"], "MIN:MAX"),
        (["sweep", "--cap", "300:200", "--", "true"], "power_limit"),
        (["sweep", "--kernel", "gem"], "gemm"),
        (["sweep", "none.yaml", "--", "true"], "none.yaml: cannot be read"),
        (["sweep", "typo.yaml", "--", "true"], "typo.yaml:2: unknown field 'repeets'"),
        (["sweep", "--cap", "300", "--warmup", "0", "--", "false"], "default setting"),
        (["sweep", "--cap=300", "--timeout=0.2", "--", "sleep", "60"], "did not end within 0.2 s"),
        (["sweep", "--", "true"], "nothing to vary"),
        (["sweep", "--cap", "300", "--figures", "/proc/x", "--", "true"], "cannot be written"),
        (["sweep", "--cap", "300", "--window", "w", "--", "true"], "it measured no window 'w'"),
        (["sweep", "--cap", "300", "--resume", "--", "true"], "no unfinished sweep"),
        (["sweep", "show", "zz"], "no runs yet"),
        (["sweep", "show", "--tables", "bset"], "did you mean 'best'"),
        (["sweep", "resume"], "no sweep yet"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(
    inside: Machine, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """The error has the place and the remedy, and never a traceback."""
    (inside.folder / "typo.yaml").write_text("name: x\nrepeets: 3\n")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_machine_without_levers_says_what_it_would_need(
    inside: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to try it all the same."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "0")
    monkeypatch.delenv("WATTLOOP_METERS")
    assert main(["sweep", "--cap", "300", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "cannot be set here: " in said
    assert "WATTLOOP_VIRTUAL_GPUS=1" in said
