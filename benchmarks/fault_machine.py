"""A machine with known power, for programs that are killed on it."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.power_curves import Constant, PowerCurve, SineWave, SquareWave, Sum
from support.powercap_driver import Driver
from support.powercap_tree import PowercapTree, Writing

SRC = Path(__file__).resolve().parent.parent / "src"
PACKAGES: tuple[PowerCurve, ...] = (
    SquareWave(60.0, 140.0, 0.7),
    SineWave(90.0, 40.0, 2.3),
)
DRAM = Constant(12.0)
LAUNCHER_VARIABLES = ("WATTLOOP", "XDG", "SLURM", "OMPI", "PMI", "TORCHELASTIC")


@dataclass
class FaultMachine:
    """Two packages and DRAM, driven by a process of its own."""

    folder: Path
    start_s: float

    @property
    def store(self) -> Path:
        return self.folder / "runs.db"

    @property
    def journals(self) -> Path:
        return self.folder / "runs.db.journals"

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
        return {
            **kept,
            "PYTHONPATH": str(SRC),
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "WATTLOOP_SYSFS_ROOT": str(self.folder / "sys"),
            "WATTLOOP_METERS": "rapl",
            "WATTLOOP_STORE": str(self.store),
        }

    def cpu_energy_j(self, begin_s: float, end_s: float) -> float:
        """Return the true use of packages and DRAM between two moments of the monotonic clock."""
        curve = Sum((*PACKAGES, DRAM))
        return curve.energy_j(end_s - self.start_s) - curve.energy_j(begin_s - self.start_s)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "wattloop.cli.main", *words]

    def wattloop(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, check=False
        )


@contextmanager
def fault_machine(folder: Path) -> Iterator[FaultMachine]:
    spawn = multiprocessing.get_context("spawn")
    ready, stop = spawn.Queue(), spawn.Event()
    driver = spawn.Process(target=_drive, args=(folder / "sys", ready, stop), daemon=True)
    driver.start()
    try:
        yield FaultMachine(folder, ready.get(timeout=30))
    finally:
        stop.set()
        driver.join(5)


def _drive(root: Path, ready: object, stop: object) -> None:
    os.nice(-5 if os.geteuid() == 0 else 0)  # the sensor must not wait for the measured program
    tree = PowercapTree(root)
    zones = {tree.add_package(i, range_uj=600_000_000): c for i, c in enumerate(PACKAGES)}
    zones[tree.add_child(next(iter(zones)), "dram", range_uj=600_000_000)] = DRAM
    with Driver(zones, writing=Writing.IN_PLACE, update_period_s=0.002) as driver:
        ready.put(driver.start_s)  # type: ignore[attr-defined]  # a multiprocessing queue
        stop.wait()  # type: ignore[attr-defined]  # a multiprocessing event


def wait_for(what: object, timeout_s: float = 60.0) -> None:
    """Wait until `what()` is true."""
    give_up_s = time.monotonic() + timeout_s
    while not what():  # type: ignore[operator]  # any callable
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{what} did not come true in {timeout_s} s")
        time.sleep(0.01)
