"""Promises of `host`: other roots for /sys and /proc, as a container needs."""

from pathlib import Path

from tests.support.powercap_tree import PowercapTree
from wattloop.hardware.host import Host
from wattloop.meters import rapl
from wattloop.meters.base import Context


def test_roots_come_from_the_environment() -> None:
    """A container mounts the host's trees elsewhere and sets the variables."""
    host = Host.from_environment(
        {"WATTLOOP_SYSFS_ROOT": "/host/sys", "WATTLOOP_PROCFS_ROOT": "/host/proc"}
    )
    assert (host.sysfs, host.procfs) == (Path("/host/sys"), Path("/host/proc"))


def test_own_roots_are_the_default() -> None:
    """Unset or empty variables mean this machine."""
    host = Host.from_environment({"WATTLOOP_SYSFS_ROOT": ""})
    assert (host.sysfs, host.procfs) == (Path("/sys"), Path("/proc"))


def test_meter_reads_below_the_root_even_through_absolute_links(tmp_path: Path) -> None:
    """The host's counters are read where they are mounted."""
    package = PowercapTree(tmp_path / "host" / "sys").add_package(0)
    package.set_energy_uj(5_000_000)
    host = Host.from_environment({"WATTLOOP_SYSFS_ROOT": str(tmp_path / "host" / "sys")})
    (meter,) = rapl.detect(Context(host))
    assert meter.read() == [5.0]
    meter.close()


def test_unreadable_file_is_none(tmp_path: Path) -> None:
    """Absent, a folder, or bytes that are not text: never an exception."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    host = Host(tmp_path, tmp_path)
    assert host.read_text("sys", "none") is None
    assert host.read_text("sys", "folder") is None
    assert host.read_text("proc", "binary") is not None


def test_boot_id_is_read_below_the_root(tmp_path: Path) -> None:
    """Times of different boots are not compared."""
    path = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("abc\n")
    assert Host(procfs=tmp_path).boot_id == "abc"
    assert Host(procfs=tmp_path / "none").boot_id == ""
