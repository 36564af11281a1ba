"""Windows' energy meter interface (EMI): RAPL counters of Intel and AMD processors.

Windows 11 offers the processor's counters itself; a driver of a maker may offer more. A device has
one channel (version 1) or several (version 2). Structures are those of `emi.h`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Context, Meter, Reading

GUID_ENERGY_METER = bytes.fromhex("4483bd45d67ecf49a440c276c933b053")
"""{45BD8344-7ED6-49CF-A440-C276C933B053} as it lies in memory."""
# CTL_CODE(FILE_DEVICE_UNKNOWN, n, METHOD_BUFFERED, FILE_READ_ACCESS)
GET_VERSION, GET_METADATA_SIZE, GET_METADATA, GET_MEASUREMENT = (
    0x22 << 16 | 1 << 14 | number << 2 for number in range(4)
)
NAME_CHARACTERS = 16
JOULES_PER_PICOWATT_HOUR = 3.6e-9
MOST_CHANNELS, MOST_DEVICES, MOST_METADATA_B = 64, 64, 65_536
RAPL = re.compile(r"RAPL_Package(\d{1,3})_(PKG|PP0|PP1|DRAM)")
PARTS = {
    "PKG": ("cpu:{}/package", Scope.CPU, False),
    "PP0": ("cpu:{}/core", Scope.CPU, True),
    "PP1": ("cpu:{}/uncore", Scope.CPU, True),
    "DRAM": ("dram:{}", Scope.DRAM, False),
}
"""RAPL's name -> domain, scope, and whether the package contains it."""

Control = Callable[[int, int], bytes]
"""DeviceIoControl of one device: (code, bytes of room) -> answer. Raises OSError."""


class EmiDevice(NamedTuple):
    """An energy meter and the names of its channels, in the order of its measurements."""

    control: Control
    channels: tuple[str, ...]

    def joules(self) -> list[float]:
        """Return the counter of each channel. Raises OSError, ValueError for a torn answer."""
        data = self.control(GET_MEASUREMENT, 16 * len(self.channels))
        if len(data) < 16 * len(self.channels):
            raise ValueError(f"{len(data)} bytes of {16 * len(self.channels)}")
        values = struct.unpack(f"<{2 * len(self.channels)}Q", data[: 16 * len(self.channels)])
        return [energy * JOULES_PER_PICOWATT_HOUR for energy in values[::2]]


def detect(context: Context) -> Sequence[Meter]:
    """Find the processor's channels."""
    devices = []
    try:
        for control in _open_devices():
            try:
                devices.append(inspect(control))
            except (OSError, ValueError):
                continue  # a meter of another kind, or one that does not answer
    except OSError as error:
        raise MeterUnavailable(
            "emi", f"no energy meter can be opened ({error})", "", ("cpu",)
        ) from None
    meter = EmiEnergy(devices)
    if not meter.domains:
        raise MeterUnavailable(
            "emi",
            "Windows offers no energy counter of the processor",
            "it needs Windows 11 on the machine itself; virtual machines have none",
            ("cpu",),
        )
    return [meter]


def inspect(control: Control) -> EmiDevice:
    """Return a device with its channels. Raises OSError, ValueError: not as `emi.h` says."""
    version = struct.unpack_from("<H", _whole(control(GET_VERSION, 2), 2))[0]
    size = struct.unpack_from("<I", _whole(control(GET_METADATA_SIZE, 4), 4))[0]
    if not 0 < size <= MOST_METADATA_B:
        raise ValueError(f"metadata of {size} bytes")
    data = _whole(control(GET_METADATA, size), size)
    if version == 1:
        return EmiDevice(control, (_name_v1(data),))
    if version == 2:
        return EmiDevice(control, tuple(_names_v2(data)))
    raise ValueError(f"version {version}")


def _name_v1(data: bytes) -> str:
    # unit (4 bytes), maker and model (16 characters each), revision, length of the name, name
    at = 4 + 2 * 2 * NAME_CHARACTERS
    unit, length = struct.unpack_from("<I", data)[0], struct.unpack_from("<H", data, at + 2)[0]
    _picowatt_hours(unit)
    return _text(_whole(data, at + 4 + length)[at + 4 : at + 4 + length])


def _names_v2(data: bytes) -> Iterator[str]:
    # maker and model, revision, number of channels; then unit, length, name of each
    at = 2 * 2 * NAME_CHARACTERS
    count = struct.unpack_from("<H", data, at + 2)[0]
    if count > MOST_CHANNELS:
        raise ValueError(f"{count} channels")
    at += 4
    for _ in range(count):
        unit, length = struct.unpack_from("<IH", _whole(data, at + 6), at)
        _picowatt_hours(unit)
        yield _text(_whole(data, at + 6 + length)[at + 6 : at + 6 + length])
        at += 6 + length


def _picowatt_hours(unit: int) -> None:
    if unit != 0:
        raise ValueError(f"unit {unit}")


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise ValueError(f"{len(data)} bytes of {size}")
    return data


def _text(data: bytes) -> str:
    return data.decode("utf-16-le", "replace").rstrip("\0")


