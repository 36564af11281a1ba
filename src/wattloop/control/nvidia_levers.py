"""Power limit and clocks of NVIDIA GPUs, through NVML's getters only."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from wattloop.control.lever import LeverState
from wattloop.core.errors import MeterUnavailable
from wattloop.hardware.host import Host
from wattloop.measure.meters.nvml_library import open_nvml, shut_down

__all__ = ["nvidia_levers"]

ROOT_ONLY = "the NVIDIA driver lets only root set it"
ROOT_REMEDY = "run as root, or let an administrator set it with 'sudo nvidia-smi {option}'"


def nvidia_levers(host: Host) -> Iterator[LeverState]:
    """Levers of every card; one that says why, when the library cannot be opened."""
    try:
        nvml = open_nvml(host)
    except MeterUnavailable as refusal:
        if refusal.parts:  # without any sign of a card there is nothing to say
            yield LeverState(
                name="gpu/power_limit",
                available=False,
                reason=refusal.reason,
                remedy=refusal.remedy,
                unit="W",
            )
        return
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            yield from _card(nvml, index)
    finally:
        shut_down(nvml)


def _card(nvml: Any, index: int) -> Iterator[LeverState]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        yield LeverState(name=f"gpu:{index}/power_limit", available=False, reason=str(error))
        return
    yield _power_limit(nvml, handle, index)
    yield _clocks(nvml, handle, index)


def _power_limit(nvml: Any, handle: Any, index: int) -> LeverState:
    value_mw, fault = _asked(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)
    limits, _ = _asked(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    default_mw, _ = _asked(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    available, reason, remedy = _settable(fault, "-pl WATTS")
    return LeverState(
        name=f"gpu:{index}/power_limit",
        available=available,
        reason=reason,
        remedy=remedy,
        value=None if value_mw is None else value_mw / 1_000,
        unit="W",
        low=None if limits is None else limits[0] / 1_000,
        high=None if limits is None else limits[1] / 1_000,
        source="NVML power management limit",
        note="" if default_mw is None else f"default {default_mw / 1_000:g} W",
    )


def _clocks(nvml: Any, handle: Any, index: int) -> LeverState:
    clock = nvml.NVML_CLOCK_SM
    now_mhz, fault = _asked(nvml, lambda h: nvml.nvmlDeviceGetClockInfo(h, clock), handle)
    high_mhz, _ = _asked(nvml, lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, clock), handle)
    memory, _ = _asked(nvml, nvml.nvmlDeviceGetSupportedMemoryClocks, handle)
    steps = None
    if memory:
        steps, _ = _asked(
            nvml, lambda h: nvml.nvmlDeviceGetSupportedGraphicsClocks(h, memory[0]), handle
        )
    available, reason, remedy = _settable(fault, "-lgc MIN,MAX")
    return LeverState(
        name=f"gpu:{index}/sm_clock",
        available=available,
        reason=reason,
        remedy=remedy,
        value=None if now_mhz is None else float(now_mhz),
        unit="MHz",
        low=float(min(steps)) if steps else None,
        high=float(max(steps)) if steps else (None if high_mhz is None else float(high_mhz)),
        source="NVML clock info",
        note=f"{len(steps)} supported steps" if steps else "",
    )


def _settable(fault: str, option: str) -> tuple[bool, str, str]:
    if fault:
        return False, fault, ""
    if os.geteuid() != 0:
        return False, ROOT_ONLY, ROOT_REMEDY.format(option=option)
    return True, "", ""


def _asked(nvml: Any, call: Callable[[Any], Any], handle: Any) -> tuple[Any, str]:
    """(answer, "") or (None, why the card does not answer)."""
    try:
        return call(handle), ""
    except nvml.NVMLError as error:
        return None, f"this card or driver does not offer it ({error})"
    except AttributeError:
        return None, "this version of nvidia-ml-py does not know it"
