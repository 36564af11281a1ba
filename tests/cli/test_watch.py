"""Promises of `wattloop watch` and `wattloop idle`."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import POWER_W, Machine
from wattloop.cli.commands.watch import sparkline
from wattloop.cli.main import main


def test_once_shows_power_now(machine: Machine) -> None:
    """--once prints one plain report and its JSON holds the known power."""
    out = machine.folder / "watch.json"
    done = machine.wattloop("watch", "--once", "--json", str(out))
    assert done.returncode == 0
    assert "cpu:0/package" in done.stdout.decode()
    data = json.loads(out.read_text())
    # A single look at a driver that may be late by some milliseconds.
    assert data["total_w"] == pytest.approx(POWER_W, rel=0.3)


def test_plain_lines_without_a_terminal(machine: Machine) -> None:
    """Elsewhere than on a terminal: one line per look, then the end."""
    done = machine.wattloop("watch", "--seconds", "0.9", "--refresh", "0.3")
    lines = done.stdout.decode().splitlines()
    assert 2 <= len(lines) <= 3
    assert all("total" in line and "\x1b" not in line for line in lines)


def test_names_stay_whole_on_a_narrow_terminal(machine: Machine) -> None:
    """The curve gives way, not what people read."""
    text = machine.on_terminal("watch", "--seconds", "0.5", columns=60)
    assert "cpu:0/package" in text
    assert "measured" in text


def test_attaches_to_a_running_run(machine: Machine) -> None:
    """A live run is followed through its journal until it ends."""
    run = subprocess.Popen(
        machine.command("run", "-q", "--", "sh", "-c", "echo up; read go"),
        env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    (journal,) = Path(f"{machine.store}.journals").glob("*.journal")
    out = machine.folder / "watch.json"
    words = (journal.stem[:20], "--refresh", "0.2", "--seconds", "20", "--json", str(out))
    watch = subprocess.Popen(
        machine.command("watch", *words), env=machine.environment, stdout=subprocess.PIPE
    )
    assert watch.stdout is not None
    assert b"total" in watch.stdout.readline()
    run.communicate(b"go\n")
    watch.communicate()
    assert (run.returncode, watch.returncode) == (0, 0)
    data = json.loads(out.read_text())
    assert data["ended"] == "finished"
    assert data["energy_j"] == machine.about_j(data["duration_s"])


def test_unknown_run_is_explained(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is not live: code 2, what is live, and where ended runs are shown."""
    assert main(["watch", "20990101"]) == 2
    text = capsys.readouterr().err
    assert "measured now: none" in text
    assert "wattloop runs show 20990101" in text


def test_sparkline_keeps_flat_lines_flat_and_gaps_visible() -> None:
    """Small noise is not blown up; a missing second is a dot; the highest is the highest bar."""
    assert set(sparkline([100.0, 100.1, 100.2])) <= {"▁", "▂"}
    assert sparkline([0.0, math.nan, 10.0]) == "▁·█"
    assert sparkline([]) == ""
    assert len(sparkline([1.0] * 100)) == 60


def test_idle_fits_and_keeps_the_line(machine: Machine) -> None:
    """The idle power of a machine that draws 50 W is 50 W, and it is kept beside the store."""
    done = machine.wattloop("idle", "--windows", "0.2,0.4,0.8", "--json", "-")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    (domain,) = data["domains"]
    assert domain["idle_power_w"] == pytest.approx(POWER_W, rel=0.1)
    assert Path(data["kept"]).exists()


def test_idle_without_sensors_is_an_error_with_advice(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing readable: code 2 and where to look, not a line of zeros."""
    assert main(["idle", "--windows", "0.1,0.2,0.3"]) == 2
    assert "wattloop devices" in capsys.readouterr().err
    assert main(["idle", "--windows", "1,1,1"]) == 2
    assert "at least 3 different lengths" in capsys.readouterr().err
