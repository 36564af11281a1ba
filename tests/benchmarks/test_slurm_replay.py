"""Promises of the benchmark of replays on a real Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.slurm_lab import why_no_slurm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slurm_replay.py"


@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "-")
def test_quick_run_has_its_bars(tmp_path: Path) -> None:
    """Promise: a real run under a budget and the simulator's figures for it, with every sample."""
    target = tmp_path / "bars.json"
    words = ["--quick", "--jobs", "2", "--only", "charon", "--json", str(target)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(target.read_text())
    bars = {bar["name"]: bar["value"] for bar in data["bars"]}
    assert bars["charon: samples above the budget"] == 0
    assert 0 < bars["charon: most power at any moment"] <= 4_500
    assert data["runs"][0]["real"]["done"] == 2
