"""NVIDIA GPUs through NVML: the energy counter, and power for the curve between its updates."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, read_text
from wattloop.meters.base import Context, DeviceProcess, Meter, Reading

T = TypeVar("T")
LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
NVIDIA_VENDOR = "0x10de"
LIBRARY_VARIABLE = "WATTLOOP_NVML_LIBRARY"
SHUTDOWN_PATIENCE_S = 1.0
POWER_INSTANT_FIELD = 186
"""NVML_FI_DEV_POWER_INSTANT: 38 us a read on an H200, new every 100 ms, no lag."""


# nvmlReturn_t; the numbers are part of the library's ABI.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
_MEANING: dict[int, tuple[str, str]] = {
    1: ("the library is not initialised", ""),
    INVALID_ARGUMENT: ("this driver does not know the request", "update the NVIDIA driver"),
    NOT_SUPPORTED: ("this card or driver does not support the call", ""),
    NO_PERMISSION: (
        "permission denied",
        "add the user to the group that owns /dev/nvidia* ('ls -l /dev/nvidia*') or run as root",
    ),
    8: ("the card's external power cables are not attached", "attach them"),
    9: ("the NVIDIA driver is not loaded", "load it with 'sudo modprobe nvidia'"),
    10: ("the driver timed out", ""),
    11: ("the kernel reports an interrupt problem with the card", "see 'dmesg | grep -i nvrm'"),
    FUNCTION_NOT_FOUND: ("this driver's library lacks the call", "update the NVIDIA driver"),
    GPU_IS_LOST: ("the GPU has fallen off the bus", "see 'dmesg | grep -i xid'; reboot"),
    RESET_REQUIRED: ("the GPU requires a reset", "run 'sudo nvidia-smi --gpu-reset'"),
    17: ("the operating system blocks the card", "check the container's device cgroup"),
    18: (
        "the driver in the kernel and the library have different versions",
        "reboot, or reload the driver with 'sudo rmmod nvidia && sudo modprobe nvidia'",
    ),
    999: ("the driver reports an unknown error", "see 'dmesg | grep -i nvrm'"),
}
if sys.platform == "win32":
    _NEW_DRIVER = "install NVIDIA's driver again, or restart Windows"
    _MEANING |= {
        code: (_MEANING[code][0], remedy)
        for code, remedy in {
            NO_PERMISSION: "open the terminal as administrator",
            **dict.fromkeys((9, 18, GPU_IS_LOST), _NEW_DRIVER),
            **dict.fromkeys((11, 999), "see the Event Viewer, source nvlddmkm"),
            RESET_REQUIRED: "restart Windows",
            17: "",
        }.items()
    }
UNSUPPORTED = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND})
_PERMANENT = UNSUPPORTED | {NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED}


def open_nvml(host: Host) -> Any:
    """Return the initialised `pynvml` module; `shut_down` releases it.

    Raises:
        MeterUnavailable: without a driver this takes under 2 ms, since nvidia-ml-py (40 ms to
            import) is loaded only when its library is there.
    """
    path = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
    _require_library(path, host)
    try:
        import pynvml
    except ImportError:
        raise MeterUnavailable(
            "nvidia",
            "the package nvidia-ml-py is missing",
            "run 'pip install nvidia-ml-py'",
            ("gpu",),
        ) from None
    if path != LIBRARY and getattr(pynvml.nvmlLib, "_name", None) != path:
        import ctypes

        pynvml.nvmlLib = ctypes.CDLL(path)
        pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetCount()  # a driver that is half gone shows here, not later
    except pynvml.NVMLError as error:
        reason, remedy = explain(error)
        raise MeterUnavailable("nvidia", reason, remedy, parts=("gpu",)) from None
    return pynvml


def shut_down(nvml: Any) -> None:
    """Release the library; a driver that hangs delays this by a second at most."""

    def quietly() -> None:
        # An error means "already shut down" or "the driver is gone": nothing left to release.
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    thread = threading.Thread(target=quietly, name="wattloop-nvml-shutdown", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return  # the interpreter is going down; the kernel releases the files
    thread.join(SHUTDOWN_PATIENCE_S)


def error_code(error: Exception) -> int:
    """Return the nvmlReturn_t of an NVMLError."""
    return int(getattr(error, "value", 999))


def is_unsupported(error: Exception) -> bool:
    """Return True if the card will never answer this call."""
    return error_code(error) in UNSUPPORTED


def explain(error: Exception) -> tuple[str, str]:
    code = error_code(error)
    return _MEANING.get(code, (f"NVML error {code}", ""))


def gap(domain: str, code: int) -> Gap:
    reason, _ = _MEANING.get(code, (f"NVML error {code}", ""))
    return Gap(f"{domain}: {reason}", lost=code in _PERMANENT)


def _require_library(path: str, host: Host) -> None:
    # `ctypes` takes 4 ms to import, its C half 0.6 ms; most machines only need the answer "no".
    import _ctypes

    try:
        if sys.platform == "win32":
            _ctypes.LoadLibrary(path, 0)
        else:
            _ctypes.dlopen(path, os.RTLD_LAZY)
    except OSError as error:
        raise _no_library(path, str(error), host) from None


def _no_library(path: str, error: str, host: Host) -> MeterUnavailable:
    if path != LIBRARY:
        remedy = f"{LIBRARY_VARIABLE} must name a {LIBRARY}"
        return MeterUnavailable("nvidia", f"{path} cannot be loaded ({error})", remedy, ("gpu",))
    if (host.procfs / "driver/nvidia/version").exists():
        return MeterUnavailable(
            "nvidia",
            f"the NVIDIA driver is loaded but {LIBRARY} is not found",
            "in a container use '--gpus all' and NVIDIA_DRIVER_CAPABILITIES=compute,utility; "
            f"elsewhere set {LIBRARY_VARIABLE} to its path",
            ("gpu",),
        )
    vendors = host.sysfs.glob("class/drm/card*/device/vendor")
    if any(read_text(vendor) == NVIDIA_VENDOR for vendor in vendors):
        remedy = "install NVIDIA's driver; the open nouveau driver has no power readings"
        return MeterUnavailable(
            "nvidia", "an NVIDIA GPU is here but NVIDIA's driver is not", remedy, ("gpu",)
        )
    return MeterUnavailable("nvidia", f"no NVIDIA driver on this machine ({LIBRARY} not found)")


MIG_ON = 1
VGPU_GUEST = 2
CLOCK_SM, CLOCK_MEMORY = 1, 2
GA100 = (8, 0)
AMPERE = 8


class CardSignal(NamedTuple):
    """A signal and how it is read: `read(nvml, handle)`."""

    name: str
    unit: str
    read: Callable[[Any, Any], float]


class NvidiaCard(NamedTuple):
    """A card that can be measured.

    Attributes:
        averaging_s: past seconds over which its power reading is a mean.
        instant: power comes from the instantaneous field.
        limit_w: power limit in force; `limit_note` says how it relates to the default.
        is_split: MIG divides it into instances, which share its sensor.
    """

    number: int
    handle: Any
    model: str
    has_power: bool
    has_counter: bool
    instant: bool
    averaging_s: float
    update_period_s: float
    limit_w: float | None
    limit_note: str
    max_limit_w: float | None
    uuid: str
    is_split: bool
    signals: tuple[CardSignal, ...]

    @property
    def name(self) -> str:
        return f"gpu:{self.number}"

    @property
    def identity(self) -> str:
        """The card, or the instances of it that this program may use."""
        own = "+".join(own_instances()) if self.is_split else ""
        return f"{self.uuid}/{own}" if own else self.uuid


def inspect(nvml: Any, index: int, counters: dict[str, bool]) -> NvidiaCard | Missing:
    """Return the facts of card `index`, or the reason why it cannot be measured.

    `counters` remembers which models have the energy counter: asking takes 4 ms, and cards of one
    model agree.
    """
    name = f"gpu:{index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        model = _text(nvml.nvmlDeviceGetName(handle))
        if (refusal := _guest(nvml, handle, name, model)) is not None:
            return refusal
        if model not in counters:
            counters[model] = _answers(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        instant = _has_instant(nvml, handle)
        has_power = instant or _answers(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        if not has_power and not counters[model]:
            return Missing(name, f"{model} has neither a power reading nor an energy counter")
        return _card(
            nvml,
            index,
            handle,
            model=model,
            has_power=has_power,
            has_counter=counters[model],
            instant=instant,
        )
    except nvml.NVMLError as error:
        return Missing(name, *explain(error))


def _card(
    nvml: Any,
    index: int,
    handle: Any,
    *,
    model: str,
    has_power: bool,
    has_counter: bool,
    instant: bool,
) -> NvidiaCard:
    capability = _optional(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
    # NVML's manual: the plain reading is a mean of one second on Ampere and later, GA100 excepted.
    averages = not instant and capability >= (AMPERE, 0) and capability != GA100
    limit_mw = _optional(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    default_mw = _optional(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    range_mw = _optional(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    return NvidiaCard(
        number=index,
        handle=handle,
        model=model,
        has_power=has_power,
        has_counter=has_counter,
        instant=instant,
        averaging_s=1.0 if averages else 0.0,
        update_period_s=0.1 if instant or capability[0] >= AMPERE else 0.05,
        limit_w=None if limit_mw is None else limit_mw / 1_000,
        limit_note=_limit_note(limit_mw, default_mw),
        max_limit_w=None if range_mw is None else range_mw[1] / 1_000,
        uuid=_text(_optional(nvml, nvml.nvmlDeviceGetUUID, handle) or ""),
        is_split=_is_split(nvml, handle),
        signals=tuple(s for s in _signals(f"gpu:{index}") if _supported(nvml, handle, s)),
    )


def _limit_note(limit_mw: int | None, default_mw: int | None) -> str:
    if limit_mw is None:
        return ""
    if default_mw is not None and limit_mw < default_mw:
        of_w = f"{default_mw / 1_000:g} W default"
        return f"enforced power limit {limit_mw / 1_000:g} W of {of_w}"
    return f"power limit {limit_mw / 1_000:g} W"


def _is_split(nvml: Any, handle: Any) -> bool:
    mig = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return mig is not None and mig[0] == MIG_ON


def partitioned(nvml: Any, handle: Any, name: str, model: str) -> Missing | None:
    """Return the reason why a card's power is not that of one program alone."""
    if _is_split(nvml, handle):
        return Missing(
            name,
            f"{model} is split by MIG: its sensor covers the whole card, and the energy of one "
            "instance cannot be told from its neighbours'",
            "measure on a card without MIG ('sudo nvidia-smi -i N -mig 0')",
        )
    return _guest(nvml, handle, name, model)


