"""Main memory: its power where nothing measures it (thesis, section 4.2), and its use."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.errors import CommandError, MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope, Signal
from wattloop.hardware.dimms import (
    DMIDECODE,
    Dimm,
    MemoryUse,
    describe,
    dimms_from_setting,
    dimms_from_smbios,
    dram_power_w,
    is_low_power,
)
from wattloop.hardware.host import Host
from wattloop.meters import perf, rapl
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.gauge_files import has_grace

KNOWN_ERROR = 0.7
"""Wide enough for what RAPL read in the thesis's own runs, whichever usage tier applied: 5 % more
than the model when idle, up to 65 % more under load, since the model does not see traffic."""
LOW_POWER_ERROR = 0.8
"""Laptop memory, without a measurement to compare with (docs/meters/dram.md)."""
REMEDY = (
    "set 'dimms' in wattloop.yaml or WATTLOOP_DIMMS, such as 8x32 for eight modules of 32 GiB "
    "('sudo dmidecode --type 17' lists them)"
)


def detect(context: Context) -> Sequence["Dram"]:
    """Return the model, unless the memory's power is measured here."""
    measured_by = _measured_by(context)
    if measured_by:
        raise MeterUnavailable(
            "dram", f"{measured_by} measures the memory; the model is kept for cross-checking"
        )
    return detect_second_source(context)


def detect_second_source(context: Context) -> Sequence["Dram"]:
    """Return the model, whether or not the memory's power is measured too."""
    dimms, origin = _modules(context)
    use = MemoryUse(context.host.procfs)
    reading = use.used_fraction()
    if isinstance(reading, Gap):
        raise MeterUnavailable("dram", reading.reason, parts=("dram",))
    return [Dram(dimms, use, origin)]


class Dram(Meter):
    """Watts from the installed modules and the memory in use."""

    name: ClassVar[str] = "dram"
    shared: ClassVar[bool] = True

    def __init__(self, dimms: Sequence[Dimm], use: MemoryUse, origin: str) -> None:
        self._dimms = tuple(dimms)
        self._use = use
        domain = Domain(
            name="dram",
            kind=DomainKind.GAUGE,
            scope=Scope.DRAM,
            source=f"model of {describe(dimms)} ({origin})",
            provenance=Provenance.MODELLED,
            update_period_s=0.1,
            known_error=LOW_POWER_ERROR if any(map(is_low_power, dimms)) else KNOWN_ERROR,
            read_cost_s=20e-6,
            device=describe(dimms),
        )
        self._domains = (domain,)

    def read(self) -> Sequence[Reading]:
        used = self._use.used_fraction()
        return [used if isinstance(used, Gap) else dram_power_w(self._dimms, used)]


def _measured_by(context: Context) -> str:
    if any(name.startswith("dram") for name in rapl.readable_names(context.host)):
        return "RAPL (powercap)"
    if has_grace(context.host):
        return "the Grace socket's sensor"
    events = [event for event in perf.find_events(context.host) if event.label == "energy-ram"]
    if events:
        meter = perf.Perf(events)
        meter.close()
        if meter.domains:
            return "RAPL (perf)"
    return ""


def _modules(context: Context) -> tuple[tuple[Dimm, ...], str]:
    """Return the modules that the user states, else those of the firmware."""
    host, asked = context.host, context.settings.dimms
    if asked and asked != DMIDECODE:
        return dimms_from_setting(asked), "from the setting dimms"
    if _is_virtual(host):
        raise MeterUnavailable(
            "dram",
            "this is a virtual machine: what it shows as memory modules is not real",
            "set 'dimms' in wattloop.yaml or WATTLOOP_DIMMS to your share of the host's modules, "
            "such as 2x32",
            parts=("dram",),
        )
    try:
        if asked:
            return dimms_from_setting(asked), "from dmidecode"
        dimms = dimms_from_smbios(host)
    except CommandError as error:
        raise MeterUnavailable("dram", str(error), REMEDY, parts=("dram",)) from None
    except PermissionError as error:
        raise MeterUnavailable(
            "dram",
            f"{error.filename} lists the memory modules but is for root only",
            f"run 'sudo chmod a+r {error.filename}', or {REMEDY}",
            parts=("dram",),
        ) from None
    if not dimms:
        raise MeterUnavailable(
            "dram",
            f"no memory module is listed under {host.sysfs / 'firmware/dmi'}",
            REMEDY,
            parts=("dram",),
        )
    return dimms, "from SMBIOS"


def _is_virtual(host: Host) -> bool:
    for line in (host.read_text("proc", "cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return False


def detect_memory_use(context: Context) -> Sequence["HostMemory"]:
    """The machine's memory, where the kernel tells its use."""
    use = MemoryUse(context.host.procfs)
    reading = use.used_fraction()
    if isinstance(reading, Gap):
        raise MeterUnavailable(
            "memory", reading.reason, "set WATTLOOP_PROCFS_ROOT to a mounted /proc"
        )
    return [HostMemory(use)]


class HostMemory(Meter):
    """Signal `memory/used`; no energy of its own."""

    name: ClassVar[str] = "memory"
    shared: ClassVar[bool] = True

    _domains = ()
    _signals = (Signal("memory/used", "fraction"),)

    def __init__(self, use: MemoryUse) -> None:
        self._use = use

    def read(self) -> Sequence[Reading]:
        return ()

    def read_signals(self) -> Sequence[Reading]:
        return [self._use.used_fraction()]
