"""Intel GPUs through Level Zero Sysman: the energy counter of each discrete card.

Where the kernel offers the counter as a file (`meters.gauge_files`), that is read instead. Level
Zero is for older kernels and for Windows. Structures are those of `zes_api.h`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.gauge_files import intel_gpus

LIBRARY = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"
DEVICE_PROPERTIES, CORE_PROPERTIES, POWER_PROPERTIES = 0x1, 0x3, 0xD
INTEGRATED = 0x1
"""Flag of a GPU within the processor, whose package counts its energy."""
MOST_DEVICES = 64
_MEANING = {
    0x70000003: "the device is lost",
    0x70010000: "permission denied",
    0x78000001: "the library is not initialised",
    0x78000003: "this card or driver does not support the call",
}


class _DeviceProperties(ctypes.Structure):
    """zes_device_properties_t up to the name in its ze_device_properties_t."""

    _fields_ = [
        *(("stype", c_uint32), ("next", c_void_p)),
        *(("core_stype", c_uint32), ("core_next", c_void_p)),
        *((name, c_uint32) for name in ("type", "vendor", "device", "flags", "subdevice", "clock")),
        ("largest_allocation", c_uint64),
        *((f"limit{number}", c_uint32) for number in range(7)),
        ("timer_resolution", c_uint64),
        *(("timestamp_bits", c_uint32), ("kernel_timestamp_bits", c_uint32)),
        *(("uuid", c_uint8 * 16), ("name", c_char * 256), ("rest", c_uint8 * 1_024)),
    ]  # fmt: skip


class _PowerProperties(ctypes.Structure):
    """zes_power_properties_t; limits are in milliwatts, -1 where unknown."""

    _fields_ = [
        *(("stype", c_uint32), ("next", c_void_p), ("on_subdevice", c_uint8)),
        *(("subdevice", c_uint32), ("can_control", c_uint8), ("has_threshold", c_uint8)),
        *(("default_mw", c_int32), ("least_mw", c_int32), ("most_mw", c_int32)),
    ]


class _EnergyCounter(ctypes.Structure):
    """zes_power_energy_counter_t."""

    _fields_ = [("energy_uj", c_uint64), ("time_us", c_uint64)]


class _Card(NamedTuple):
    handle: c_void_p
    domain: Domain


def detect(context: Context) -> Sequence[Meter]:
    """Find discrete cards whose counter no file shows."""
    if any(True for _ in intel_gpus(context.host)):
        raise MeterUnavailable("intel-gpu", "the kernel's own counter of the Intel GPU is read")
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise MeterUnavailable("intel-gpu", f"no Level Zero on this machine ({LIBRARY})") from None
    try:
        cards = _cards(library)
    except (OSError, AttributeError) as error:
        raise MeterUnavailable(
            "intel-gpu",
            f"Level Zero does not answer ({error})",
            "update Intel's GPU driver, and join the group of /dev/dri/renderD* ('ls -l')",
        ) from None
    if not cards:
        raise MeterUnavailable("intel-gpu", "Level Zero sees no discrete Intel GPU with a counter")
    return [LevelZeroEnergy(library, cards)]


class LevelZeroEnergy(Meter):
    """Microjoules of each card."""

    name: ClassVar[str] = "intel-gpu"
    shared: ClassVar[bool] = True

    def __init__(self, library: Any, cards: Sequence[_Card]) -> None:
        self._library, self._cards = library, tuple(cards)
        self._domains = tuple(card.domain for card in cards)

    def read(self) -> Sequence[Reading]:
        return [self._read(card) for card in self._cards]

    def _read(self, card: _Card) -> Reading:
        found = _EnergyCounter()
        code = self._library.zesPowerGetEnergyCounter(card.handle, ctypes.byref(found))
        if code:
            code &= 0xFFFFFFFF
            reason = _MEANING.get(code, f"Level Zero error {code:#x}")
            return Gap(f"{card.domain.name}: {reason}", lost=code in _MEANING)
        return float(found.energy_uj) / 1e6


def _cards(library: Any) -> list[_Card]:
    """Return the cards that have a counter. Raises OSError: the driver refuses."""
    _check(library.zesInit(0), "zesInit")
    found: list[_Card] = []
    for driver in _handles(library.zesDriverGet):
        for device in _handles(library.zesDeviceGet, driver):
            about = _DeviceProperties(stype=DEVICE_PROPERTIES, core_stype=CORE_PROPERTIES)
            code = library.zesDeviceGetProperties(device, ctypes.byref(about))
            if code or about.flags & INTEGRATED:
                continue
            for power in _handles(library.zesDeviceEnumPowerDomains, device):
                card = _card(library, power, len(found), about.name.decode(errors="replace"))
                if card is not None:
                    found.append(card)
                    break  # the first of the whole card; others are its parts
    return found


def _card(library: Any, power: c_void_p, number: int, model: str) -> _Card | None:
    """Return the power domain of a whole card; None for a tile's, or without a counter."""
    about = _PowerProperties(stype=POWER_PROPERTIES)
    if library.zesPowerGetProperties(power, ctypes.byref(about)) or about.on_subdevice:
        return None
    if library.zesPowerGetEnergyCounter(power, ctypes.byref(_EnergyCounter())):
        return None
    limit_w = about.default_mw / 1_000 if about.default_mw > 0 else None
    domain = Domain(
        name=f"gpu:intel{number}",
        kind=DomainKind.COUNTER,
        scope=Scope.GPU,
        source="Level Zero energy counter",
        resolution=61e-6,
        read_cost_s=1e-4,
        tdp_w=limit_w,
        tdp_note="" if limit_w is None else f"default power limit {limit_w:g} W",
        device=model or "Intel GPU",
    )
    return _Card(power, domain)


def _handles(get: Callable[..., int], *of: c_void_p) -> list[c_void_p]:
    """Return the handles of a call that is asked for their number first."""
    count = c_uint32(0)
    _check(get(*of, ctypes.byref(count), None), "a list of devices")
    count.value = min(count.value, MOST_DEVICES)
    room = (c_void_p * max(1, count.value))()
    _check(get(*of, ctypes.byref(count), room), "a list of devices")
    return [c_void_p(each) for each in room[: count.value]]


def _check(code: int, call: str) -> None:
    if code:
        code &= 0xFFFFFFFF
        raise OSError(f"{call}: {_MEANING.get(code, f'error {code:#x}')}")
