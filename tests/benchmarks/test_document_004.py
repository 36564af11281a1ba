"""The benchmark of the published 8-GPU node."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "document_004.py"


def test_quick_run_predicts_the_published_caps(tmp_path: Path) -> None:
    """Promise: EDP, EDS(2) and gain minus loss within one step of 10 W, EDS(1.5) within two."""
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
    for metric in ("edp", "eds_2", "gain_minus_loss"):
        assert bars[f"cap_error_{metric}"] <= 10
    assert bars["cap_error_eds_1.5"] <= 20
    assert bars["gain_error"] < 1
