"""A machine of files: a powercap tree whose counters run, and a clean environment."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree, TreeZone
from tests.support.synthetic_energy import about_j

PACKAGE_W, DRAM_W = 50.0, 5.0


@dataclass(frozen=True)
class Machine:
    """The machine that is being measured, as far as the tests know it."""

    root: Path
    store: Path
    package: TreeZone
    dram: TreeZone
    driver: Driver
    power_w: float = PACKAGE_W + DRAM_W

    def about_j(self, duration_s: float, rel: float = 0.1) -> Any:
        """Return the energy over this time, for comparison."""
        return about_j(self.power_w, duration_s, self.driver, rel)

    @property
    def journals(self) -> Path:
        """Return the folder of live journals of the store."""
        return self.store.with_name(f"{self.store.name}.journals")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One package of 50 W with 5 W of DRAM; only `rapl` is used, and the environment is clean.

    Counters wrap every 2 s: a reading that a busy machine delays by half a second is still unique.
    """
    yield from _machine(tmp_path, monkeypatch, range_uj=100_000_000)


@pytest.fixture
def slow_wrapping_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The same with counters that wrap every hour, as real ones do."""
    yield from _machine(tmp_path, monkeypatch, range_uj=262_143_328_850)


def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_uj: int) -> Iterator[Machine]:
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0, range_uj=range_uj)
    dram = tree.add_child(package, "dram", range_uj=range_uj)
    (tmp_path / "proc").mkdir()
    (tmp_path / "run").mkdir()
    for name in (
        "WATTLOOP_JOB",
        "WATTLOOP_RUN",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("WATTLOOP_PROCFS_ROOT", str(tmp_path / "proc"))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("WATTLOOP_METERS", "rapl")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.chdir(tmp_path)
    with Driver({package: Constant(PACKAGE_W), dram: Constant(DRAM_W)}) as driver:
        yield Machine(tmp_path, tmp_path / "runs.db", package, dram, driver)
