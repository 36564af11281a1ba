"""Promises of `benchmarks/sampling_interval.py`: it runs, and counters do not mind the interval."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_quick_run_measures_counters_at_every_interval(tmp_path: Path) -> None:
    """A counter read four times too seldom for its load still gives the energy of a window."""
    out = tmp_path / "bars.json"
    script = REPOSITORY / "benchmarks" / "sampling_interval.py"
    command = [sys.executable, str(script), "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(out.read_text())["bars"]}
    assert {"counter_worst_error_pct", "gauge_worst_error_pct", "worst_stop_ms"} <= set(bars)
    counter = bars["counter_worst_error_pct"]
    assert counter["value"] < counter["baselines"]["EA2P's way"]
