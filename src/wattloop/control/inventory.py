"""All levers of this machine, and what would be needed for those that cannot be used."""

from collections.abc import Callable, Iterator

from wattloop.control.lever import LeverState
from wattloop.control.nvidia_levers import nvidia_levers
from wattloop.control.sysfs_levers import amd_gpu_levers, cpufreq_levers, rapl_levers
from wattloop.hardware.host import Host

__all__ = ["find_levers"]

ABSENT: tuple[tuple[str, Callable[[Host], Iterator[LeverState]], str, str], ...] = (
    (
        "cpu/power_limit",
        rapl_levers,
        "no power limit under {sysfs}/class/powercap",
        "load it with 'sudo modprobe intel_rapl_msr'; virtual machines have none",
    ),
    (
        "cpu/governor",
        cpufreq_levers,
        "no cpufreq under {sysfs}/devices/system/cpu",
        "enable frequency scaling in the firmware; virtual machines have none",
    ),
    ("gpu/power_limit", nvidia_levers, "no NVIDIA GPU that NVML can see", ""),
    ("gpu/power_limit", amd_gpu_levers, "no AMD GPU under {sysfs}/class/drm", ""),
)
"""Lever a person would look for, where it is found, and what to say when it is not."""


def find_levers(host: Host) -> list[LeverState]:
    """Every lever that is there, then one line for each kind that is not."""
    found: list[LeverState] = []
    absent: list[LeverState] = []
    for name, finder, reason, remedy in ABSENT:
        levers = list(finder(host))
        found += levers
        if not levers:
            text = reason.format(sysfs=host.sysfs)
            absent.append(LeverState(name=name, available=False, reason=text, remedy=remedy))
    return found + absent
