"""What one AMD card tells through amdsmi, call by call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattloop.core.records import Gap
from wattloop.measure.meter import Reading
from wattloop.measure.meters.amd_gpu import AmdCard
from wattloop.measure.meters.amd_hwmon import limit_note

__all__ = [
    "SIGNALS",
    "Call",
    "Gpu",
    "attempt",
    "energy_j",
    "handles_by_address",
    "inspect",
    "power_w",
    "reason",
]

MICROWATTS_ABOVE = 100_000
"""amdsmi gives power caps in microwatts since ROCm 6, in watts before; no card draws 100 kW."""
NO_PERMISSION = 10
NOT_FOUND = 31


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card and its amdsmi handle."""

    card: AmdCard
    handle: Any
    model: str
    resolution_j: float
    limit_w: float | None
    limit_note: str


Call = Callable[[Any, Gpu, Any], float]
"""`call(amdsmi, gpu, handle)`"""


def handles_by_address(smi: Any) -> dict[str, Any]:
    """Handles by PCI address, the one name that kernel and library share."""
    return {smi.amdsmi_get_gpu_device_bdf(h).lower(): h for h in smi.amdsmi_get_processor_handles()}


def inspect(smi: Any, card: AmdCard, handle: Any) -> Gpu:
    """Facts of a card that do not change while we read it."""
    try:
        model = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    except (smi.AmdSmiException, KeyError):
        model = f"AMD GPU {card.pci_address}"
    try:
        resolution_j = float(smi.amdsmi_get_energy_count(handle)["counter_resolution"]) * 1e-6
    except (smi.AmdSmiException, KeyError):
        resolution_j = 0.0
    try:
        caps = smi.amdsmi_get_power_cap_info(handle)
        limit_w, default_w = _cap_w(caps["power_cap"]), _cap_w(caps["default_power_cap"])
    except (smi.AmdSmiException, KeyError, TypeError, ValueError):
        limit_w = default_w = 0.0
    note = limit_note(limit_w or None, default_w or None)
    return Gpu(card, handle, model, resolution_j, limit_w or None, note)


def _cap_w(cap: float) -> float:
    return float(cap) / 1e6 if float(cap) > MICROWATTS_ABOVE else float(cap)


def attempt(smi: Any, call: Call, gpu: Gpu, handle: Any = None) -> Reading:
    """The call's value, or a gap that says why there is none."""
    name = gpu.card.name
    try:
        return float(call(smi, gpu, gpu.handle if handle is None else handle))
    except smi.AmdSmiException as error:
        code = getattr(error, "err_code", None)
        return Gap(f"{name}: {reason(error)}", lost=code in (NO_PERMISSION, NOT_FOUND))
    except (KeyError, TypeError, ValueError):
        return Gap(f"{name}: amdsmi gives no number (N/A)")


def reason(error: Exception) -> str:
    """What the library says, on one line."""
    return " ".join(str(getattr(error, "err_info", error)).split())


def energy_j(smi: Any, gpu: Gpu, handle: Any) -> float:
    """Joules of the accumulator."""
    # E = accumulator x resolution, the resolution in microjoules (15.3 uJ on MI200 and MI300).
    count = smi.amdsmi_get_energy_count(handle)
    accumulator = count.get("energy_accumulator", count.get("power"))  # `power` before ROCm 6.1
    return float(accumulator) * float(count["counter_resolution"]) * 1e-6


def power_w(smi: Any, gpu: Gpu, handle: Any) -> float:
    """Watts of the socket; ValueError where the card reports none."""
    info = smi.amdsmi_get_power_info(handle)
    for key in ("current_socket_power", "average_socket_power", "socket_power"):
        value = info.get(key)
        # Unsupported values are "N/A", or all ones in 16 or 32 bits in older versions.
        if isinstance(value, int | float) and 0 < value < 0xFFFF:
            return float(value)
    raise ValueError("no power value")


def _limit_w(smi: Any, gpu: Gpu, handle: Any) -> float:
    return _cap_w(smi.amdsmi_get_power_cap_info(handle)["power_cap"])


SIGNALS: tuple[tuple[str, str, Call], ...] = (
    ("utilisation", "fraction", lambda s, g, h: s.amdsmi_get_gpu_activity(h)["gfx_activity"] / 100),
    (
        "memory_utilisation",
        "fraction",
        lambda s, g, h: s.amdsmi_get_gpu_activity(h)["umc_activity"] / 100,
    ),
    (
        "sm_clock",
        "MHz",
        lambda s, g, h: float(s.amdsmi_get_clock_info(h, s.AmdSmiClkType.GFX)["clk"]),
    ),
    (
        "memory_clock",
        "MHz",
        lambda s, g, h: float(s.amdsmi_get_clock_info(h, s.AmdSmiClkType.MEM)["clk"]),
    ),
    (
        "temperature",
        "degC",
        lambda s, g, h: float(
            s.amdsmi_get_temp_metric(
                h, s.AmdSmiTemperatureType.HOTSPOT, s.AmdSmiTemperatureMetric.CURRENT
            )
        ),
    ),
    (
        "memory_used",
        "B",
        lambda s, g, h: float(s.amdsmi_get_gpu_memory_usage(h, s.AmdSmiMemoryType.VRAM)),
    ),
    ("power_limit", "W", _limit_w),
)
