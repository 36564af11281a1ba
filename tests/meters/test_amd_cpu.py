"""Promises of amd_energy: sockets are read, unless a finer source of the same joules exists."""

from pathlib import Path

import pytest
from tests.support.powercap_tree import PowercapTree

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.hardware.host import Host
from wattloop.meters import amd_cpu
from wattloop.meters.base import Context
from wattloop.meters.perf import PerfCounter


def build(root: Path, sockets: int = 2, cores: int = 3) -> Path:
    """Build a hwmon tree as the driver does: cores first, then sockets, after another chip."""
    other = root / "class" / "hwmon" / "hwmon0"
    other.mkdir(parents=True)
    (other / "name").write_text("k10temp\n")
    chip = root / "class" / "hwmon" / "hwmon3"
    chip.mkdir()
    (chip / "name").write_text("amd_energy\n")
    labels = [f"Ecore{i:03d}" for i in range(cores)] + [f"Esocket{i}" for i in range(sockets)]
    for number, label in enumerate(labels, start=1):
        (chip / f"energy{number}_label").write_text(label + "\n")
        file = chip / f"energy{number}_input"
        file.write_text(f"{number * 1_000_000}\n")
        file.chmod(0o440)
    return chip


def context(root: Path) -> Context:
    return Context(host=Host(sysfs=root, procfs=root / "proc"))


def test_reads_each_socket_in_joules(tmp_path: Path) -> None:
    """Sockets are distinguished from cores by their label, and microjoules become joules."""
    build(tmp_path)
    (meter,) = amd_cpu.detect(context(tmp_path))
    assert [d.name for d in meter.domains] == ["cpu:0/package", "cpu:1/package"]
    assert list(meter.read()) == [pytest.approx(4.0), pytest.approx(5.0)]
    assert meter.domains[0].wrap_j == pytest.approx(281_474_976.7, rel=1e-6)
    meter.close()


def test_world_readable_value_is_cached(tmp_path: Path) -> None:
    """A world-readable file comes from the driver that caches: its period is stated as 2 s."""
    chip = build(tmp_path, sockets=1, cores=0)
    (meter,) = amd_cpu.detect(context(tmp_path))
    assert meter.domains[0].update_period_s == 0.001
    (chip / "energy1_input").chmod(0o444)
    (meter,) = amd_cpu.detect(context(tmp_path))
    assert meter.domains[0].update_period_s == 2.0


def test_stands_back_for_powercap_but_serves_the_cross_check(tmp_path: Path) -> None:
    """Two sources of one package are never added; the second can still be opened explicitly."""
    build(tmp_path)
    tree = PowercapTree(tmp_path)
    tree.add_package(0)
    (meter,) = amd_cpu.detect(context(tmp_path))
    assert [d.name for d in meter.domains] == ["cpu:1/package"]
    tree.add_package(1)
    with pytest.raises(MeterUnavailable, match="already counts"):
        amd_cpu.detect(context(tmp_path))
    (meter,) = amd_cpu.detect_second_source(context(tmp_path))
    assert len(meter.domains) == 2


def test_yields_to_perf(tmp_path: Path) -> None:
    """Where perf can count the package (here: a real software event), it takes precedence."""
    try:
        PerfCounter(1, 0, cpu=0).close()
    except OSError as error:
        pytest.skip(f"counting a whole CPU is not allowed here: {error}")
    build(tmp_path, sockets=1)
    source = tmp_path / "bus" / "event_source" / "devices" / "power"
    (source / "events").mkdir(parents=True)
    for leaf, text in {
        "type": "1", "cpumask": "0", "events/energy-pkg": "event=0x00",
        "events/energy-pkg.scale": "1e-9", "events/energy-pkg.unit": "Joules",
    }.items():  # fmt: skip
        (source / leaf).write_text(text + "\n")
    with pytest.raises(MeterUnavailable, match="already counts"):
        amd_cpu.detect(context(tmp_path))


def test_unreadable_socket_is_named(tmp_path: Path) -> None:
    """One socket is read, the other is reported with its reason."""
    chip = build(tmp_path, sockets=2, cores=0)
    (chip / "energy2_input").unlink()
    (chip / "energy2_input").mkdir()
    (meter,) = amd_cpu.detect(context(tmp_path))
    assert [d.name for d in meter.domains] == ["cpu:0/package"]
    assert [m.name for m in meter.refused] == ["cpu:1/package"]
    assert "energy2_input" in meter.refused[0].reason


def test_absent_driver_is_unavailable(tmp_path: Path) -> None:
    """Other machines get the reason; cores alone are not a package."""
    with pytest.raises(MeterUnavailable, match="no hwmon chip 'amd_energy'"):
        amd_cpu.detect(context(tmp_path))
    build(tmp_path, sockets=0)
    with pytest.raises(MeterUnavailable, match="with a socket"):
        amd_cpu.detect(context(tmp_path))


def test_driver_unloaded_mid_run_is_lost(tmp_path: Path) -> None:
    """A file that disappears is a lost device, never zero joules."""
    chip = build(tmp_path, sockets=1, cores=0)
    (meter,) = amd_cpu.detect(context(tmp_path))
    meter.read()
    (chip / "energy1_input").unlink()
    (reading,) = meter.read()
    assert isinstance(reading, Gap) and reading.lost
