"""Promises about faults that users of other tools reported.

The numbers are those of the issue in that tool's tracker. Where a report could not be read, the
docstring names the similar fault that is tested instead.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Machine, machine_in
from tests.cli.test_bad_machine import bound_by_permissions
from tests.support.nvml_stub import Call, StubNvml
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree, TreeZone
from tests.support.synthetic_energy import about_j
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.session import Session
from wattloop.meters.base import Context

CPU_W, DRAM_W, GPU_W = 60.0, 8.0, 300.0
needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None,
    reason="the stub of NVIDIA's library is compiled with the system's C compiler",
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One package of 60 W with 8 W of DRAM."""
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    dram = tree.add_child(package, "dram")
    curves = {package: Constant(CPU_W), dram: Constant(DRAM_W)}
    with Driver(curves, update_period_s=0.005) as driver:
        found = replace(machine_in(tmp_path, tmp_path / "sys"), driver=driver)
        found.environment["XDG_RUNTIME_DIR"] = str(tmp_path)
        yield found


def measured(sysfs: Path, seconds: float = 0.8, **settings: Any) -> WindowResult:
    """A session of this process over a tree of files."""
    context = Context(Host(sysfs, sysfs.parent / "proc"), Settings(interval_s=0.05, **settings))
    session = Session.open(context=context, keep=False, in_process=False)
    time.sleep(seconds)
    return session.close().result


def run_json(machine: Machine, *words: str) -> dict[str, Any]:
    out = machine.folder / "out.json"
    done = machine.wattloop("run", "--json", str(out), *words)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(out.read_text())
    return data


