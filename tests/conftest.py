"""Every test has the machine for itself: runs of tests next to it are not seen as sharing it."""

import os
from pathlib import Path

import pytest

# Before torch is imported, here or in a program that a test starts: the threads of its small
# operations wait for each other in a loop, at a multiple of the processor time where other tests
# run as well (4 times in tests/predict/calibrate/test_host_speed.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own in which runs list themselves."""
    folder = tmp_path_factory.mktemp("node")
    monkeypatch.setenv("WATTLOOP_NODE_RUNS", str(folder))
    return folder
