"""Promises of `benchmarks/cap_overhead.py`: it names its bars and sees what the threads take."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wattloop.testing.nvml_stub import NoCompiler, build

REPOSITORY = Path(__file__).resolve().parents[2]


def test_quick_run_writes_the_promised_bars(tmp_path: Path) -> None:
    """Other programs look for these names; threads and the reading process are part of it."""
    try:
        build(tmp_path / "nvml")
    except NoCompiler as reason:
        pytest.skip(str(reason))
    out = tmp_path / "bars.json"
    script = REPOSITORY / "benchmarks" / "cap_overhead.py"
    command = [sys.executable, str(script), "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    bars = {bar["name"]: bar for bar in json.loads(out.read_text())["bars"]}
    assert list(bars) == ["step_call", "outside_probes", "with_reader"]
    assert bars["step_call"]["bar"] == bars["outside_probes"]["bar"] == 0.5
    assert 0 < bars["step_call"]["value"] < bars["outside_probes"]["value"]
    assert bars["outside_probes"]["value"] < bars["with_reader"]["value"]
