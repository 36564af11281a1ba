"""Promises of perf events: found in sysfs, opened for real, and refused with the remedy."""

import errno
import time
from pathlib import Path

import pytest
from tests.support.powercap_tree import PowercapTree

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap, Scope
from wattloop.hardware.host import Host
from wattloop.meters import perf, rapl
from wattloop.meters.base import Context
from wattloop.meters.perf import PerfCounter

JOULES_SCALE = "2.3283064365386962890625e-10"
CODES = {
    "energy-cores": 1, "energy-pkg": 2, "energy-ram": 3, "energy-gpu": 4, "energy-psys": 5,
}  # fmt: skip


class Sysfs:
    """A `power` event source of real files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(sysfs=root / "sys", procfs=root / "proc")
        self.context = Context(host=self.host)
        (root / "proc").mkdir(parents=True)

    def put(self, relative: str, text: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def source(self, *labels: str, cpumask: str = "0", kind: int = 9) -> None:
        base = "sys/bus/event_source/devices/power"
        self.put(f"{base}/type", str(kind))
        self.put(f"{base}/cpumask", cpumask)
        for label in labels:
            self.put(f"{base}/events/{label}", f"event=0x{CODES[label]:02x}")
            self.put(f"{base}/events/{label}.scale", JOULES_SCALE)
            self.put(f"{base}/events/{label}.unit", "Joules")

    def cpu(self, number: int, package: int, die: int = 0) -> None:
        topology = f"sys/devices/system/cpu/cpu{number}/topology"
        self.put(f"{topology}/physical_package_id", str(package))
        self.put(f"{topology}/die_id", str(die))


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_two_sockets_have_an_event_each(sysfs: Sysfs) -> None:
    """CPU 18 represents socket 1; psys is counted once; type, code and scale are the kernel's."""
    sysfs.source(*CODES, cpumask="0,18")
    sysfs.cpu(0, 0)
    sysfs.cpu(18, 1)
    events = {event.name: event for event in perf.find_events(sysfs.host)}
    assert sorted(events) == [
        "cpu:0/core", "cpu:0/package", "cpu:0/uncore",
        "cpu:1/core", "cpu:1/package", "cpu:1/uncore",
        "dram:0", "dram:1", "psys",
    ]  # fmt: skip
    package = events["cpu:1/package"]
    assert (package.kind, package.config, package.cpu) == (9, 2, 18)
    assert package.joules_per_count == 2**-32


def test_psys_without_a_package_is_not_offered(sysfs: Sysfs) -> None:
    """Virtual machines may list psys alone; it never moves there, so it is not offered."""
    sysfs.source("energy-psys")
    sysfs.cpu(0, 0)
    assert perf.find_events(sysfs.host) == []


def test_names_agree_with_powercap(sysfs: Sysfs, tmp_path: Path) -> None:
    """The cross-check pairs domains by name, so both sources must use the same names."""
    sysfs.source(*CODES)
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    for label in ("core", "uncore", "dram"):
        tree.add_child(package, label)
    tree.add_zone("psys")
    named = {event.name for event in perf.find_events(sysfs.host)}
    assert named == rapl.readable_names(sysfs.host)


def test_dies_of_an_intel_package_are_separate(sysfs: Sysfs) -> None:
    """A mask with two CPUs of one package means two dies that count separately."""
    sysfs.source("energy-pkg", cpumask="0,24")
    sysfs.cpu(0, 0, die=0)
    sysfs.cpu(24, 0, die=1)
    names = [event.name for event in perf.find_events(sysfs.host)]
    assert names == ["cpu:0/die:0/package", "cpu:0/die:1/package"]


def test_amd_package_is_counted_once(sysfs: Sysfs) -> None:
    """On AMD the CPUs of one package all read the same register: no double counting."""
    sysfs.source("energy-pkg", cpumask="0,8,16")
    for cpu, die in ((0, 0), (8, 1), (16, 2)):
        sysfs.cpu(cpu, 0, die)
    sysfs.put("proc/cpuinfo", "vendor_id\t: AuthenticAMD")
    assert [event.name for event in perf.find_events(sysfs.host)] == ["cpu:0/package"]


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        ("events/energy-pkg.unit", "Watts"),
        ("events/energy-pkg.scale", "abc"),
        ("events/energy-pkg.scale", "inf"),
        ("events/energy-pkg", "umask=3"),
        ("type", "power"),
        ("cpumask", "garbage"),
    ],
)
def test_unknown_formats_give_no_event(sysfs: Sysfs, leaf: str, text: str) -> None:
    """An unknown unit, scale or code gives no event rather than wrong joules."""
    sysfs.source("energy-pkg")
    sysfs.put(f"sys/bus/event_source/devices/power/{leaf}", text)
    assert perf.find_events(sysfs.host) == []


