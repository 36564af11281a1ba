"""Levers that are files: RAPL power limits, cpufreq, AMD GPU power caps."""

import re
from collections.abc import Iterator
from pathlib import Path

from wattloop.control.lever import LeverState, read_number, writable_or_why
from wattloop.hardware.host import Host
from wattloop.hardware.powercap import Zone, all_zones
from wattloop.hardware.text_file import read_text
from wattloop.measure.meters.amd_gpu import find_cards

__all__ = ["amd_gpu_levers", "cpufreq_levers", "rapl_levers"]

MICROWATTS_PER_W = 1e6
KHZ_PER_MHZ = 1e3


def rapl_levers(host: Host) -> Iterator[LeverState]:
    """`constraint_N_power_limit_uw` of every zone, named as the meter names the zone."""
    for zone in all_zones(host):
        for limit in sorted(zone.directory.glob("constraint_*_power_limit_uw")):
            yield _rapl_lever(zone, limit)


def cpufreq_levers(host: Host) -> Iterator[LeverState]:
    """Governor and frequency bounds. Cores with the same values are one line."""
    policies = _cpufreq_policies(host)
    if not policies:
        return
    first = policies[0]
    cores = f"{len(policies)} policies" if len(policies) > 1 else "1 policy"
    governor = first / "scaling_governor"
    if governor.exists():
        values = {read_text(policy / "scaling_governor") for policy in policies}
        writable, reason, remedy = writable_or_why(governor)
        yield LeverState(
            name="cpu/governor",
            available=writable,
            reason=reason,
            remedy=remedy,
            value=", ".join(sorted(value for value in values if value)) or None,
            unit="name",
            choices=tuple(read_text(first / "scaling_available_governors").split()),
            source=str(governor),
            note=f"{cores}, driver {read_text(first / 'scaling_driver') or 'unknown'}",
        )
    for bound in ("min", "max"):
        path = first / f"scaling_{bound}_freq"
        if path.exists():
            writable, reason, remedy = writable_or_why(path)
            yield LeverState(
                name=f"cpu/{bound}_frequency",
                available=writable,
                reason=reason,
                remedy=remedy,
                value=read_number(path, KHZ_PER_MHZ),
                unit="MHz",
                low=read_number(first / "cpuinfo_min_freq", KHZ_PER_MHZ),
                high=read_number(first / "cpuinfo_max_freq", KHZ_PER_MHZ),
                source=str(path),
                note=cores,
            )


def amd_gpu_levers(host: Host) -> Iterator[LeverState]:
    """`power1_cap` of every card of the amdgpu driver, numbered as the meter numbers them."""
    for card in find_cards(host):
        for cap in sorted(card.device.glob("hwmon/hwmon*/power1_cap")):
            writable, reason, remedy = writable_or_why(cap)
            yield LeverState(
                name=f"{card.name}/power_limit",
                available=writable,
                reason=reason,
                remedy=remedy,
                value=read_number(cap, MICROWATTS_PER_W),
                unit="W",
                low=read_number(cap.with_name("power1_cap_min"), MICROWATTS_PER_W),
                high=read_number(cap.with_name("power1_cap_max"), MICROWATTS_PER_W),
                source=str(cap),
            )


def _rapl_lever(zone: Zone, limit: Path) -> LeverState:
    number = limit.name.split("_")[1]
    constraint = f"constraint_{number}"
    kind = read_text(zone.directory / f"{constraint}_name") or number
    # A package has the same limits a second time where its registers are mapped into memory.
    second = "_mmio" if "mmio" in zone.directory.name else ""
    writable, reason, remedy = writable_or_why(limit)
    disabled = read_text(zone.directory / "enabled") == "0"
    return LeverState(
        name=f"{zone.name.removesuffix('/package')}/power_limit_{kind}{second}",
        available=writable,
        reason=reason,
        remedy=remedy,
        value=read_number(limit, MICROWATTS_PER_W),
        unit="W",
        low=read_number(limit.with_name(f"{constraint}_min_power_uw"), MICROWATTS_PER_W),
        high=read_number(limit.with_name(f"{constraint}_max_power_uw"), MICROWATTS_PER_W),
        source=str(limit),
        note="the zone is disabled: the limit is not enforced" if disabled else "",
    )


def _cpufreq_policies(host: Host) -> list[Path]:
    root = host.sysfs / "devices/system/cpu"
    policies = list(root.glob("cpufreq/policy*")) or list(root.glob("cpu[0-9]*/cpufreq"))
    return sorted(policies, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])