@contextmanager
def program(machine: Machine, code: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that prints `up` when it measures."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**machine.environment, **variables},
        cwd=machine.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def listed(machine: Machine) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(machine.wattloop("runs", "list", "--json", "-").stdout)[
        "runs"
    ]
    return runs


def test_codecarbon_244_unreadable_counters(tmp_path: Path) -> None:
    """RAPL without permission: an estimate replaces it, and the command that helps is named.

    The other tool used a constant in place of the counter.
    """
    package = PowercapTree(tmp_path / "sys").add_package(0)
    package.energy_file.chmod(0)
    found = machine_in(tmp_path, tmp_path / "sys")
    found.environment["WATTLOOP_METERS"] = "rapl,estimate"
    out = tmp_path / "out.json"
    words = [*bound_by_permissions(), *found.command("run", "--json", str(out), "--", "sleep", "1")]
    subprocess.run(words, env=found.environment, check=True, capture_output=True)
    data = json.loads(out.read_text())
    assert all(d["provenance"] == "estimated" for d in data["domains"])
    words = [*bound_by_permissions(), *found.command("devices")]
    shown = subprocess.run(words, env=found.environment, check=True, capture_output=True, text=True)
    assert "chmod a+r" in shown.stdout


def test_codecarbon_544_ranks_of_one_machine(machine: Machine) -> None:
    """Three ranks that share a machine: one of them counts, and the job's total is the machine's.

    In the other tool each of eight processes reported the whole machine.
    """
    out = machine.folder / "rank"
    # ranks train together: none begins before all have started
    together = f"touch {out}$RANK.up; while [ ! -e {out}0.up -o ! -e {out}1.up -o ! -e {out}2.up ]"
    together += "; do sleep 0.02; done; sleep 1.5"
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    ranks = [
        subprocess.Popen(
            machine.command("run", "-q", "--json", f"{out}{i}.json", "--", "sh", "-c", together),
            env={**machine.environment, **job, "RANK": str(i), "LOCAL_RANK": str(i)},
        )
        for i in range(3)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0, 0]
    found = [json.loads(Path(f"{out}{i}.json").read_text()) for i in range(3)]
    energies = [run["energy_j"] for run in found if run["energy_j"] is not None]
    shown = machine.wattloop("runs", "job", "--json", "-")
    (node,) = json.loads(shown.stdout)["nodes"]
    machine_j = (CPU_W + DRAM_W) * node["duration_s"]
    assert len(node["runs"]) == 3
    assert machine.driver is not None
    assert node["energy_j"] == about_j(CPU_W + DRAM_W, node["duration_s"], machine.driver, rel=0.05)
    assert sum(energies) <= 1.1 * machine_j


def test_codecarbon_702_nothing_left_by_a_crash_blocks_the_next(machine: Machine) -> None:
    """After `kill -9` the next measurement works.

    In the other tool a lock file stayed behind and refused every later run.
    """
    code = "import time, wattloop\nwith wattloop.measure('x'): print('up', flush=True); {}"
    with program(machine, code.format("time.sleep(60)")) as crashed:
        crashed.send_signal(signal.SIGKILL)
        crashed.wait()
    with program(machine, code.format("time.sleep(0.8)")) as following:
        assert following.wait(timeout=300) == 0
    runs = listed(machine)
    assert sorted(run["status"] for run in runs) == ["died", "finished"]
    assert all(run["counted"] for run in runs)


def test_codecarbon_878_an_estimate_is_called_one(tmp_path: Path) -> None:
    """Utilisation x TDP is marked, with its error stated, wherever it is shown.

    The report could not be read; the test covers an estimate shown as a measurement.
    """
    (tmp_path / "sys").mkdir()
    found = machine_in(tmp_path, tmp_path / "sys")
    found.environment["WATTLOOP_METERS"] = "estimate"
    data = run_json(found, "--", "sleep", "1")
    assert data["domains"]
    for domain in data["domains"]:
        assert domain["provenance"] == "estimated"
        assert domain["uncertainty_j"] > 0.05 * domain["energy_j"]
    assert "estimated" in data["summary"]


def test_codecarbon_1268_memory_is_counted_once(tmp_path: Path) -> None:
    """Where DRAM is measured, no model is added to it, and it is not part of the CPU.

    The other tool counted the measured joules in the CPU and added an estimate to them.
    """
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    dram = tree.add_child(package, "dram")
    curves = {package: Constant(CPU_W), dram: Constant(DRAM_W)}
    with Driver(curves, update_period_s=0.005) as driver:
        result = measured(tmp_path / "sys", meters=("rapl", "dram"), dimms="8x32")
    (memory,) = result.scope_domains(Scope.DRAM)
    assert memory.provenance is Provenance.MEASURED
    for energy_j, power_w in (
        (memory.energy_j, DRAM_W),
        (result.cpu_energy_j, CPU_W),
        (result.energy_j, CPU_W + DRAM_W),
    ):
        assert energy_j == about_j(power_w, result.duration_s, driver, rel=0.05)


def test_codecarbon_1274_dies_that_mirror_one_counter(tmp_path: Path) -> None:
    """Dies that all show the socket's one counter are one device.

    The other tool reported a Threadripper of 68 W with 137 W.
    """
    tree = PowercapTree(tmp_path / "sys")
    packages = [tree.add_package(0, die=die) for die in range(4)]
    for mirror in packages[1:]:
        mirror.energy_file.unlink()
        mirror.energy_file.symlink_to(packages[0].energy_file)
    with Driver({packages[0]: Constant(68.0)}, update_period_s=0.002) as driver:
        time.sleep(0.05)
        result = measured(tmp_path / "sys", meters=("rapl",))
    assert result.energy_j == about_j(68.0, result.duration_s, driver, rel=0.05)


@needs_compiler
def test_codecarbon_1316_gpu_without_an_energy_counter(tmp_path: Path) -> None:
    """Older cards have no counter: their power is integrated.

    The other tool listed such a card and reported 0 kWh.
    """
    (tmp_path / "sys").mkdir()
    with StubNvml(tmp_path, gpus=1) as stub:
        stub.inject(0, "unsupported", calls=Call.ENERGY)
        stub.constant(0, GPU_W)
        time.sleep(0.3)
        result = measured(tmp_path / "sys", 1.5, meters=("nvidia",))
    assert result.gpu_energy_j == pytest.approx(GPU_W * result.duration_s, rel=0.1)


def test_codecarbon_409_a_program_that_fails_ends(machine: Machine) -> None:
    """An exception between begin and end ends the program as without Wattloop.

    In the other tool a scheduler kept the process alive for three days.
    """
    code = "import wattloop\nm = wattloop.measure('x').begin()\nprint('up', flush=True)\n1 / 0"
    with program(machine, code) as failing:
        _, errors = failing.communicate(timeout=300)
    assert failing.returncode == 1
    assert errors.rstrip().endswith("ZeroDivisionError: division by zero")
    assert len(listed(machine)) == 1


def test_codecarbon_629_memory_of_the_host_is_no_power(tmp_path: Path) -> None:
    """A terabyte in /proc/meminfo says nothing about power: without DIMM data DRAM is missing.

    The other tool charged a container with 100 GB 378 W for the memory of its host.
    """
    (tmp_path / "sys").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1056784384 kB\nMemAvailable: 9 kB\n")
    result = measured(tmp_path / "sys", 0.2, meters=("dram",))
    assert result.dram_energy_j is None
    assert any(part.name == "dram" and part.reason for part in result.missing)


@needs_compiler
def test_zeus_91_the_total_is_of_everything_that_was_read(tmp_path: Path) -> None:
    """CPU, DRAM and GPUs are in the total, and each has a name of its own.

    The report could not be read; the test covers a total of GPUs only.
    """
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    dram = tree.add_child(package, "dram")
    zones: dict[TreeZone, Constant] = {package: Constant(CPU_W), dram: Constant(DRAM_W)}
    with StubNvml(tmp_path, gpus=2) as stub, Driver(zones, update_period_s=0.005):
        stub.constant(0, GPU_W)
        stub.constant(1, GPU_W)
        time.sleep(0.3)
        result = measured(tmp_path / "sys", 1.5, meters=("rapl", "nvidia"))
    parts = (result.cpu_energy_j, result.dram_energy_j, result.gpu_energy_j)
    assert all(parts)
    assert result.energy_j == pytest.approx(sum(part or 0.0 for part in parts))


@needs_compiler
def test_zeus_109_a_closed_counter_does_not_stop_the_gpu(tmp_path: Path) -> None:
    """Without permission for RAPL the GPU is measured, and the CPU is missing with its remedy.

    The report could not be read; the test covers what pull request 111 of that tracker repairs: a
    PermissionError that ended the measurement.
    """
    package = PowercapTree(tmp_path / "sys").add_package(0)
    package.energy_file.chmod(0)
    found = machine_in(tmp_path, tmp_path / "sys")
    with StubNvml(tmp_path, gpus=1) as stub:
        stub.constant(0, GPU_W)
        environment = {**found.environment, **stub.environment, "WATTLOOP_METERS": "rapl,nvidia"}
        words = found.command("run", "-q", "--json", "-", "--", "sleep", "1")
        done = subprocess.run(
            [*bound_by_permissions(), *words], env=environment, capture_output=True, check=True
        )
    data = json.loads(done.stdout)
    assert [d["name"] for d in data["domains"]] == ["gpu:0"]
    (missing,) = (part for part in data["missing"] if part["name"] == "cpu:0/package")
    assert "permission denied" in missing["reason"]
    assert "chmod a+r" in missing["remedy"]


def test_carbontracker_44_stopping_does_not_wait(machine: Machine) -> None:
    """A measurement with an interval of an hour ends at once, and so does its program.

    The report could not be read; the test covers a tool that hangs at exit.
    """
    code = (
        "import time, wattloop\n"
        "with wattloop.measure('x', interval_s=3600): print('up', flush=True)\n"
        "began = time.monotonic()\n"
        "with wattloop.measure('y', interval_s=3600): pass\n"
        "print(time.monotonic() - began)"
    )
    with program(machine, code) as quick:
        output, _ = quick.communicate(timeout=300)
    assert quick.returncode == 0
    assert float(output) < 10


def test_perun_152_a_crash_loses_nothing_but_the_last_moment(machine: Machine) -> None:
    """After `kill -9` the run is stored, marked as died, with the energy that was read.

    The report could not be read; the test covers a tool that writes results only at the end.
    """
    code = (
        "import time, wattloop\nwith wattloop.measure('x'): print('up', flush=True); time.sleep(60)"
    )
    with program(machine, code) as crashed:
        time.sleep(1.7)
        crashed.send_signal(signal.SIGKILL)
        crashed.wait()
    (run,) = listed(machine)
    assert run["status"] == "died"
    assert run["duration_s"] >= 0.7
    assert machine.driver is not None
    assert run["energy_j"] == about_j(CPU_W + DRAM_W, run["duration_s"], machine.driver)
