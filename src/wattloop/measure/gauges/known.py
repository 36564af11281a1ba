"""Sensors that Wattloop finds by itself: Intel GPUs, NVIDIA Grace, laptop batteries."""

import re
from collections.abc import Iterator
from pathlib import Path

from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.hardware.host import Host
from wattloop.hardware.hwmon import Chip, find_chips
from wattloop.hardware.number_file import NumberFile
from wattloop.hardware.text_file import read_text, read_whole, whole_number
from wattloop.measure.gauges.gauge import BatterySensor, FileSensor, Gauge

__all__ = ["batteries", "grace_modules", "has_grace", "intel_gpus"]

MICRO = 1e-6
BATTERY_PERIOD_S = 5.0
"""Embedded controllers renew the figure every one to several seconds."""


def intel_gpus(host: Host) -> Iterator[Gauge]:
    """The energy counter of each discrete Intel GPU (drivers i915 and xe)."""
    chips = [chip for chip in find_chips(host) if chip.name in ("i915", "xe")]
    for number, chip in enumerate(chips):
        path = _card_counter(chip)
        if path is None:
            continue
        tdp_w, tdp_note = _power_limit(chip)
        domain = Domain(
            name=f"gpu:intel{number}",
            kind=DomainKind.COUNTER,
            scope=Scope.GPU,
            source=f"hwmon {chip.name} {path.name}",
            resolution=61e-6,
            tdp_w=tdp_w,
            tdp_note=tdp_note,
            device="Intel GPU",
        )
        yield Gauge(domain, FileSensor([NumberFile(path)], MICRO))


GRACE_PARTS: dict[str, tuple[str, Scope, bool]] = {
    # What NVIDIA calls it: our name, scope, whether it lies inside the socket's power.
    "Module": ("module:{0}", Scope.NODE, False),
    "Grace": ("cpu:{0}/package", Scope.CPU, False),
    "CPU": ("cpu:{0}/core", Scope.CPU, True),
    "SysIO": ("cpu:{0}/uncore", Scope.CPU, True),
}


def grace_modules(host: Host) -> Iterator[Gauge]:
    """Power of NVIDIA Grace sockets and of what is in and around them."""
    for directory, part, socket in _grace_meters(host):
        name, scope, is_part = GRACE_PARTS[part]
        interval_s = (read_whole(directory / "power1_average_interval") or 50) / 1_000
        domain = Domain(
            name=name.format(socket),
            kind=DomainKind.GAUGE,
            scope=scope,
            source=f"hwmon power_meter {part} Power Socket {socket}",
            inside=f"cpu:{socket}/package" if is_part else None,
            resolution=0.001,
            update_period_s=interval_s,
            averaging_s=interval_s,
            # Each read asks the firmware.
            read_cost_s=1e-3,
            device="NVIDIA Grace",
        )
        yield Gauge(domain, FileSensor([NumberFile(directory / "power1_average")], MICRO))


def has_grace(host: Host) -> bool:
    """Whether a Grace socket is measured, whose power already contains the memory's."""
    return any(part == "Grace" for _, part, _ in _grace_meters(host))


def batteries(host: Host) -> Iterator[Gauge]:
    """Power drawn from the batteries that feed the machine itself."""
    for directory in sorted((host.sysfs / "class/power_supply").glob("*")):
        is_battery = read_text(directory / "type") == "Battery" or directory.name.startswith("BAT")
        # Mice and headsets have batteries too; the kernel gives them the scope "Device".
        if not is_battery or read_text(directory / "scope") == "Device":
            continue
        power = _battery_power(directory)
        if power is None:
            continue
        domain = Domain(
            name=f"battery:{directory.name}",
            kind=DomainKind.GAUGE,
            scope=Scope.NODE,
            source=f"power_supply {directory.name}",
            resolution=0.01,
            update_period_s=BATTERY_PERIOD_S,
            read_cost_s=5e-3,
            device=read_text(directory / "model_name"),
        )
        yield Gauge(domain, BatterySensor(directory / "status", power))


def _card_counter(chip: Chip) -> Path | None:
    """The counter of the whole card; the package's where the card has none."""
    paths = {chip.text(f"energy{n}_label"): path for n, path in chip.channels("energy*_input")}
    for label in ("card", "", "pkg"):
        if label in paths:
            return paths[label]
    return None


def _power_limit(chip: Chip) -> tuple[float | None, str]:
    rated_w = (whole_number(chip.text("power1_rated_max")) or 0) * MICRO
    limit_w = (whole_number(chip.text("power1_max")) or 0) * MICRO
    if 0 < limit_w < rated_w:
        return limit_w, f"enforced power limit {limit_w:g} W of {rated_w:g} W"
    if rated_w > 0:
        return rated_w, "rated power"
    return (limit_w, "power limit") if limit_w > 0 else (None, "")


def _grace_meters(host: Host) -> Iterator[tuple[Path, str, int]]:
    for chip in find_chips(host):
        if chip.name not in ("power_meter", "acpitz"):
            continue
        # The files lie beside the name, or with the ACPI device one level down.
        for directory in (chip.directory, chip.directory / "device"):
            label = read_text(directory / "power1_oem_info")
            match = re.fullmatch(r"(Module|Grace|CPU|SysIO) Power Socket (\d+)", label)
            if match:
                yield directory, match.group(1), int(match.group(2))
                break


def _battery_power(directory: Path) -> FileSensor | None:
    # Some drivers show what flows out as a negative number.
    def file(leaf: str) -> NumberFile:
        return NumberFile(directory / leaf, signed=True)

    if (directory / "power_now").exists():
        return FileSensor([file("power_now")], MICRO, magnitude=True)
    if (directory / "current_now").exists() and (directory / "voltage_now").exists():
        files = [file("current_now"), file("voltage_now")]
        return FileSensor(files, MICRO * MICRO, magnitude=True)
    return None
