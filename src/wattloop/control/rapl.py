"""Power limits of CPU packages, DRAM and the platform: constraints of the powercap tree."""

from collections.abc import Iterator
from pathlib import Path

from wattloop.control.file_lever import LimitFiles, NumberLever
from wattloop.control.lever import Lever
from wattloop.hardware.host import Host, read_text
from wattloop.hardware.powercap import Zone, all_zones
from wattloop.meters.base import Context

MICROWATTS_PER_W = 1e6
STEP_W = 0.126
"""Resolution of the registers, an eighth of a watt: a value is read back rounded to it."""


def detect(context: Context) -> Iterator[Lever]:
    """Find `constraint_N_power_limit_uw` of every zone, named as the meter names the zone."""
    for zone in all_zones(context.host):
        for path in sorted(zone.directory.glob("constraint_*_power_limit_uw")):
            yield _lever(context.host, zone, path)


def _lever(host: Host, zone: Zone, path: Path) -> NumberLever:
    constraint = path.name.removesuffix("_power_limit_uw")
    kind = read_text(path.with_name(f"{constraint}_name")) or constraint.rpartition("_")[2]
    # A package has the same limits a second time where its registers are memory-mapped.
    second = "_mmio" if "mmio" in zone.directory.name else ""
    disabled = read_text(zone.directory / "enabled") == "0"
    high = path.with_name(f"{constraint}_max_power_uw")
    return NumberLever(
        f"{zone.name.removesuffix('/package')}/power_limit_{kind}{second}",
        f"rapl:{zone.directory.name}",
        host.sysfs,
        path,
        MICROWATTS_PER_W,
        "W",
        # the kernel's maximum of the long-term limit is the package's thermal design power
        limits=LimitFiles(path.with_name(f"{constraint}_min_power_uw"), high, high),
        tolerance=STEP_W,
        note="the zone is disabled: the limit is not enforced" if disabled else "",
    )
