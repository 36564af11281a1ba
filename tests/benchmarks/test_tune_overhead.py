"""The benchmark of the tuner's own cost runs, and says what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tune_overhead.py"


def test_quick_run_has_its_bars(tmp_path: Path) -> None:
    """Promise: a short trial inside and outside of a search, and 300 trials listed and resumed."""
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
    reads = {f"{what}_300{ending}" for what in ("list", "resume") for ending in ("", "_cpu")}
    assert set(bars) == {"trial_cpu", "trial_wall", "epoch_cpu", *reads}
    assert all(value is not None for value in bars.values()), bars
    assert bars["trial_cpu"] > 0
