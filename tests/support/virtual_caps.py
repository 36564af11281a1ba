"""Virtual GPUs of a single test with caps to find, found as an installed Wattloop finds them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.environment import without
from wattloop.cap.evaluation import MeasuredCurve
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import GpuWork

SRC = Path(__file__).parents[2] / "src"
ENTRY_POINTS = """\
[wattloop.meters]
virtual = wattloop.virtual.meter:detect
[wattloop.levers]
virtual = wattloop.virtual.lever:detect
"""


def machine(folder: Path, gpus: int = 2) -> dict[str, str]:
    """Return the variables of a machine with virtual GPUs only."""
    info = folder / "site" / "wattloop_virtual-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "sys").mkdir(exist_ok=True)
    return {
        "WATTLOOP_STORE": str(folder / "runs.db"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_VIRTUAL_GPUS": str(gpus),
        "WATTLOOP_VIRTUAL_STATE": str(folder / "gpus.state"),
        "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
        "WATTLOOP_METERS": "virtual",
        "WATTLOOP_GUARDIAN": "0",
    }


def settle(monkeypatch: pytest.MonkeyPatch, folder: Path, gpus: int = 2) -> None:
    """Make this process a process of such a machine."""
    for name in os.environ.keys() - without("WATTLOOP").keys():
        monkeypatch.delenv(name)
    for name, value in machine(folder, gpus).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(folder / "site"))


def wattloop(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the command line of such a machine."""
    kept = without("WATTLOOP")
    path = f"{folder / 'site'}{os.pathsep}{SRC}"
    own = {**machine(folder), "HOME": str(folder), "PYTHONPATH": path, **variables}
    command = [sys.executable, "-m", "wattloop", *words]
    return warm_start.run(command, env={**kept, **own}, cwd=folder)


def virtual_curve(card: str, intensity: float, caps_w: list[float]) -> MeasuredCurve:
    """Return the curve of the virtual card's physics for work with this many FLOP per byte."""
    model = CARDS[card]
    work = GpuWork(flops=intensity * model.bytes_per_s, bytes=model.bytes_per_s)
    points = [model.settle(model.activity(work), cap, model.max_clock_mhz) for cap in caps_w]
    times = tuple(model.shortest_s(work) * point.slowdown for point in points)
    powers = tuple(point.power_w for point in points)
    return MeasuredCurve((card, f"{intensity:g}", "1", ""), tuple(caps_w), times, powers)
