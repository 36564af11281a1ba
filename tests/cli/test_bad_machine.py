"""Promises of `wattloop run` where sensors fail: said plainly, never a zero, never in the way."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Machine, machine_in
from tests.support.nvml_stub import NoCompiler, StubNvml
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from tests.support.synthetic_energy import about_j

EXIT_CODE = 7


def bound_by_permissions() -> list[str]:
    """Words before a command that make even root obey the modes of files."""
    if os.getuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root reads and writes everything, and setpriv is missing")
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search"]


def measured(
    machine: Machine,
    seconds: float = 0.8,
    during: Callable[[], object] | None = None,
    **variables: str,
) -> dict[str, Any]:
    """Return the results for a program that runs `seconds` and longer, with `during` called
    half-way.
    """
    out, stop = machine.folder / "out.json", machine.folder / "stop"
    loop = f"echo up; until [ -e {stop} ]; do sleep 0.05; done; exit {EXIT_CODE}"
    words = ("run", "--json", str(out), "-i", "0.02", "--", "sh", "-c", loop)
    with subprocess.Popen(
        [*bound_by_permissions(), *machine.command(*words)],
        env={**machine.environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        time.sleep(seconds / 2)
        if during is not None:
            during()
        time.sleep(seconds / 2)
        stop.touch()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == EXIT_CODE
    assert b"Traceback" not in errors
    data: dict[str, Any] = json.loads(out.read_text())
    return data


def reasons(data: dict[str, Any]) -> dict[str, str]:
    return {part["name"]: part["reason"] for part in data["missing"]}


def never_zero(data: dict[str, Any]) -> bool:
    values = [data["energy_j"], *(d["energy_j"] for d in data["domains"])]
    return all(value is None or value > 0 for value in values)


def test_half_of_the_sensors(tmp_path: Path) -> None:
    """The readable half is measured; the other is named with its reason, and the total says so."""
    tree = PowercapTree(tmp_path / "sys")
    good, bad = tree.add_package(0), tree.add_package(1)
    bad.energy_file.unlink()
    bad.energy_file.mkdir()  # not even root reads a directory
    with Driver({good: Constant(40.0)}, update_period_s=0.005) as driver:
        data = measured(machine_in(tmp_path, tmp_path / "sys"))
    assert data["energy_j"] == about_j(40.0, data["duration_s"], driver, rel=0.05)
    assert [d["name"] for d in data["domains"]] == ["cpu:0/package"]
    assert "directory" in reasons(data)["cpu:1/package"]
    assert data["complete"] is False


@pytest.mark.parametrize(
    ("fault", "reason"), [("gone", "is gone"), ("closed", "permission denied")]
)
def test_sensor_that_fails_in_mid_run(tmp_path: Path, fault: str, reason: str) -> None:
    """Removed, or permission withdrawn: what was read counts, the rest is missing with reason."""
    package = PowercapTree(tmp_path / "sys").add_package(0)
    with Driver({package: Constant(50.0)}, update_period_s=0.005) as driver:

        def spoil() -> None:
            driver.stop()
            if fault == "gone":
                package.energy_file.unlink()
            else:
                closed = package.directory / "closed"
                closed.write_text("5\n")
                closed.chmod(0)
                closed.rename(package.energy_file)

        data = measured(machine_in(tmp_path, tmp_path / "sys"), during=spoil)
    assert reason in reasons(data)["cpu:0/package"]
    assert data["complete"] is False
    assert never_zero(data)
    (domain,) = data["domains"]
    assert domain["covered"] < 0.99
    covered_s = domain["covered"] * data["duration_s"]
    assert domain["energy_j"] == about_j(50.0, covered_s, driver, rel=0.2)


def test_gpu_that_is_lost_in_mid_run(machine: Machine) -> None:
    """A card that falls off the bus is measured until then; the other card is not touched by it."""
    try:
        stub = StubNvml(machine.folder, gpus=2)
    except NoCompiler as error:
        pytest.skip(str(error))
    with stub:
        stub.constant(0, 300.0)
        stub.constant(1, 200.0)
        data = measured(
            machine, 2.0, during=lambda: stub.inject(0, "lost"),
            WATTLOOP_METERS="nvidia", **stub.environment,
        )  # fmt: skip
    energies = {d["name"]: d for d in data["domains"]}
    assert "fallen off the bus" in reasons(data)["gpu:0"]
    assert "gpu:1" not in reasons(data)
    assert energies["gpu:1"]["energy_j"] == pytest.approx(200.0 * data["duration_s"], rel=0.1)
    assert energies["gpu:0"]["covered"] < 0.99
    assert data["complete"] is False
    assert never_zero(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"-12345\n", "negative"),
        (b"5000000\n", "did not move"),
        (b"certainly no number\n", "no number"),
        (b"", "empty"),
    ],
)
def test_counter_that_is_no_use(tmp_path: Path, content: bytes, reason: str) -> None:
    """Negative, stuck, garbled or empty: no energy with the reason, and never 0 J."""
    package = PowercapTree(tmp_path / "sys").add_package(0)
    package.energy_file.write_bytes(content)
    data = measured(machine_in(tmp_path, tmp_path / "sys"))
    assert data["energy_j"] is None
    assert data["domains"] == []
    assert reason in reasons(data)["cpu:0/package"]
    assert data["complete"] is False


def test_program_that_exits_at_once(machine: Machine) -> None:
    """A few milliseconds are measured as well as possible, and the sensor's limit is reported."""
    out = machine.folder / "out.json"
    begin_s = time.monotonic()
    assert machine.wattloop("run", "--json", str(out), "--", "true").returncode == 0
    took_s = time.monotonic() - begin_s
    data = json.loads(out.read_text())
    assert 0 < data["duration_s"] < took_s
    if data["energy_j"] is None:
        assert reasons(data)["cpu:0/package"]
    else:
        assert data["uncertainty_j"] > 0
    assert never_zero(data)


def test_store_that_may_not_be_written(bare: Machine) -> None:
    """In another user's folder the program runs, and the warning says what to do."""
    place = bare.folder / "closed"
    place.mkdir(mode=0o555)
    command = bare.command("run", "--store", str(place / "runs.db"), "--", "sh", "-c", "exit 7")
    done = subprocess.run(
        [*bound_by_permissions(), *command],
        env=bare.environment, cwd=bare.folder, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    text = done.stderr.decode()
    assert done.returncode == EXIT_CODE
    assert "Permission denied" in text
    assert "--store or WATTLOOP_STORE" in text
    assert "Traceback" not in text
