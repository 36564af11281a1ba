"""Levers that are files: RAPL power limits, cpufreq, AMD GPU power caps."""

import re
from collections.abc import Iterator
from pathlib import Path

from wattloop.control.lever import LeverState, read_number, writable_or_why
from wattloop.hardware.host import Host

__all__ = ["amd_gpu_levers", "cpufreq_levers", "rapl_levers"]

MICROWATTS_PER_W = 1e6
KHZ_PER_MHZ = 1e3
AMD_VENDOR = "0x1002"


def rapl_levers(host: Host) -> Iterator[LeverState]:
    """`constraint_N_power_limit_uw` of every package, DRAM and psys zone."""
    root = host.sysfs / "class/powercap"
    seen: set[Path] = set()
    for limit in sorted(root.glob("*rapl*/constraint_*_power_limit_uw")):
        zone = limit.parent
        if limit.resolve() in seen:
            continue
        seen.add(limit.resolve())
        label = _text(zone / "name") or zone.name
        number = limit.name.split("_")[1]
        kind = _text(zone / f"constraint_{number}_name") or number
        writable, reason, remedy = writable_or_why(limit)
        locked = _text(zone / "enabled") == "0"
        yield LeverState(
            name=f"{_zone_name(zone, label)}/power_limit_{kind}",
            available=writable,
            reason=reason,
            remedy=remedy,
            value=read_number(limit, MICROWATTS_PER_W),
            unit="W",
            low=read_number(zone / f"constraint_{number}_min_power_uw", MICROWATTS_PER_W),
            high=read_number(zone / f"constraint_{number}_max_power_uw", MICROWATTS_PER_W),
            source=str(limit),
            note="the zone is disabled: the limit is not enforced" if locked else "",
        )


def cpufreq_levers(host: Host) -> Iterator[LeverState]:
    """Governor and frequency bounds. Cores with the same values are one line."""
    policies = _cpufreq_policies(host)
    if not policies:
        return
    first = policies[0]
    cores = f"{len(policies)} policies" if len(policies) > 1 else "1 policy"
    governor = first / "scaling_governor"
    if governor.exists():
        values = {_text(policy / "scaling_governor") for policy in policies}
        writable, reason, remedy = writable_or_why(governor)
        yield LeverState(
            name="cpu/governor",
            available=writable,
            reason=reason,
            remedy=remedy,
            value=", ".join(sorted(value for value in values if value)) or None,
            unit="name",
            choices=tuple((_text(first / "scaling_available_governors") or "").split()),
            source=str(governor),
            note=f"{cores}, driver {_text(first / 'scaling_driver') or 'unknown'}",
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
    cards = [
        card
        for card in (host.sysfs / "class/drm").glob("card*")
        if re.fullmatch(r"card\d+", card.name) and _text(card / "device/vendor") == AMD_VENDOR
    ]
    for index, card in enumerate(sorted(cards, key=lambda c: (c / "device").resolve().name)):
        for cap in sorted((card / "device").glob("hwmon/hwmon*/power1_cap")):
            writable, reason, remedy = writable_or_why(cap)
            yield LeverState(
                name=f"gpu:{index}/power_limit",
                available=writable,
                reason=reason,
                remedy=remedy,
                value=read_number(cap, MICROWATTS_PER_W),
                unit="W",
                low=read_number(cap.with_name("power1_cap_min"), MICROWATTS_PER_W),
                high=read_number(cap.with_name("power1_cap_max"), MICROWATTS_PER_W),
                source=str(cap),
            )


def _cpufreq_policies(host: Host) -> list[Path]:
    root = host.sysfs / "devices/system/cpu"
    policies = list(root.glob("cpufreq/policy*")) or list(root.glob("cpu[0-9]*/cpufreq"))
    return sorted(policies, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])


def _zone_name(zone: Path, label: str) -> str:
    """`package-0` -> `cpu:0`; `dram` inside zone 1 -> `cpu:1/dram`."""
    match = re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", label)
    if match is not None:
        package, die = match.groups()
        return f"cpu:{package}" if die is None else f"cpu:{package}/die:{die}"
    numbers = re.findall(r":(\d+)", zone.name)
    return f"cpu:{numbers[0]}/{label}" if len(numbers) > 1 else label


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
