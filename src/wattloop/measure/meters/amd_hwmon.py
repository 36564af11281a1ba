"""Power of AMD GPUs from the amdgpu driver's hwmon files, for machines without amdsmi."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.hardware.number_file import NumberFile
from wattloop.hardware.text_file import read_whole
from wattloop.measure.meter import Meter, Reading
from wattloop.measure.meters.amd_gpu import AmdCard

__all__ = ["AmdHwmon", "detect"]

POWER_FILES = ("power1_average", "power1_input")
"""Microwatts. RDNA3 and integrated graphics have only the second."""


class Gauge(NamedTuple):
    """A number in a file, and its unit after division by `per_unit`."""

    name: str
    unit: str
    file: NumberFile
    per_unit: float

    def read(self) -> Reading:
        """The value, or why there is none."""
        value = self.file.read()
        return value if isinstance(value, Gap) else value / self.per_unit


def detect(cards: Sequence[AmdCard]) -> tuple["AmdHwmon | None", tuple[Missing, ...]]:
    """The cards that have a power file, and why others have none."""
    readable: list[tuple[AmdCard, Gauge]] = []
    refused: list[Missing] = []
    for card in cards:
        paths = [p for n in POWER_FILES for p in sorted(card.device.glob(f"hwmon/hwmon*/{n}"))]
        if not paths:
            refused.append(Missing(card.name, f"no power file under {card.device}/hwmon"))
            continue
        gauge = Gauge(card.name, "W", NumberFile(paths[0]), 1e6)
        reason = gauge.file.refusal()
        if reason:
            refused.append(Missing(card.name, reason, f"run 'sudo chmod a+r {paths[0]}'"))
        else:
            readable.append((card, gauge))
    return (AmdHwmon(readable, refused) if readable else None), tuple(refused)


class AmdHwmon(Meter):
    """`power1_average` or `power1_input` of each card."""

    name: ClassVar[str] = "amd-hwmon"
    shared: ClassVar[bool] = True

    def __init__(
        self, cards: Sequence[tuple[AmdCard, Gauge]], refused: Sequence[Missing] = ()
    ) -> None:
        self._gauges = [gauge for _, gauge in cards]
        self._domains = tuple(_domain(card, gauge) for card, gauge in cards)
        self._signal_gauges = [
            signal
            for card, gauge in cards
            for signal in _signals(card, gauge.file.path.parent)
            if signal.file.path.exists()
        ]
        self._refused = tuple(refused)
        self._closed = False

    @property
    def domains(self) -> tuple[Domain, ...]:
        """`gpu:N` per card."""
        return self._domains

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Cards that are here but cannot be measured."""
        return self._refused

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What the driver shows beside power."""
        return tuple(Signal(gauge.name, gauge.unit) for gauge in self._signal_gauges)

    def read(self) -> Sequence[Reading]:
        """Watts per card."""
        return self._read_all(self._gauges)

    def read_signals(self) -> Sequence[Reading]:
        """One value per signal."""
        return self._read_all(self._signal_gauges)

    def close(self) -> None:
        """Close the files."""
        self._closed = True
        for gauge in (*self._gauges, *self._signal_gauges):
            gauge.file.close()

    def _read_all(self, gauges: Sequence[Gauge]) -> Sequence[Reading]:
        if self._closed:
            return [Gap(f"{gauge.name}: the meter is closed") for gauge in gauges]
        return [gauge.read() for gauge in gauges]


def _signals(card: AmdCard, hwmon: Path) -> Sequence[Gauge]:
    def in_card(name: str, unit: str, file: str, per_unit: float) -> Gauge:
        return Gauge(f"{card.name}/{name}", unit, NumberFile(card.device / file), per_unit)

    def in_hwmon(name: str, unit: str, file: str, per_unit: float) -> Gauge:
        file_read = NumberFile(hwmon / file, signed=name == "temperature")
        return Gauge(f"{card.name}/{name}", unit, file_read, per_unit)

    return (
        in_card("utilisation", "fraction", "gpu_busy_percent", 100),
        in_card("memory_utilisation", "fraction", "mem_busy_percent", 100),
        in_hwmon("sm_clock", "MHz", "freq1_input", 1e6),
        in_hwmon("memory_clock", "MHz", "freq2_input", 1e6),
        in_hwmon("temperature", "degC", "temp1_input", 1e3),
        in_card("memory_used", "B", "mem_info_vram_used", 1),
        in_hwmon("power_limit", "W", "power1_cap", 1e6),
    )


def _domain(card: AmdCard, gauge: Gauge) -> Domain:
    path = gauge.file.path
    limit_w = _watts(path.with_name("power1_cap"))
    default_w = _watts(path.with_name("power1_cap_default"))
    return Domain(
        name=card.name,
        kind=DomainKind.GAUGE,
        scope=Scope.GPU,
        source=f"amdgpu {path.name}",
        inside=card.inside,
        resolution=1e-3 if path.name == "power1_input" else 1.0,
        update_period_s=0.1,
        read_cost_s=100e-6,
        tdp_w=limit_w,
        tdp_note=limit_note(limit_w, default_w),
        device="AMD GPU " + card.pci_address,
        identity=card.pci_address,
    )


def limit_note(limit_w: float | None, default_w: float | None) -> str:
    """What the limit is, for people."""
    if limit_w is None:
        return ""
    if default_w is not None and limit_w < default_w:
        return f"enforced power limit {limit_w:g} W of {default_w:g} W default"
    return f"power limit {limit_w:g} W"


def _watts(path: Path) -> float | None:
    microwatts = read_whole(path)
    return microwatts / 1e6 if microwatts else None
