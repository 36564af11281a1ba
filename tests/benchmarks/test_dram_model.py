"""Promises of figure 4.1's benchmark: it compares with a DRAM domain, or says why it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dram_model.py"
MEMINFO = "MemTotal:       4000000 kB\nMemFree:        2000000 kB\nMemAvailable:   2000000 kB\n"


def _run(folder: Path, dimms: str = "2x16") -> subprocess.CompletedProcess[str]:
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc" / "meminfo").write_text(MEMINFO, encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": str(SCRIPT.parents[1] / "src"),
        "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
        "WATTLOOP_PROCFS_ROOT": str(folder / "proc"),
        "WATTLOOP_DIMMS": dimms,
        "HOME": str(folder),
    }
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "-"]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=folder)


def test_without_a_dram_domain_it_says_so_and_ends(tmp_path: Path) -> None:
    """A missing domain is not a failure: the reason is printed, the figure is absent, not 0."""
    PowercapTree(tmp_path / "sys").add_package(0)
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped" in done.stderr and "no DRAM domain" in done.stderr
    assert json.loads(done.stdout)["bars"][0]["value"] is None


def test_without_any_powercap_tree_it_says_how_to_get_one(tmp_path: Path) -> None:
    """It shows the remedy of the meter."""
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "modprobe" in done.stderr


def test_model_and_domain_are_compared(tmp_path: Path) -> None:
    """Half of the memory in use: 2 x 4 W x 0.75 = 6 W, next to a domain of 8 W that wraps."""
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    domain = tree.add_child(package, "dram", energy_uj=59_900_000, range_uj=60_000_000)
    with Driver({domain: Constant(8.0)}):
        done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    bars = {bar["name"]: bar["value"] for bar in report["bars"]}
    assert len(report["points"]) == 2
    for point in report["points"]:
        assert point["model_j"] / point["seconds"] == pytest.approx(6.0, rel=0.01)
    assert bars["dram_model_bias"] == pytest.approx(-25.0, abs=15.0)