def _guest(nvml: Any, handle: Any, name: str, model: str) -> Missing | None:
    if _optional(nvml, nvml.nvmlDeviceGetVirtualizationMode, handle) != VGPU_GUEST:
        return None
    return Missing(
        name,
        f"{model} is a vGPU: the guest sees no power sensor of its own",
        "measure on the host, or in a guest with the whole card passed through",
    )


def _signals(name: str) -> tuple[CardSignal, ...]:
    return (
        CardSignal(
            f"{name}/utilisation",
            "fraction",
            lambda nvml, h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100,
        ),
        CardSignal(
            f"{name}/memory_utilisation",
            "fraction",
            lambda nvml, h: nvml.nvmlDeviceGetUtilizationRates(h).memory / 100,
        ),
        CardSignal(
            f"{name}/sm_clock",
            "MHz",
            lambda nvml, h: float(nvml.nvmlDeviceGetClockInfo(h, CLOCK_SM)),
        ),
        CardSignal(
            f"{name}/memory_clock",
            "MHz",
            lambda nvml, h: float(nvml.nvmlDeviceGetClockInfo(h, CLOCK_MEMORY)),
        ),
        CardSignal(
            f"{name}/temperature",
            "degC",
            lambda nvml, h: float(nvml.nvmlDeviceGetTemperature(h, 0)),
        ),
        CardSignal(
            f"{name}/memory_used",
            "B",
            lambda nvml, h: float(nvml.nvmlDeviceGetMemoryInfo(h).used),
        ),
        CardSignal(
            f"{name}/power_limit",
            "W",
            lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1_000,
        ),
    )


