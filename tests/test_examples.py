import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_train_digits_prints_energy_per_epoch(tmp_path: Path) -> None:
    """Promise: the example runs anywhere and prints a line per epoch and the summary."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_digits.py")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == [f"epoch {i}" for i in range(5)]
    assert lines[-1].startswith("wattloop:")
