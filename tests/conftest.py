"""Every test has the machine for itself: runs of tests next to it are not seen as sharing it."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own in which runs list themselves."""
    folder = tmp_path_factory.mktemp("node")
    monkeypatch.setenv("WATTLOOP_NODE_RUNS", str(folder))
    return folder