def _supported(nvml: Any, handle: Any, signal: CardSignal) -> bool:
    return _answers(nvml, lambda h: signal.read(nvml, h), handle)


def _has_instant(nvml: Any, handle: Any) -> bool:
    try:
        field = nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT_FIELD])[0]
    except nvml.NVMLError as error:
        if is_unsupported(error):
            return False
        raise
    if field.nvmlReturn == 0:
        return bool(field.value.uiVal > 0)  # older drivers answer 0 W instead of "unsupported"
    return field.nvmlReturn not in UNSUPPORTED


def _answers(nvml: Any, call: Callable[[Any], Any], handle: Any) -> bool:
    """Return True if the card supports the call, or fails for a while; lost ones raise."""
    try:
        call(handle)
    except nvml.NVMLError as error:
        if error_code(error) in (GPU_IS_LOST, NO_PERMISSION):
            raise
        return not is_unsupported(error)
    return True


def _optional(nvml: Any, call: Callable[[Any], Any], handle: Any) -> Any:
    """Return the call's value, or None where the card does not offer it."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if error_code(error) == GPU_IS_LOST:
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# Counter and power. The counter is exact in total but takes milliseconds to read and changes ten
# times a second; the power reading takes microseconds. Both have the domain `gpu:N`, N being NVML's
# index (that of `nvidia-smi`): CUDA_VISIBLE_DEVICES does not renumber cards. `meters.visible_gpus`
# decides which of them a run counts.
COUNTER_READ_COST_S = 0.004
"""Measured on an H200, driver 580: 2.5 to 3.9 ms of CPU a call."""
SENSOR_ERROR = 0.05
"""NVML's manual states +-5 % for Fermi and Kepler and nothing for later cards: that it holds for
them, and for the counter, is our assumption. The sensor of A100 and H100 looks at 25 % of the
time only (arXiv 2312.02741)."""
SENSOR_ERROR_W = 5.0
"""As `nvidia-smi --help-query-gpu` states it."""
IMPLAUSIBLE = 2.0
"""Cards exceed their limit for moments; that none does so twofold is our assumption."""


def detect(context: Context) -> Sequence[Meter]:
    """Find a meter for power and one for the counters, as far as the cards have them."""
    nvml = open_nvml(context.host)

    cards: list[NvidiaCard] = []
    refused: list[Missing] = []
    counters: dict[str, bool] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        found = inspect(nvml, index, counters)
        if isinstance(found, NvidiaCard):
            cards.append(found)
        else:
            refused.append(found)
    if not cards:
        shut_down(nvml)
        raise _nothing_readable(refused)
    meters: list[Meter] = []
    by_power = [card for card in cards if card.has_power]
    by_counter = [card for card in cards if card.has_counter]
    if by_power:
        meters.append(NvmlPower(nvml, by_power, by_power, refused))
        refused = []
    for card in by_counter:
        # A meter each: reading one counter takes milliseconds, and each card has its own beat.
        if meters:
            nvml.nvmlInit()  # counted by the library: each meter shuts down its own
        only_here = [] if card.has_power else [card]
        meters.append(NvmlEnergy(nvml, [card], only_here, refused))
        refused = []
    return meters


SAMPLED_S = 2.0
"""The driver samples processes once in 1/6 to 1 s; without a sample for longer, a card is idle."""


class _ProcessReader:
    """The processes of one card since the last reading."""

    def __init__(self) -> None:
        self._seen_us = 0
        self._sampled_s = -math.inf
        self._samples = True
        self._activity = _InstanceActivity()

    def read(self, nvml: Any, handle: Any) -> list[DeviceProcess] | None:
        """Return them, or None before the driver's next sample."""
        if _is_split(nvml, handle):
            return _users_of_instances(nvml, handle, own_instances(), self._activity)
        held_b = _memory_of_processes(nvml, handle)
        sm = self._utilisation(nvml, handle) if self._samples else None
        if self._samples and sm is None:
            if time.monotonic() < self._sampled_s + SAMPLED_S:
                return None
            sm = {}
        return [
            DeviceProcess(pid, None if sm is None else sm.get(pid, 0.0), held_b.get(pid))
            for pid in dict.fromkeys((*held_b, *(sm or ())))
        ]

    def _utilisation(self, nvml: Any, handle: Any) -> dict[int, float] | None:
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
        except nvml.NVMLError as error:
            self._samples = not is_unsupported(error)
            return None
        # Entries of processes that have ended hold any number (drivers up to 550 at least).
        samples = [s for s in samples if s.pid > 0 and 0 <= s.smUtil <= 100]
        if not samples:
            return None
        self._seen_us = max(self._seen_us, *(int(s.timeStamp) for s in samples))
        self._sampled_s = time.monotonic()
        percents: dict[int, list[int]] = {}
        for sample in samples:
            percents.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        # One sample per process since the last reading, as the manual has it. If there are more,
        # a process without one in some period was idle then.
        periods = max(map(len, percents.values()))
        return {pid: sum(values) / periods / 100 for pid, values in percents.items()}


