"""Promises of `benchmarks/measure_overhead.py`: it runs without other tools and names its bars."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROMISED = ["import_ms", "setup_ms", "window_us", "cpu_pct_10hz", "cpu_pct_100hz"]


def test_quick_run_writes_the_promised_bars(tmp_path: Path) -> None:
    """Other programs look for these names, with value, unit, bar and baselines."""
    out = tmp_path / "bars.json"
    script = REPOSITORY / "benchmarks" / "measure_overhead.py"
    command = [sys.executable, str(script), "--quick", "--no-peers", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    bars = json.loads(out.read_text())["bars"]
    assert [bar["name"] for bar in bars][: len(PROMISED)] == PROMISED
    for bar in bars:
        assert set(bar) == {"name", "value", "unit", "bar", "baselines"}
        assert bar["value"] is None or bar["value"] >= 0
    assert all(bar["value"] is not None and bar["bar"] for bar in bars[: len(PROMISED)])