class EmiEnergy(Meter):
    """Joules of the processor's channels since Windows was started."""

    name: ClassVar[str] = "emi"

    def __init__(self, devices: Sequence[EmiDevice]) -> None:
        self._devices = tuple(devices)
        self._places: list[tuple[int, int]] = []
        domains: dict[str, Domain] = {}
        for number, device in enumerate(devices):
            for index, channel in enumerate(device.channels):
                domain = _domain(channel)
                # cores of AMD processors (RAPL_Package0_Core3_CORE) are inside the package
                if domain is not None and domain.name not in domains:
                    domains[domain.name] = domain
                    self._places.append((number, index))
        self._domains = tuple(domains.values())
        self._closed = False

    def read(self) -> Sequence[Reading]:
        read: dict[int, list[float] | Gap] = {}
        for number in {number for number, _ in self._places}:
            try:
                read[number] = (
                    Gap("the meter is closed") if self._closed else self._devices[number].joules()
                )
            except (OSError, ValueError) as error:
                read[number] = Gap(f"energy meter {number}: {error}")
        readings: list[Reading] = []
        for number, index in self._places:
            values = read[number]
            readings.append(values if isinstance(values, Gap) else values[index])
        return readings

    def close(self) -> None:
        self._closed = True
        for device in self._devices:
            close = getattr(device.control, "close", None)
            if close is not None:
                close()


def _domain(channel: str) -> Domain | None:
    match = RAPL.fullmatch(channel)
    if match is None:
        return None
    name, scope, inside = PARTS[match.group(2)]
    package = int(match.group(1))
    return Domain(
        name=name.format(package),
        kind=DomainKind.COUNTER,
        scope=scope,
        source=f"Windows energy meter {channel}",
        inside=f"cpu:{package}/package" if inside else None,
        resolution=1e-3,
        update_period_s=0.1,
        known_error=0.05,
        read_cost_s=50e-6,
    )


class _Handle:
    """DeviceIoControl on an open device."""

    def __init__(self, kernel: Any, handle: int) -> None:
        self._kernel, self._handle = kernel, handle

    def __call__(self, code: int, room: int) -> bytes:
        import ctypes

        buffer, returned = ctypes.create_string_buffer(room), ctypes.c_uint32()
        arguments = (None, 0, buffer, room, ctypes.byref(returned), None)
        if not self._kernel.DeviceIoControl(self._handle, code, *arguments):
            raise OSError(f"DeviceIoControl {code:#x} failed")
        return buffer.raw[: returned.value]

    def close(self) -> None:
        self._kernel.CloseHandle(self._handle)


def _open_devices() -> Iterator[_Handle]:
    """Open every device with the energy meter's interface."""
    import ctypes

    setup, kernel = _libraries()
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    setup.SetupDiGetClassDevsW.restype = kernel.CreateFileW.restype = pointer
    setup.SetupDiGetClassDevsW.argtypes = (ctypes.c_char_p, pointer, pointer, word)
    setup.SetupDiEnumDeviceInterfaces.argtypes = (pointer, pointer, ctypes.c_char_p, word, pointer)
    setup.SetupDiGetDeviceInterfaceDetailW.argtypes = (
        pointer,
        pointer,
        pointer,
        word,
        pointer,
        pointer,
    )
    setup.SetupDiDestroyDeviceInfoList.argtypes = (pointer,)
    kernel.CreateFileW.argtypes = (ctypes.c_wchar_p, word, word, pointer, word, word, pointer)
    kernel.DeviceIoControl.argtypes = (
        pointer,
        word,
        pointer,
        word,
        pointer,
        word,
        pointer,
        pointer,
    )
    kernel.CloseHandle.argtypes = (pointer,)
    invalid = pointer(-1).value
    present_interfaces = 0x02 | 0x10
    found = setup.SetupDiGetClassDevsW(GUID_ENERGY_METER, None, None, present_interfaces)
    if found in (None, invalid):
        raise OSError("SetupDiGetClassDevs failed")
    try:
        for index in range(MOST_DEVICES):
            # SP_DEVICE_INTERFACE_DATA: size, GUID, flags, reserved
            data = ctypes.create_string_buffer(struct.calcsize("@I16sIP"))
            struct.pack_into("@I", data, 0, len(data))
            if not setup.SetupDiEnumDeviceInterfaces(found, None, GUID_ENERGY_METER, index, data):
                return
            size = word()
            setup.SetupDiGetDeviceInterfaceDetailW(found, data, None, 0, ctypes.byref(size), None)
            detail = ctypes.create_string_buffer(max(size.value, 16))
            # SP_DEVICE_INTERFACE_DETAIL_DATA_W: its size without the path is 8 (6 on 32 bits)
            struct.pack_into("@I", detail, 0, 8 if ctypes.sizeof(pointer) == 8 else 6)
            if not setup.SetupDiGetDeviceInterfaceDetailW(found, data, detail, size, None, None):
                continue
            path = ctypes.wstring_at(ctypes.addressof(detail) + 4)
            # GENERIC_READ, shared with other readers and writers, OPEN_EXISTING
            handle = kernel.CreateFileW(path, 0x8000_0000, 0x1 | 0x2, None, 3, 0, None)
            if handle not in (None, invalid):
                yield _Handle(kernel, handle)
    finally:
        setup.SetupDiDestroyDeviceInfoList(found)


def _libraries() -> tuple[Any, Any]:
    import ctypes

    return ctypes.WinDLL("setupapi"), ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
