"""A machine with one package and its DRAM, whose true power is known."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree, Writing
from wattloop.store.journal import Journal, journal_directory, read_journal

PACKAGE_W, DRAM_W = 50.0, 5.0
INTERVAL_S = 0.05


@dataclass
class Machine:
    """The folder of the runs, and the power of package and DRAM."""

    sysfs: Path
    store: Path
    driver: Driver
    power_w: float = PACKAGE_W + DRAM_W

    def journals(self) -> list[Journal]:
        paths = sorted(journal_directory(str(self.store)).glob("*.journal"))
        return [j for j in map(read_journal, paths) if j is not None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    dram = tree.add_child(package, "dram")
    store = tmp_path / "store" / "runs.db"
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(tree.root))
    monkeypatch.setenv("WATTLOOP_STORE", str(store))
    monkeypatch.setenv("WATTLOOP_METERS", "rapl")
    monkeypatch.setenv("WATTLOOP_INTERVAL", str(INTERVAL_S))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("WATTLOOP_JOB", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    curves = {package: Constant(PACKAGE_W), dram: Constant(DRAM_W)}
    with Driver(curves, update_period_s=0.002, writing=Writing.IN_PLACE) as driver:
        yield Machine(tree.root, store, driver)