def _memory_of_processes(nvml: Any, handle: Any) -> dict[int, float | None]:
    """Return the processes with a context and the bytes that each holds; MPS lists its clients."""
    found: list[Any] = []
    for kind in ("Compute", "MPSCompute"):
        # a driver that is older than nvidia-ml-py lacks the newest version of a list
        with contextlib.suppress(nvml.NVMLError, nvml.NVMLLibraryMismatchError, AttributeError):
            found += getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
    return {int(each.pid): each.usedGpuMemory for each in found}


def own_instances() -> tuple[str, ...]:
    """Return the MIG instances that the environment gives to this process."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    return tuple(word for word in map(str.strip, text.split(",")) if word.startswith("MIG-"))


def _users_of_instances(
    nvml: Any, handle: Any, visible: Sequence[str], activity: _InstanceActivity
) -> list[DeviceProcess]:
    """Return the slices that processes have of a card split by MIG, and how active these were.

    An instance in `visible` is this process's own; others are divided among the processes that
    they list. The driver samples no processes there, so that activity is known per instance.
    """
    count = int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    left, slices, active = float(count), dict[int, float](), dict[int, float | None]()
    instances = dict[int, str]()
    for index in range(count):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            own = float(nvml.nvmlDeviceGetAttributes(instance).gpuInstanceSliceCount)
            uuid = _text(nvml.nvmlDeviceGetUUID(instance))
        except nvml.NVMLError:  # there is none of this number
            continue
        if uuid in visible:
            pids = [os.getpid()]
        else:
            pids = list(_memory_of_processes(nvml, instance)) or [-1 - index]
        sm = activity.read(nvml, handle, instance)
        for pid in pids:
            slices[pid] = slices.get(pid, 0.0) + own / len(pids)
            instances[pid] = uuid
            before = active.get(pid, 0.0)
            if sm is None or before is None:
                active[pid] = None
            else:
                active[pid] = before + sm * own / count / len(pids)
        left -= own
    if left > 0:
        slices[0], active[0] = left, 0.0
    if None in active.values():
        active = dict.fromkeys(active)
    return [
        DeviceProcess(pid, active[pid], None, part, instances.get(pid, ""))
        for pid, part in slices.items()
    ]


def instance_part(nvml: Any, name: str) -> tuple[str, float | None]:
    """Return the UUID of the card of a MIG instance, in lower case, and the instance's part of it.

    Empty and None as far as they are not known.
    """
    card, part = "", None
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        instance = nvml.nvmlDeviceGetHandleByUUID(name)
        handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
        card = _text(nvml.nvmlDeviceGetUUID(handle)).lower()
        slices = int(nvml.nvmlDeviceGetAttributes(instance).gpuInstanceSliceCount)
        count = int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
        part = slices / count if 0 < slices <= count else None
    return card, part


GPM_SM_ACTIVITY = 2
"""NVML_GPM_METRIC_SM_UTIL: percent of an instance's SMs that had work, between two samples."""


