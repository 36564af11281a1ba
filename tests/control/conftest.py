"""A machine with levers of every kind that is a file, and two stub GPUs on request."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.amdgpu_tree import AmdgpuCard, AmdgpuTree
from tests.support.cpufreq_tree import CpufreqTree
from tests.support.environment import without
from tests.support.nvml_stub import NoCompiler, StubNvml
from tests.support.powercap_tree import PowercapTree
from wattloop.control.lever import Lever
from wattloop.control.registry import find_levers
from wattloop.hardware.host import Host

SRC = Path(__file__).parents[2] / "src"

OWNER = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as if the tests were not run under nohup
signal.signal(signal.SIGINT, signal.default_int_handler)
from wattloop.control.session import lever_session as hold
from wattloop.control.registry import find_levers, lever_named
from wattloop.hardware.host import Host
levers = find_levers(Host.from_environment())
def lever(name):
    return lever_named(levers, name)
"""
"""How programs in these tests begin."""


@dataclass
class Rig:
    """A machine: its files, and processes on it."""

    folder: Path
    cpufreq: CpufreqTree
    card: AmdgpuCard
    package: Path
    extra: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def copies(self) -> Path:
        return self.folder / "copies"

    @property
    def environment(self) -> dict[str, str]:
        kept = without("WATTLOOP")
        return {
            **kept,
            "PYTHONPATH": str(SRC),
            "HOME": str(self.folder),
            "WATTLOOP_SYSFS_ROOT": str(self.folder / "sys"),
            "WATTLOOP_STATE_DIR": str(self.state),
            "WATTLOOP_STATE_COPY_DIR": str(self.copies),
            **self.extra,
        }

    def levers(self) -> list[Lever]:
        return find_levers(Host(sysfs=self.folder / "sys"))

    def lever(self, name: str) -> Lever:
        (found,) = [lever for lever in self.levers() if lever.name == name]
        return found

    def limit_w(self) -> float:
        # unlike in sysfs, a file of the tree is empty for the moment between two system calls
        text = (self.package / "constraint_0_power_limit_uw").read_text()
        return int(text) / 1e6 if text else math.nan

    def put_limit_w(self, value_w: float) -> None:
        path = self.package / "constraint_0_power_limit_uw"
        path.write_text(f"{round(value_w * 1e6)}\n")

    def journals(self) -> list[Path]:
        return sorted(self.state.glob("*.journal"))

    def start(self, program: str, **variables: str) -> subprocess.Popen[str]:
        """Start a process, and return once it has printed its first line."""
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER + program],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        process.first_line = line.strip()  # type: ignore[attr-defined]  # for the tests
        return process

    def wattloop(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables}
        command = [sys.executable, "-m", "wattloop.cli.main", *words]
        return warm_start.run(command, env=environment, cwd=self.folder)


def eventually(what: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    """Wait for a condition and return true once it holds, without a bound on the time."""
    give_up_s = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Return two policies that differ, one package (150 W of 200 W) and one AMD card (300 W)."""
    root = tmp_path / "sys"
    cpufreq = CpufreqTree(root)
    cpufreq.add_policy(governor="powersave", bounds_mhz=(800, 3000))
    cpufreq.add_policy(governor="performance", bounds_mhz=(1000, 1200))
    tree = PowercapTree(root)
    zone = tree.add_package(0, max_power_w=200, limit_w=150)
    card = AmdgpuTree(root).add_card()
    for name in os.environ.keys() - without("WATTLOOP").keys():
        monkeypatch.delenv(name)
    machine = Rig(tmp_path, cpufreq, card, zone.directory)
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(machine.state))
    monkeypatch.setenv("WATTLOOP_STATE_COPY_DIR", str(machine.copies))
    yield machine
    for process in machine.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library once."""
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def stub(rig: Rig, stub_folder: Path) -> Iterator[StubNvml]:
    """Return two NVIDIA cards on the rig, in place of its AMD card."""
    try:
        cards = StubNvml(stub_folder, gpus=2)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    with cards:
        rig.extra.update(cards.environment)
        yield cards
