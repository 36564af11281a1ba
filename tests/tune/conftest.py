"""A machine whose one package draws 50 W, and a store of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from wattloop.core.settings import Settings
from wattloop.store.database import Store, open_store


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    sysfs = tmp_path / "sys"
    tree = PowercapTree(sysfs)
    package = tree.add_package(0, max_power_w=200, limit_w=150)
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(sysfs))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Driver({package: Constant(50.0)}, update_period_s=0.005):
        yield Settings(store=str(tmp_path / "runs.db"), meters=("rapl",), interval_s=0.02)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with open_store(settings.store_location) as store:
        yield store