class _InstanceActivity:
    """SM activity of the MIG instances of one card: NVML's GPM (Hopper and later), else DCGM's."""

    def __init__(self) -> None:
        self._supported = True
        self._samples: dict[int, Any] = {}
        self._exporter = DcgmExporter(os.environ.get(DCGM_VARIABLE, ""))

    def read(self, nvml: Any, handle: Any, instance: Any) -> float | None:
        """Return the active part of an instance since the last call, 0 to 1; None if unknown."""
        try:
            number = int(nvml.nvmlDeviceGetGpuInstanceId(instance))
            if self._supported:
                return self._by_gpm(nvml, handle, number)
        except (nvml.NVMLError, AttributeError) as error:
            self._supported = isinstance(error, nvml.NVMLError) and not is_unsupported(error)
            if self._supported:
                return None
        return self._exporter.activity(_text(nvml.nvmlDeviceGetUUID(handle)), number)

    def _by_gpm(self, nvml: Any, handle: Any, number: int) -> float | None:
        if not self._samples and not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(NOT_SUPPORTED)
        sample = nvml.nvmlGpmMigSampleGet(handle, number, nvml.nvmlGpmSampleAlloc())
        before, self._samples[number] = self._samples.get(number), sample
        if before is None:
            return None
        asked = nvml.c_nvmlGpmMetricsGet_t(
            nvml.NVML_GPM_METRICS_GET_VERSION, 1, sample1=before, sample2=sample
        )
        asked.metrics[0].metricId = GPM_SM_ACTIVITY
        try:
            metric = nvml.nvmlGpmMetricsGet(asked).metrics[0]
        finally:
            nvml.nvmlGpmSampleFree(before)
        percent = float(metric.value)
        return percent / 100 if metric.nvmlReturn == 0 and 0 <= percent <= 100 else None


