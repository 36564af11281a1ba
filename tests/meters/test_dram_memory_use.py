"""Promises of memory in use: every machine offers it as a signal."""

from pathlib import Path

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.hardware.host import Host
from wattloop.meters import dram
from wattloop.meters.base import Context


def test_this_machine_uses_some_memory() -> None:
    """The real /proc gives a fraction between 0 and 1."""
    if not Path("/proc/meminfo").exists():
        pytest.skip("no /proc on this machine")
    (meter,) = dram.detect_memory_use(Context())
    (used,) = meter.read_signals()
    assert isinstance(used, float)
    assert 0 < used < 1
    assert [(s.name, s.unit) for s in meter.signals] == [("memory/used", "fraction")]
    assert (meter.domains, list(meter.read())) == ((), [])


def test_available_memory_counts_as_free(tmp_path: Path) -> None:
    """Caches that can be freed do not count as used."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 750 kB\n")
    (meter,) = dram.detect_memory_use(Context(Host(procfs=tmp_path)))
    assert list(meter.read_signals()) == [pytest.approx(0.25)]
    meminfo.write_text("MemTotal: 1000 kB\n")
    (reading,) = meter.read_signals()
    assert isinstance(reading, Gap)


def test_without_proc_it_is_unavailable(tmp_path: Path) -> None:
    """A container without /proc gets the reason and the setting."""
    with pytest.raises(MeterUnavailable, match="WATTLOOP_PROCFS_ROOT"):
        dram.detect_memory_use(Context(Host(procfs=tmp_path)))
