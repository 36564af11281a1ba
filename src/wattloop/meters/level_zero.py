"""Intel GPUs through Level Zero Sysman: the energy counter of each discrete card.

Where the kernel offers the counter as a file (`meters.gauge_files`), that is read instead. Level
Zero is for older kernels and for Windows. Structures are those of `zes_api.h`.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Sequence
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


DEVICE = struct.Struct("@IPIP6IQ7IQ2I16s256s")
"""zes_device_properties_t up to the name in its ze_device_properties_t; the rest is not read."""
DEVICE_REST_B = 1_024
FLAGS, NAME = 7, -1
POWER = struct.Struct("@IPBIBBiii")
"""zes_power_properties_t; limits are in milliwatts, -1 where unknown."""
ON_SUBDEVICE, DEFAULT_MW = 2, 6
COUNTER = struct.Struct("@QQ")
"""zes_power_energy_counter_t: microjoules, microseconds."""


class _Card(NamedTuple):
    handle: Any
    domain: Domain


def detect(context: Context) -> Sequence[Meter]:
    """Find discrete cards whose counter no file shows."""
    if any(True for _ in intel_gpus(context.host)):
        raise MeterUnavailable("intel-gpu", "the kernel's own counter of the Intel GPU is read")
    # most machines only need the answer "no", for which `ctypes` (4 ms) is not imported
    import _ctypes

    try:
        if sys.platform == "win32":
            _ctypes.LoadLibrary(LIBRARY, 0)
        else:
            _ctypes.dlopen(LIBRARY, os.RTLD_LAZY)
    except OSError:
        raise MeterUnavailable("intel-gpu", f"no Level Zero on this machine ({LIBRARY})") from None
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
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
        import ctypes

        room = ctypes.create_string_buffer(COUNTER.size)
        code = self._library.zesPowerGetEnergyCounter(card.handle, room)
        if code:
            code &= 0xFFFFFFFF
            reason = _MEANING.get(code, f"Level Zero error {code:#x}")
            return Gap(f"{card.domain.name}: {reason}", lost=code in _MEANING)
        return float(COUNTER.unpack(room.raw)[0]) / 1e6


def _cards(library: Any) -> list[_Card]:
    """Return the cards that have a counter. Raises OSError: the driver refuses."""
    import ctypes

    _check(library.zesInit(0), "zesInit")
    found: list[_Card] = []
    for driver in _handles(library.zesDriverGet):
        for device in _handles(library.zesDeviceGet, driver):
            room = ctypes.create_string_buffer(DEVICE.size + DEVICE_REST_B)
            struct.pack_into("@IPI", room, 0, DEVICE_PROPERTIES, 0, CORE_PROPERTIES)
            code = library.zesDeviceGetProperties(device, room)
            about = DEVICE.unpack_from(room)
            if code or about[FLAGS] & INTEGRATED:
                continue
            model = about[NAME].partition(b"\0")[0].decode(errors="replace")
            for power in _handles(library.zesDeviceEnumPowerDomains, device):
                card = _card(library, power, len(found), model)
                if card is not None:
                    found.append(card)
                    break  # the first of the whole card; others are its parts
    return found


def _card(library: Any, power: Any, number: int, model: str) -> _Card | None:
    """Return the power domain of a whole card; None for a tile's, or without a counter."""
    import ctypes

    room = ctypes.create_string_buffer(POWER.size)
    struct.pack_into("@I", room, 0, POWER_PROPERTIES)
    code = library.zesPowerGetProperties(power, room)
    about = POWER.unpack(room.raw)
    if code or about[ON_SUBDEVICE]:
        return None
    if library.zesPowerGetEnergyCounter(power, ctypes.create_string_buffer(COUNTER.size)):
        return None
    limit_w = about[DEFAULT_MW] / 1_000 if about[DEFAULT_MW] > 0 else None
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


def _handles(get: Callable[..., int], *of: Any) -> list[Any]:
    """Return the handles of a call that is asked for their number first."""
    import ctypes

    count = ctypes.c_uint32(0)
    _check(get(*of, ctypes.byref(count), None), "a list of devices")
    count.value = min(count.value, MOST_DEVICES)
    room = (ctypes.c_void_p * max(1, count.value))()
    _check(get(*of, ctypes.byref(count), room), "a list of devices")
    return [ctypes.c_void_p(each) for each in room[: count.value]]


def _check(code: int, call: str) -> None:
    if code:
        code &= 0xFFFFFFFF
        raise OSError(f"{call}: {_MEANING.get(code, f'error {code:#x}')}")