DCGM_VARIABLE = "WATTLOOP_DCGM_EXPORTER"
"""Address of NVIDIA's dcgm-exporter, such as http://127.0.0.1:9400/metrics."""
DCGM_METRICS = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
"""The better first; a default exporter has only the second."""
DCGM_EVERY_S, DCGM_AGAIN_S = 1.0, 30.0
DCGM_MOST_B = 4_000_000
_DCGM_LINE = re.compile(r"(\w+)\{([^}]*)\} (\S+)")
_DCGM_LABEL = re.compile(r'(\w+)="([^"]*)"')


class DcgmExporter:
    """Activity of MIG instances as NVIDIA's dcgm-exporter gives it; nothing without an address."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._read_s = -math.inf
        self._found: Mapping[tuple[str, int], float] = {}

    def activity(self, card: str, instance: int) -> float | None:
        """Return the activity of an instance of a card with this UUID, 0 to 1."""
        if self._url.startswith("http") and time.monotonic() >= self._read_s + DCGM_EVERY_S:
            self._read_s = time.monotonic()
            self._found = parse_dcgm(self._fetch())
        return self._found.get((card.lower(), instance))

    def _fetch(self) -> str:
        from http.client import HTTPException
        from urllib.request import urlopen

        text, until_s = b"", time.monotonic() + DCGM_EVERY_S
        try:
            with urlopen(self._url, timeout=DCGM_EVERY_S) as answer:
                while (more := answer.read1(65_536)) and len(text) < DCGM_MOST_B:
                    text += more
                    if time.monotonic() > until_s:  # one that trickles in is given up
                        raise TimeoutError
        except (OSError, ValueError, HTTPException):
            self._read_s += DCGM_AGAIN_S  # an exporter that hangs must not slow the sampler
            return ""
        return text.decode(errors="replace")


def parse_dcgm(text: str) -> dict[tuple[str, int], float]:
    """Return (UUID of a card, number of its instance) -> activity from an exporter's answer."""
    found: dict[str, dict[tuple[str, int], float]] = {name: {} for name in DCGM_METRICS}
    for line in text.splitlines():
        match = _DCGM_LINE.match(line)
        if match is None or match[1] not in found:
            continue
        labels = dict(_DCGM_LABEL.findall(match[2]))
        with contextlib.suppress(KeyError, ValueError):
            value = float(match[3])
            if 0 <= value <= 1:
                found[match[1]][labels["UUID"].lower(), int(labels["GPU_I_ID"])] = value
    return found[DCGM_METRICS[1]] | found[DCGM_METRICS[0]]


