"""An experiment in a fresh store, on a machine whose one package draws 50 W."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from wattloop.core.settings import Settings
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, create_experiment


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    sysfs = tmp_path / "sys"
    tree = PowercapTree(sysfs)
    package = tree.add_package(0, max_power_w=200, limit_w=150)
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(sysfs))
    with Driver({package: Constant(50.0)}, update_period_s=0.005) as driver:
        yield driver


@pytest.fixture
def settings(driver: Driver, tmp_path: Path) -> Settings:
    return Settings(store=str(tmp_path / "runs.db"), meters=("rapl",))


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with open_store(settings.store_location) as store:
        create_experiment(store, Experiment(experiment_id="e", kind="sweep"))
        yield store