def test_stands_back_for_powercap_but_serves_the_cross_check(sysfs: Sysfs) -> None:
    """With powercap readable perf is not used for totals, and says so."""
    sysfs.source("energy-pkg")
    PowercapTree(sysfs.root / "sys").add_package(0)
    with pytest.raises(MeterUnavailable, match="powercap already reads"):
        perf.detect(sysfs.context)
    with pytest.raises(MeterUnavailable) as caught:
        perf.detect_second_source(sysfs.context)
    assert "powercap" not in caught.value.reason


def test_reads_what_powercap_refuses(sysfs: Sysfs) -> None:
    """A DRAM zone that powercap may not read is read by perf; the package is not read twice."""
    sysfs.source("energy-pkg", "energy-ram", kind=987_654)
    tree = PowercapTree(sysfs.root / "sys")
    dram = tree.add_child(tree.add_package(0), "dram")
    dram.energy_file.unlink()
    dram.energy_file.mkdir()
    with pytest.raises(MeterUnavailable) as caught:
        perf.detect(sysfs.context)
    assert caught.value.parts == ("dram:0",)


def test_absent_and_empty_sources_are_distinguished(sysfs: Sysfs) -> None:
    """A virtual machine has the source without events; other machines have no source."""
    with pytest.raises(MeterUnavailable, match="does not exist"):
        perf.detect(sysfs.context)
    sysfs.source()
    with pytest.raises(MeterUnavailable, match="has no energy event"):
        perf.detect(sysfs.context)


def test_refused_event_names_the_domain_and_the_reason(sysfs: Sysfs) -> None:
    """The real system call refuses an event source that this kernel lacks."""
    sysfs.source("energy-pkg", "energy-ram", kind=987_654)
    with pytest.raises(MeterUnavailable) as caught:
        perf.detect(sysfs.context)
    assert caught.value.parts == ("cpu:0/package", "dram:0")
    assert "power/energy-pkg/ on CPU 0" in caught.value.reason


def test_permission_refusal_gives_the_sysctl(sysfs: Sysfs) -> None:
    """EACCES comes with the command that lifts it; other errors have no such remedy."""
    event = perf.PowerEvent("cpu:0/package", "energy-pkg", 9, 2, 0, 1.0)
    denied = perf._refusal(event, PermissionError(errno.EACCES, "Permission denied"))
    assert "sudo sysctl kernel.perf_event_paranoid=0" in denied.remedy
    assert perf._refusal(event, OSError(errno.ENOENT, "No such file")).remedy == ""


def test_reads_a_real_kernel_counter(sysfs: Sysfs) -> None:
    """End to end with the software source: CPU-clock nanoseconds, scaled as if they were joules."""
    try:
        PerfCounter(1, 0, cpu=0).close()
    except OSError as error:
        pytest.skip(f"counting a whole CPU is not allowed here: {error}")
    sysfs.source("energy-pkg", kind=1)
    sysfs.put("sys/bus/event_source/devices/power/events/energy-pkg", "event=0x00")
    sysfs.put("sys/bus/event_source/devices/power/events/energy-pkg.scale", "1e-9")
    (meter,) = perf.detect(sysfs.context)
    (domain,) = meter.domains
    assert (domain.name, domain.scope, domain.inside) == ("cpu:0/package", Scope.CPU, None)
    (first,) = meter.read()
    begin_s = time.monotonic()
    time.sleep(0.02)
    (second,) = meter.read()
    elapsed_s = time.monotonic() - begin_s
    assert isinstance(first, float) and isinstance(second, float)
    assert 0 < second - first < 5 * elapsed_s
    meter.close()
    assert isinstance(meter.read()[0], Gap)


def test_a_mask_of_impossible_cpus_is_ignored(sysfs: Sysfs) -> None:
    """Garbage in `cpumask` gives no event, and does not fill the memory with numbers."""
    sysfs.source("energy-pkg", cpumask="0-99999999999")
    assert perf.find_events(sysfs.host) == []