class _NvmlMeter(Meter):
    """Cards, their handles, signals and end of life; subclasses know what to read.

    Args:
        nvml: the initialised `pynvml` module.
        cards: what `read` reads.
        signal_cards: cards whose signals this meter offers; each card's are offered once.
        refused: cards that cannot be measured at all.
    """

    def __init__(
        self,
        nvml: Any,
        cards: Sequence[NvidiaCard],
        signal_cards: Sequence[NvidiaCard],
        refused: Sequence[Missing],
    ) -> None:
        self._nvml = nvml
        self._cards = tuple(cards)
        self._signal_cards = tuple(signal_cards)
        self._handles: dict[int, Any] = {c.number: c.handle for c in (*cards, *signal_cards)}
        self._refused = tuple(refused)
        self._processes: dict[int, _ProcessReader] = {}
        self._open = True
        self._closed = False
        self._domains = tuple(self._domain(card) for card in cards)
        self._signals = tuple(Signal(s.name, s.unit) for c in signal_cards for s in c.signals)

    def read(self) -> Sequence[Reading]:
        return [self._guarded(card, self._read_card, card) for card in self._cards]

    def read_signals(self) -> Sequence[Reading]:
        return [
            self._guarded(card, signal.read, self._nvml)
            for card in self._signal_cards
            for signal in card.signals
        ]

    def read_processes(self) -> Mapping[str, Sequence[DeviceProcess] | Gap]:
        found: dict[str, Sequence[DeviceProcess] | Gap] = {}
        for card in self._signal_cards:
            reader = self._processes.setdefault(card.number, _ProcessReader())
            read = self._guarded(card, reader.read, self._nvml)
            if read is not None:
                found[card.name] = read
        return found

    def close(self) -> None:
        """Shut the library down, waiting a second at most."""
        self._closed = True
        if self._open:
            self._open = False
            shut_down(self._nvml)

    def after_fork_in_child(self) -> None:
        """Handles belong to the parent; the child opens its own at its first read."""
        self._open = False
        self._handles.clear()

    @abstractmethod
    def _domain(self, card: NvidiaCard) -> Domain:
        """Describe the sensor."""

    @abstractmethod
    def _read_card(self, card: NvidiaCard, handle: Any) -> Reading:
        """The value of one card."""

    def _guarded(self, card: NvidiaCard, read: Callable[[Any, Any], T], first: Any) -> T | Gap:
        if self._closed:
            return Gap(f"{card.name}: the meter is closed")
        try:
            return read(first, self._handles.get(card.number) or self._reopened(card.number))
        except self._nvml.NVMLError as error:
            return gap(card.name, error_code(error))

    def _reopened(self, index: int) -> Any:
        if not self._open:
            self._nvml.nvmlInit()
            self._open = True
        self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]


class NvmlPower(_NvmlMeter):
    """Power now: cheap, and follows the load where the driver has the instantaneous field."""

    name: ClassVar[str] = "nvml-power"
    shared: ClassVar[bool] = True

    def _read_card(self, card: NvidiaCard, handle: Any) -> Reading:
        if not card.instant:
            return int(self._nvml.nvmlDeviceGetPowerUsage(handle)) / 1_000
        field = self._nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT_FIELD])[0]
        if field.nvmlReturn != 0:
            return gap(card.name, field.nvmlReturn)
        return int(field.value.uiVal) / 1_000

    def _domain(self, card: NvidiaCard) -> Domain:
        return Domain(
            name=card.name,
            kind=DomainKind.GAUGE,
            scope=Scope.GPU,
            source="NVML instantaneous power" if card.instant else "NVML power",
            resolution=1e-3,
            update_period_s=card.update_period_s,
            known_error=SENSOR_ERROR,
            known_error_w=SENSOR_ERROR_W,
            averaging_s=card.averaging_s,
            read_cost_s=40e-6 if card.instant else 20e-6,
            max_power_w=_implausible_w(card),
            tdp_w=card.limit_w,
            tdp_note=card.limit_note,
            device=card.model,
            identity=card.identity,
            is_split=card.is_split,
        )


class NvmlEnergy(_NvmlMeter):
    """Millijoules since the driver was loaded (Volta and later)."""

    name: ClassVar[str] = "nvml-energy"
    shared: ClassVar[bool] = True

    def _read_card(self, card: NvidiaCard, handle: Any) -> Reading:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1_000

    def _domain(self, card: NvidiaCard) -> Domain:
        return Domain(
            name=card.name,
            kind=DomainKind.COUNTER,
            scope=Scope.GPU,
            source="NVML energy counter",
            resolution=1e-3,
            update_period_s=0.1,
            known_error=SENSOR_ERROR,
            read_cost_s=COUNTER_READ_COST_S,
            max_power_w=_implausible_w(card),
            tdp_w=card.limit_w,
            tdp_note=card.limit_note,
            device=card.model,
            identity=card.identity,
            is_split=card.is_split,
        )


def _implausible_w(card: NvidiaCard) -> float | None:
    return None if card.max_limit_w is None else IMPLAUSIBLE * card.max_limit_w


def _nothing_readable(refused: Sequence[Missing]) -> MeterUnavailable:
    if not refused:
        return MeterUnavailable("nvidia", "the driver is loaded but sees no GPU")
    reasons = "; ".join(f"{missing.name}: {missing.reason}" for missing in refused)
    names = tuple(missing.name for missing in refused)
    return MeterUnavailable("nvidia", reasons, refused[0].remedy, parts=names)
