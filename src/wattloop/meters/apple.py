"""Apple Silicon through IOReport: energy counters of CPU, GPU, neural engine and memory.

`powermetrics` shows the same numbers to root only; IOReport answers every user. It is a library
without a public header: calls and channel names are those that open-source monitors use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Context, Meter, Reading

LIBRARY = "/usr/lib/libIOReport.dylib"
FOUNDATION = "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation"
LIBRARY_VARIABLE = "WATTLOOP_IOREPORT_LIBRARY"
GROUP = "Energy Model"
JOULES = {"mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9}
UTF8 = 0x08000100
DOMAINS = {
    "cpu:0/core": (Scope.CPU, "CPU Energy"),
    "gpu:0": (Scope.GPU, "GPU Energy"),
    "ane": (Scope.OTHER, "ANE"),
    "dram": (Scope.DRAM, "DRAM"),
}
"""Domain -> its scope and how its channels are called; chips of two dies have one each
(`DIE_0_CPU Energy`, `ANE0_1`), which are added."""
PARTS = ("cpu", "gpu", "ane")


def detect(context: Context) -> Sequence[Meter]:
    """Find the energy channels of this chip."""
    library = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
    try:
        report = EnergyReport(library)
    except (OSError, AttributeError) as error:
        remedy = "the meter needs macOS 11 or later on Apple Silicon"
        raise MeterUnavailable(
            "apple", f"IOReport cannot be used ({error})", remedy, PARTS
        ) from None
    if not any(name in report.read() for name in DOMAINS):
        report.close()
        raise MeterUnavailable("apple", f"IOReport has no channel of '{GROUP}'", "", PARTS)
    return [AppleEnergy(report)]


class EnergyReport:
    """Subscription to the energy channels.

    Raises:
        OSError: the library is missing, or offers no energy channels.
        AttributeError: it lacks a function.
    """

    def __init__(self, library: str) -> None:
        import ctypes

        self._ctypes = ctypes
        self._report = ctypes.CDLL(library)
        self._core = ctypes.CDLL(FOUNDATION if library == LIBRARY else library)
        reference, number, text = ctypes.c_void_p, ctypes.c_long, ctypes.c_char_p
        u32, u64, out = ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)
        calls: dict[str, tuple[Any, ...]] = {
            "CFStringCreateWithCString": (reference, reference, text, u32),
            "CFStringGetCString": (ctypes.c_bool, reference, text, number, u32),
            "CFDictionaryGetValue": (reference, reference, reference),
            "CFArrayGetCount": (number, reference),
            "CFArrayGetValueAtIndex": (reference, reference, number),
            "CFRelease": (None, reference),
            "IOReportCopyChannelsInGroup": (reference, reference, reference, u64, u64, u64),
            "IOReportCreateSubscription": (reference, reference, reference, out, u64, reference),
            "IOReportCreateSamples": (reference, reference, reference, reference),
            "IOReportChannelGetChannelName": (reference, reference),
            "IOReportChannelGetUnitLabel": (reference, reference),
            "IOReportSimpleGetIntegerValue": (ctypes.c_int64, reference, ctypes.c_int32),
        }
        for name, (result, *arguments) in calls.items():
            function = getattr(self._core if name.startswith("CF") else self._report, name)
            function.restype, function.argtypes = result, arguments
        self._key = self._string("IOReportChannels")
        group = self._string(GROUP)
        channels = self._report.IOReportCopyChannelsInGroup(group, None, 0, 0, 0)
        self._core.CFRelease(group)
        if not channels:
            raise OSError(f"no channels of the group '{GROUP}'")
        self._subscribed: Any = reference()
        self._subscription = self._report.IOReportCreateSubscription(
            None, channels, ctypes.byref(self._subscribed), 0, None
        )
        self._core.CFRelease(channels)
        if not self._subscription:
            raise OSError("it refuses a subscription")

    def read(self) -> dict[str, float]:
        """Return the joules of each domain since the chip was started."""
        sample = self._report.IOReportCreateSamples(self._subscription, self._subscribed, None)
        if not sample:
            return {}
        try:
            channels = self._core.CFDictionaryGetValue(sample, self._key)
            count = self._core.CFArrayGetCount(channels) if channels else 0
            items = [self._core.CFArrayGetValueAtIndex(channels, i) for i in range(count)]
            return domain_energies(
                (
                    self._text(self._report.IOReportChannelGetChannelName(item)),
                    self._text(self._report.IOReportChannelGetUnitLabel(item)),
                    self._report.IOReportSimpleGetIntegerValue(item, 0),
                )
                for item in items
            )
        finally:
            self._core.CFRelease(sample)

    def close(self) -> None:
        for reference in (self._key, self._subscribed, self._subscription):
            if reference:
                self._core.CFRelease(reference)
        self._key = self._subscribed = self._subscription = None

    def _string(self, text: str) -> Any:
        return self._core.CFStringCreateWithCString(None, text.encode(), UTF8)

    def _text(self, string: Any) -> str:
        buffer = self._ctypes.create_string_buffer(256)
        if not string or not self._core.CFStringGetCString(string, buffer, 256, UTF8):
            return ""
        return buffer.value.decode(errors="replace").strip()


def domain_energies(channels: Any) -> dict[str, float]:
    """Add channels (name, unit, value) to domains; clusters and cores inside them are left out."""
    found: dict[str, float] = {}
    for channel, unit, value in channels:
        name = _domain(channel)
        if name is not None and unit in JOULES and value >= 0:
            found[name] = found.get(name, 0.0) + value * JOULES[unit]
    return found


def _domain(channel: str) -> str | None:
    if channel.endswith("CPU Energy"):
        return "cpu:0/core"
    if channel == "GPU Energy":
        return "gpu:0"
    if channel.startswith("ANE"):
        return "ane"
    return "dram" if channel.startswith("DRAM") else None


class AppleEnergy(Meter):
    """Joules of the chip's parts since it was started."""

    name: ClassVar[str] = "apple"
    shared: ClassVar[bool] = False

    def __init__(self, report: EnergyReport) -> None:
        self._report: EnergyReport | None = report
        present: Mapping[str, float] = report.read()
        self._domains = tuple(_counter(name) for name in DOMAINS if name in present)

    def read(self) -> Sequence[Reading]:
        if self._report is None:
            return [Gap(f"{domain.name}: the meter is closed") for domain in self._domains]
        values = self._report.read()
        return [
            values.get(domain.name, Gap(f"{domain.name}: IOReport has no value"))
            for domain in self._domains
        ]

    def close(self) -> None:
        if self._report is not None:
            self._report.close()
            self._report = None


def _counter(name: str) -> Domain:
    scope, channel = DOMAINS[name]
    return Domain(
        name=name,
        kind=DomainKind.COUNTER,
        scope=scope,
        source=f"IOReport {channel}",
        resolution=1e-3,
        update_period_s=0.1,
        known_error=0.1,
        read_cost_s=1e-3,
        device="Apple Silicon",
    )
