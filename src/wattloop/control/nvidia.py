"""Power limit and locked clocks of NVIDIA GPUs, through NVML."""

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wattloop.control.file_lever import number_within
from wattloop.control.lever import Lever, LeverState, Setting, format_setting
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.files import user_id
from wattloop.meters.base import Context
from wattloop.meters.nvidia import (
    LIBRARY_VARIABLE,
    NO_PERMISSION,
    error_code,
    explain,
    open_nvml,
    shut_down,
)

ROOT_REMEDY = (
    "run it in a terminal that was opened as administrator ('nvidia-smi {option}' needs one, too)"
    if sys.platform == "win32"
    else "run as root, or let an administrator set it with 'sudo nvidia-smi {option}'"
)


class NvmlLibrary:
    """NVML, open as long as any of its levers exists."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        weakref.finalize(self, shut_down, nvml)


class NvmlCard:
    """One card and its calls."""

    def __init__(self, library: NvmlLibrary, handle: Any, index: int, uuid: str) -> None:
        self.library = library
        self.nvml = library.nvml
        self.handle = handle
        self.name = f"gpu:{index}"
        self.device = f"nvidia:{uuid}"

    def query(self, getter: str, *arguments: Any) -> tuple[Any, str]:
        """Return (answer, "") or (None, the reason why the card does not answer)."""
        try:
            return getattr(self.nvml, getter)(self.handle, *arguments), ""
        except self.nvml.NVMLError as error:
            reason, remedy = explain(error)
            return None, f"{reason}; {remedy}" if remedy else reason
        except AttributeError:
            return None, "this version of nvidia-ml-py does not know it; update it"

    def call_setter(self, lever: str, option: str, setter: str, *arguments: Any) -> None:
        """Call a setter. Raises LeverError: with the driver's error and the remedy."""
        call: Callable[..., Any] | None = getattr(self.nvml, setter, None)
        if call is None:
            raise LeverError(f"{lever}: nvidia-ml-py lacks {setter}; update nvidia-ml-py")
        try:
            call(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            reason, remedy = explain(error)
            if error_code(error) == NO_PERMISSION:
                reason, remedy = "permission denied", ROOT_REMEDY.format(option=option)
            raise LeverError(f"{lever}: {reason}" + (f"; {remedy}" if remedy else "")) from None


ROOT_ONLY = "the NVIDIA driver lets only root set it"
NO_GETTER = (
    "whether it is locked cannot be read: taken as not locked before, unlocked when restored"
)


def detect(context: Context) -> Iterator[Lever]:
    """Find the levers of every card. Raises MeterUnavailable: the library cannot be opened."""
    library = NvmlLibrary(open_nvml(context.host))
    for index in range(library.nvml.nvmlDeviceGetCount()):
        try:
            handle = library.nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = library.nvml.nvmlDeviceGetUUID(handle)
        except library.nvml.NVMLError:
            continue  # a card that has fallen off the bus has no levers
        card = NvmlCard(library, handle, index, str(uuid))
        yield PowerLimit(card)
        yield LockedClock(card, "sm")
        yield LockedClock(card, "memory")


class NvidiaLever(Lever):
    """Common part of the levers of a card."""

    option: str
    """Name of the card for nvidia-smi."""

    def __init__(self, card: NvmlCard, leaf: str) -> None:
        self._card = card
        self.name = f"{card.name}/{leaf}"
        self.device = card.device

    def where(self) -> dict[str, str]:
        library = os.environ.get(LIBRARY_VARIABLE)
        return {LIBRARY_VARIABLE: library} if library else {}

    def _permission(self, fault: str) -> tuple[bool, str, str]:
        if fault:
            return False, fault, ""
        if user_id() != 0:
            return False, ROOT_ONLY, ROOT_REMEDY.format(option=self.option)
        return True, "", ""


class PowerLimit(NvidiaLever):
    """The lever `gpu:N/power_limit`."""

    option = "-pl WATTS"
    tolerance = 0.001

    def __init__(self, card: NvmlCard) -> None:
        super().__init__(card, "power_limit")

    def state(self) -> LeverState:
        value_mw, fault = self._card.query("nvmlDeviceGetPowerManagementLimit")
        low, high = self._range()
        default_mw, _ = self._card.query("nvmlDeviceGetPowerManagementDefaultLimit")
        permission = self._permission(fault)
        if permission[0] and high is None:
            permission = False, "the card does not state its limits", ""
        return self._state(
            permission,
            value=None if value_mw is None else value_mw / 1_000,
            unit="W",
            low=low,
            high=high,
            default=None if default_mw is None else default_mw / 1_000,
            source="NVML power management limit",
            note="" if default_mw is None else f"default {default_mw / 1_000:g} W",
        )

    def read(self) -> Setting:
        value_mw, fault = self._card.query("nvmlDeviceGetPowerManagementLimit")
        if value_mw is None:
            raise LeverError(f"{self.name}: {fault}")
        return float(value_mw / 1_000)

    def accepted(self, value: Setting) -> Setting:
        """Round to whole milliwatts within the card's range."""
        low, high = self._range()
        if low is None or high is None:
            _, fault = self._card.query("nvmlDeviceGetPowerManagementLimitConstraints")
            raise LeverError(f"{self.name}: the card does not state its limits: {fault}")
        return round(number_within(self.name, value, low, high, "W"), 3)

    def write(self, value: Setting) -> None:
        setter = "nvmlDeviceSetPowerManagementLimit"
        self._card.call_setter(self.name, self.option, setter, round(self._number(value) * 1_000))

    def write_text(self, value: Setting) -> str:
        power_mw = round(self._number(value) * 1_000)
        return f"nvmlDeviceSetPowerManagementLimit({self._card.name}, {power_mw} mW)"

    def _range(self) -> tuple[float | None, float | None]:
        limits, _ = self._card.query("nvmlDeviceGetPowerManagementLimitConstraints")
        return (None, None) if limits is None else (limits[0] / 1_000, limits[1] / 1_000)


class LockedClock(NvidiaLever):
    """`gpu:N/sm_clock` or `gpu:N/memory_clock`: lowest and highest clock locked to one value."""

    reads_back = False

    def __init__(self, card: NvmlCard, which: str) -> None:
        super().__init__(card, f"{which}_clock")
        self._which = which
        self._infix = "Gpu" if which == "sm" else "Memory"
        self.option = "-lgc MHZ,MHZ" if which == "sm" else "-lmc MHZ,MHZ"

    def state(self) -> LeverState:
        """Return the present clock; NVML cannot tell whether it is locked."""
        now_mhz, fault = self._card.query("nvmlDeviceGetClockInfo", self._clock_type())
        steps = self._steps()
        permission = self._permission(fault)
        if permission[0] and not steps:
            permission = False, "the card does not list the clocks it supports", ""
        return self._state(
            permission,
            value=None if now_mhz is None else float(now_mhz),
            unit="MHz",
            low=float(min(steps)) if steps else None,
            high=float(max(steps)) if steps else None,
            source="NVML clock info",
            note=f"{len(steps)} supported steps; {NO_GETTER}" if steps else NO_GETTER,
        )

    def read(self) -> Setting:
        """Return None: NVML cannot tell whether it is locked. Raises LeverError for a lost card."""
        _, fault = self._card.query("nvmlDeviceGetClockInfo", self._clock_type())
        if fault:
            raise LeverError(f"{self.name}: {fault}")
        return None

    def accepted(self, value: Setting) -> Setting:
        if value is None:
            return None
        steps = self._steps()
        if not steps:
            raise ConfigError(f"{self.name}: the card does not list the clocks it supports")
        if isinstance(value, str):
            raise ConfigError(f"{self.name} takes a number of MHz, not {format_setting(value)!r}")
        wanted = number_within(self.name, value, float(min(steps)), float(max(steps)), "MHz")
        return float(min(steps, key=lambda step: (abs(step - wanted), step)))

    def write(self, value: Setting) -> None:
        if value is None:
            self._card.call_setter(self.name, self.option, self._resetter())
            return
        clock_mhz = round(self._number(value))
        self._card.call_setter(self.name, self.option, self._setter(), clock_mhz, clock_mhz)

    def write_text(self, value: Setting) -> str:
        if value is None:
            return f"{self._resetter()}({self._card.name})"
        clock_mhz = round(self._number(value))
        return f"{self._setter()}({self._card.name}, {clock_mhz} MHz, {clock_mhz} MHz)"

    def _setter(self) -> str:
        return f"nvmlDeviceSet{self._infix}LockedClocks"

    def _resetter(self) -> str:
        return f"nvmlDeviceReset{self._infix}LockedClocks"

    def _clock_type(self) -> int:
        nvml = self._card.nvml
        return int(nvml.NVML_CLOCK_SM if self._which == "sm" else nvml.NVML_CLOCK_MEM)

    def _steps(self) -> Sequence[int]:
        memory, _ = self._card.query("nvmlDeviceGetSupportedMemoryClocks")
        if not memory or self._which == "memory":
            return memory or ()
        steps, _ = self._card.query("nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        return steps or ()
