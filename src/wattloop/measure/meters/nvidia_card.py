"""What one NVIDIA card can tell, found out once when it is detected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattloop.core.results import Missing
from wattloop.measure.meters import nvml_library

__all__ = ["Card", "CardSignal", "inspect", "partitioned"]

MIG_ON = 1
VGPU_GUEST = 2
CLOCK_SM, CLOCK_MEMORY = 1, 2
GA100 = (8, 0)
AMPERE = 8


@dataclass(frozen=True, slots=True)
class CardSignal:
    """A signal and how it is read: `read(nvml, handle)`."""

    name: str
    unit: str
    read: Callable[[Any, Any], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that can be measured.

    Attributes:
        averaging_s: past seconds over which its power reading is a mean.
        instant: power comes from the instantaneous field.
        limit_w: power limit in force; `limit_note` says how it relates to the default.
    """

    index: int
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
    signals: tuple[CardSignal, ...]

    @property
    def name(self) -> str:
        """Name of its domain."""
        return f"gpu:{self.index}"


def inspect(nvml: Any, index: int, counters: dict[str, bool]) -> Card | Missing:
    """What card `index` offers, or why it cannot be measured.

    `counters` remembers which models have the energy counter: asking takes 4 ms, and cards of one
    model agree.
    """
    name = f"gpu:{index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        model = _text(nvml.nvmlDeviceGetName(handle))
        refusal = partitioned(nvml, handle, name, model)
        if refusal is not None:
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
        return Missing(name, *nvml_library.explain(error))


def _card(
    nvml: Any,
    index: int,
    handle: Any,
    *,
    model: str,
    has_power: bool,
    has_counter: bool,
    instant: bool,
) -> Card:
    capability = _optional(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
    # NVML's manual: the plain reading is a mean of one second on Ampere and later, GA100 excepted.
    averages = not instant and capability >= (AMPERE, 0) and capability != GA100
    limit_mw = _optional(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    default_mw = _optional(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    range_mw = _optional(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    return Card(
        index=index,
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
        signals=tuple(s for s in _signals(f"gpu:{index}") if _supported(nvml, handle, s)),
    )


def _limit_note(limit_mw: int | None, default_mw: int | None) -> str:
    if limit_mw is None:
        return ""
    if default_mw is not None and limit_mw < default_mw:
        of_w = f"{default_mw / 1_000:g} W default"
        return f"enforced power limit {limit_mw / 1_000:g} W of {of_w}"
    return f"power limit {limit_mw / 1_000:g} W"


def partitioned(nvml: Any, handle: Any, name: str, model: str) -> Missing | None:
    """Cards shared by hardware partitions have one power sensor for all of them."""
    mig = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mig is not None and mig[0] == MIG_ON:
        return Missing(
            name,
            f"{model} is split by MIG: its sensor covers the whole card, and the energy of one "
            "instance cannot be told from its neighbours'",
            "measure on a card without MIG ('sudo nvidia-smi -i N -mig 0'), or read the whole "
            "card from the host that owns it",
        )
    if _optional(nvml, nvml.nvmlDeviceGetVirtualizationMode, handle) == VGPU_GUEST:
        return Missing(
            name,
            f"{model} is a vGPU: the guest sees no power sensor of its own",
            "measure on the host, or in a guest with the whole card passed through",
        )
    return None


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
        field = nvml.nvmlDeviceGetFieldValues(handle, [nvml_library.POWER_INSTANT_FIELD])[0]
    except nvml.NVMLError as error:
        if nvml_library.is_unsupported(error):
            return False
        raise
    if field.nvmlReturn == 0:
        return bool(field.value.uiVal > 0)  # older drivers answer 0 W instead of "unsupported"
    return field.nvmlReturn not in nvml_library.UNSUPPORTED


def _answers(nvml: Any, call: Callable[[Any], Any], handle: Any) -> bool:
    """Whether the card supports the call; a passing fault counts as yes, a gone card raises."""
    try:
        call(handle)
    except nvml.NVMLError as error:
        if nvml_library.error_code(error) in (nvml_library.GPU_IS_LOST, nvml_library.NO_PERMISSION):
            raise
        return not nvml_library.is_unsupported(error)
    return True


def _optional(nvml: Any, call: Callable[[Any], Any], handle: Any) -> Any:
    """The call's value, or None where the card does not offer it."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if nvml_library.error_code(error) == nvml_library.GPU_IS_LOST:
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
