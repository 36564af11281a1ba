"""The benchmark of faults runs, and its bars are met in small."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "measure_faults.py"


def test_quick_run_loses_nothing(tmp_path: Path) -> None:
    """Promise: one kill of each kind, a full disk and eight ranks: every named bar has a value."""
    target = tmp_path / "bars.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(target), "--ranks", "4"],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar["value"] for bar in json.loads(target.read_text())["bars"]}
    assert {"runs_lost", "corrupt_files", "worst_lost_s", "ranks_total_error_pct"} <= set(bars)
    assert (bars["runs_lost"], bars["corrupt_files"], bars["programs_harmed"]) == (0, 0, 0)
