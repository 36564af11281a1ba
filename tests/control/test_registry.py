"""Promises of the registry: levers with present values, ranges and permissions, and no change."""

import os
from pathlib import Path

import pytest

from tests.support.nvml_stub import NoCompiler, StubNvml
from tests.support.powercap_tree import Layout, PowercapTree
from wattloop.control.lever import LeverState
from wattloop.control.registry import find_levers
from wattloop.hardware.host import Host


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def machine(root: Path) -> Host:
    zone = root / "class/powercap/intel-rapl:0"
    put(zone / "name", "package-0")
    put(zone / "energy_uj", "0")
    put(zone / "enabled", "1")
    put(zone / "constraint_0_name", "long_term")
    put(zone / "constraint_0_power_limit_uw", "125000000")
    put(zone / "constraint_0_max_power_uw", "250000000")
    for cpu in (0, 1, 10):
        policy = root / f"devices/system/cpu/cpufreq/policy{cpu}"
        put(policy / "scaling_governor", "powersave" if cpu else "performance")
        put(policy / "scaling_available_governors", "performance powersave")
        put(policy / "scaling_driver", "intel_pstate")
        put(policy / "scaling_min_freq", "800000")
        put(policy / "scaling_max_freq", "3000000")
        put(policy / "cpuinfo_min_freq", "800000")
        put(policy / "cpuinfo_max_freq", "3500000")
    card = root / "class/drm/card1/device"
    put(card / "vendor", "0x1002")
    put(card / "hwmon/hwmon3/power1_cap", "300000000")
    put(card / "hwmon/hwmon3/power1_cap_min", "150000000")
    put(card / "hwmon/hwmon3/power1_cap_max", "350000000")
    return Host(sysfs=root)


def by_name(host: Host) -> dict[str, LeverState]:
    return {lever.name: lever for lever in find_levers(host).states()}


def test_file_levers_show_value_and_range(tmp_path: Path) -> None:
    """RAPL limits, governor, frequency bounds and AMD power caps, in watts and megahertz."""
    levers = by_name(machine(tmp_path))
    limit = levers["cpu:0/power_limit_long_term"]
    assert (limit.value, limit.high, limit.unit) == (125.0, 250.0, "W")
    assert levers["cpu/governor"].value == "performance, powersave"
    assert levers["cpu/governor"].choices == ("performance", "powersave")
    top = levers["cpu/max_frequency"]
    assert (top.value, top.low, top.high) == (3000.0, 800.0, 3500.0)
    cap = levers["gpu:0/power_limit"]
    assert (cap.value, cap.low, cap.high) == (300.0, 150.0, 350.0)


def test_read_only_lever_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lever without write permission is not available, and the missing permission is named."""
    host = machine(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    limit = by_name(host)["cpu:0/power_limit_long_term"]
    assert limit.available is False
    assert "writable by root only" in limit.reason
    assert "sudo chmod a+w" in limit.remedy


def test_machine_without_levers_gets_reasons(tmp_path: Path) -> None:
    """One line per kind, each with a reason."""
    assert find_levers(Host(sysfs=tmp_path)) == []
    levers = find_levers(Host(sysfs=tmp_path)).states()
    assert levers
    assert all(not lever.available and lever.reason for lever in levers)


def test_listing_changes_nothing(tmp_path: Path) -> None:
    """No file of the tree changes."""
    host = machine(tmp_path)
    before = {p: (p.read_text(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    find_levers(host).states()
    after = {p: (p.read_text(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    assert before == after


def test_nvidia_power_limit_through_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card's limit and range come from NVML; a plain user is told that only root may set it."""
    try:
        stub = StubNvml(tmp_path / "stub", gpus=1)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    with stub:
        limit = by_name(Host(sysfs=tmp_path))["gpu:0/power_limit"]
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        plain = by_name(Host(sysfs=tmp_path))["gpu:0/power_limit"]
    assert limit.value is not None
    assert limit.low is not None
    assert limit.high is not None
    assert limit.low <= float(limit.value) <= limit.high
    assert plain.available is False
    assert "nvidia-smi -pl" in plain.remedy


@pytest.mark.parametrize("layout", list(Layout))
def test_rapl_levers_have_the_names_of_the_domains_they_limit(
    tmp_path: Path, layout: Layout
) -> None:
    """psys between two packages, DRAM limits and the second set of registers: no name twice."""
    tree = PowercapTree(tmp_path, layout)
    tree.add_package(0, max_power_w=200, limit_w=150)
    tree.add_constraint(tree.add_zone("psys"), 0, "long_term", None, 300)
    package = tree.add_package(1, max_power_w=200, limit_w=180)
    tree.add_constraint(tree.add_child(package, "dram"), 0, "long_term", 50, 40)
    tree.add_package(0, control="intel-rapl-mmio", max_power_w=200, limit_w=120)
    limits_w = [
        (lever.name, lever.value)
        for lever in find_levers(Host(sysfs=tmp_path)).states()
        if lever.value is not None
    ]
    assert sorted(limits_w) == [
        ("cpu:0/power_limit_long_term", 150.0),
        ("cpu:0/power_limit_long_term_mmio", 120.0),
        ("cpu:1/power_limit_long_term", 180.0),
        ("dram:1/power_limit_long_term", 40.0),
        ("psys/power_limit_long_term", 300.0),
    ]


def test_amd_levers_are_numbered_as_the_meter_numbers_the_cards(tmp_path: Path) -> None:
    """Next to two NVIDIA cards the first AMD card is gpu:2, for the lever as for the meter."""
    root = tmp_path / "sys"
    machine(root)
    for address in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    levers = by_name(Host(sysfs=root, procfs=tmp_path / "proc"))
    assert levers["gpu:2/power_limit"].value == 300.0


def test_garbage_is_not_a_value(tmp_path: Path) -> None:
    """Text that Python reads as numbers is neither shown nor offered as a limit."""
    host = machine(tmp_path)
    put(tmp_path / "devices/system/cpu/cpufreq/policy0/scaling_max_freq", "nan")
    put(tmp_path / "class/powercap/intel-rapl:0/constraint_0_max_power_uw", "inf")
    levers = by_name(host)
    assert levers["cpu/max_frequency"].value is None
    assert levers["cpu:0/power_limit_long_term"].high is None
