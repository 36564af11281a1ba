"""The benchmark of the scheduler's engine runs, and says what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_speed.py"


def test_quick_run_has_its_bars(tmp_path: Path) -> None:
    """Promise: two thousand jobs and the memory they took; SimPy and Philly where they are."""
    target = tmp_path / "bars.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(target)],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar["value"] for bar in json.loads(target.read_text())["bars"]}
    assert {"fifo_2000_jobs", "peak_memory"} <= set(bars)
    assert set(bars) <= {
        "fifo_2000_jobs", "times_as_fast_as_simpy", "philly_first_1000", "peak_memory",
    }  # fmt: skip
    assert all(value > 0 for value in bars.values())
