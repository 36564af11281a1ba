import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tune_replay.py"


def test_without_data_it_says_what_to_set(tmp_path) -> None:
    """Promise: absent data is a clear message."""
    env = {
        **os.environ,
        "PYTHONPATH": str(SCRIPT.parents[1] / "src"),
        "WATTLOOP_SHARED_DATA": str(tmp_path),
    }
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr
