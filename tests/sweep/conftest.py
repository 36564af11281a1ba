"""Virtual GPUs of a single test, found as an installed Wattloop finds them."""

import os
from pathlib import Path

import pytest

from tests.support.environment import without

ENTRY_POINTS = """\
[wattloop.meters]
virtual = wattloop.virtual.meter:detect
[wattloop.levers]
virtual = wattloop.virtual.lever:detect
"""


def virtual_environment(folder: Path, gpus: int = 2) -> dict[str, str]:
    """Return the variables of a machine with virtual GPUs only, and the folder of its entry
    points.
    """
    site = folder / "site"
    info = site / "wattloop-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "sys").mkdir(exist_ok=True)
    return {
        "SITE": str(site),
        "WATTLOOP_STORE": str(folder / "runs.db"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_VIRTUAL_GPUS": str(gpus),
        "WATTLOOP_VIRTUAL_STATE": str(folder / "gpus.state"),
        "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
        "WATTLOOP_METERS": "virtual",
        "WATTLOOP_GUARDIAN": "0",
    }


@pytest.fixture
def virtual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Run this process on such a machine."""
    for name in os.environ.keys() - without("WATTLOOP").keys():
        monkeypatch.delenv(name)
    environment = virtual_environment(tmp_path)
    monkeypatch.syspath_prepend(environment.pop("SITE"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment
