"""A machine with known power, and the `wattloop` command run in it as a real process."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm_start
from tests.support.environment import without
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from tests.support.synthetic_energy import about_j

SRC = Path(__file__).parents[2] / "src"
POWER_W = 50.0


@dataclass
class Machine:
    """Where its files are, and how to run `wattloop` on it."""

    folder: Path
    environment: dict[str, str]
    driver: Driver | None = None

    def about_j(self, duration_s: float, rel: float = 0.1) -> Any:
        """Energy of the package over so long, for comparison."""
        assert self.driver is not None
        return about_j(POWER_W, duration_s, self.driver, rel)

    @property
    def store(self) -> Path:
        return Path(self.environment["WATTLOOP_STORE"])

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "wattloop.cli.main", *words]

    def wattloop(self, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**self.environment, **variables}
        command = self.command(*words)
        return warm_start.run(command, env=environment, cwd=self.folder, text=False)

    def on_terminal(self, *words: str, columns: int = 80) -> str:
        """Return the standard output that a user at a terminal of so many columns sees."""
        ours, theirs = os.openpty()
        environment = {**self.environment, "COLUMNS": str(columns), "TERM": "xterm"}
        subprocess.run(
            self.command(*words), env=environment, cwd=self.folder, stdout=theirs, check=True
        )
        os.close(theirs)
        text = os.read(ours, 65536).decode()
        os.close(ours)
        return without_escapes(text).replace("\r\n", "\n")


def without_escapes(text: str) -> str:
    """Return the text of a terminal, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def machine_in(folder: Path, sysfs: Path) -> Machine:
    kept = without("WATTLOOP", "XDG", "SLURM")
    environment = {
        **kept,
        "PYTHONPATH": str(SRC),
        "HOME": str(folder),
        "WATTLOOP_SYSFS_ROOT": str(sysfs),
        "WATTLOOP_STORE": str(folder / "runs.db"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_METERS": "rapl",
        "COLUMNS": "120",
    }
    return Machine(folder, environment)


@pytest.fixture
def here(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This very process on the bare machine, for what needs no process of its own."""
    for name in os.environ.keys() - without("WATTLOOP", "XDG").keys():
        monkeypatch.delenv(name)
    for name in ("HOME", "COLUMNS", *(n for n in bare.environment if n.startswith("WATTLOOP"))):
        monkeypatch.setenv(name, bare.environment[name])
    monkeypatch.chdir(bare.folder)
    return bare


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One package that draws 50 W."""
    sysfs = tmp_path / "sys"
    tree = PowercapTree(sysfs)
    package = tree.add_package(0, max_power_w=200, limit_w=150)
    with Driver({package: Constant(POWER_W)}, update_period_s=0.005) as driver:
        yield replace(machine_in(tmp_path, sysfs), driver=driver)


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A machine on which nothing can be read."""
    (tmp_path / "sys").mkdir()
    return machine_in(tmp_path, tmp_path / "sys")
