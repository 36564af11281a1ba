"""Meters of the virtual GPU: a counter and a gauge that see it as sensors of real cards would."""

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.provenance import Provenance
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.measure.meter import Context, Meter, Reading
from wattloop.virtual.gpu import Fault, VirtualGpu, shared_gpus
from wattloop.virtual.timeline import Segment

__all__ = ["VirtualEnergy", "VirtualPower", "detect"]


def detect(context: Context) -> Sequence[Meter]:
    """The virtual cards that the user asked for."""
    count = context.settings.virtual_gpus
    if count <= 0:
        raise MeterUnavailable(
            "virtual",
            "no virtual GPU was asked for",
            "set 'virtual_gpus: 1' in wattloop.yaml or WATTLOOP_VIRTUAL_GPUS=1 to try one",
        )
    gpus = shared_gpus(count, context.clock, host=context.host)
    first = _real_cards(context)
    return [
        VirtualEnergy(gpus, context.clock, first),
        VirtualPower(gpus, context.clock, first),
    ]


class _VirtualMeter(Meter):
    """Cards and their faults; subclasses know what to read.

    Args:
        gpus: the cards.
        clock: the time on which they live.
        first_number: number of the first one's domain, after the machine's real cards.
    """

    def __init__(self, gpus: Sequence[VirtualGpu], clock: Clock, first_number: int = 0) -> None:
        self._gpus = tuple(gpus)
        self._clock = clock
        self._closed = False
        self._names = [f"gpu:{first_number + index}" for index in range(len(gpus))]
        self._domains = tuple(map(self._domain, self._names, gpus))

    @property
    def domains(self) -> tuple[Domain, ...]:
        """`gpu:N` per card."""
        return self._domains

    def read(self) -> Sequence[Reading]:
        """One value per card."""
        return [
            self._guarded(name, gpu, self._sensed)
            for name, gpu in zip(self._names, self._gpus, strict=True)
        ]

    def close(self) -> None:
        """Nothing is kept open."""
        self._closed = True

    @abstractmethod
    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        """What is known of the sensor."""

    @abstractmethod
    def _sensed(self, gpu: VirtualGpu, tick: int, tick_s: float) -> float:
        """The value that the sensor took at its last tick."""

    def _guarded(
        self, name: str, gpu: VirtualGpu, read: Callable[[VirtualGpu, int, float], float]
    ) -> Reading:
        if self._closed:
            return Gap(f"{name}: the meter is closed")
        gap = _fault(name, gpu.now())
        if gap is not None:
            return gap
        # A sensor holds its value for a period: what is read now was taken at its last tick.
        period_s = gpu.model.sensor_period_s
        tick = math.floor(self._clock.now_s() / period_s)
        return read(gpu, tick, tick * period_s)


class VirtualEnergy(_VirtualMeter):
    """The energy counter."""

    name: ClassVar[str] = "virtual"

    def _sensed(self, gpu: VirtualGpu, tick: int, tick_s: float) -> float:
        energy_j = gpu.energy_j(tick_s) - gpu.now().counter_zero_j
        return math.floor(max(0.0, energy_j) * 1_000) / 1_000

    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        return _domain(name, gpu, DomainKind.COUNTER, "virtual energy counter")


class VirtualPower(_VirtualMeter):
    """Power as the sensor sees it: noisy, and looking at a part of the time only."""

    name: ClassVar[str] = "virtual-power"

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What a real card offers, too."""
        return tuple(Signal(f"{n}/{s}", unit) for n in self._names for s, unit, _ in _SIGNALS)

    def read_signals(self) -> Sequence[Reading]:
        """One value per signal."""
        return [
            self._guarded(name, gpu, lambda gpu, tick, tick_s, of=of: of(gpu, tick_s))  # type: ignore[misc]  # mypy cannot type a default that binds the loop's variable
            for name, gpu in zip(self._names, self._gpus, strict=True)
            for _, _, of in _SIGNALS
        ]

    def _sensed(self, gpu: VirtualGpu, tick: int, tick_s: float) -> float:
        window_s = gpu.model.sensor_window_s
        power_w = gpu.true_energy_j(tick_s - window_s, tick_s) / window_s
        return max(0.0, power_w + gpu.model.noise(gpu.index, tick))

    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        return _domain(name, gpu, DomainKind.GAUGE, "virtual power sensor")


AMBIENT_C = 28.0
WARMING_S = 20.0


def _temperature_c(gpu: VirtualGpu, at_s: float) -> float:
    """The heat sink follows the mean power of the last seconds."""
    mean_w = gpu.true_energy_j(at_s - WARMING_S, at_s) / WARMING_S
    return AMBIENT_C + gpu.model.warmth_k_per_w * mean_w


_SIGNALS: tuple[tuple[str, str, Callable[[VirtualGpu, float], float]], ...] = (
    ("utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).busy),
    ("memory_utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).memory_utilisation),
    ("sm_clock", "MHz", lambda gpu, at_s: gpu.at(at_s).clock_mhz),
    ("memory_clock", "MHz", lambda gpu, at_s: gpu.model.memory_clock_mhz),
    ("temperature", "degC", _temperature_c),
    ("memory_used", "B", lambda gpu, at_s: gpu.at(at_s).memory_used_b),
    ("power_limit", "W", lambda gpu, at_s: gpu.now().limit_w),
)


def _fault(name: str, now: Segment) -> Gap | None:
    match Fault(int(now.fault)):
        case Fault.LOST:
            return Gap(f"{name}: the virtual GPU has fallen off the bus", lost=True)
        case Fault.NO_PERMISSION:
            return Gap(f"{name}: permission denied", lost=True)
        case Fault.UNSUPPORTED:
            return Gap(f"{name}: the virtual GPU does not support the call", lost=True)
        case Fault.UNKNOWN_ERROR if random.random() < now.fault_probability:
            return Gap(f"{name}: unknown error")
    return None


def _domain(name: str, gpu: VirtualGpu, kind: DomainKind, source: str) -> Domain:
    model, limit_w = gpu.model, gpu.now().limit_w
    lowered = limit_w < model.default_limit_w
    return Domain(
        name=name,
        kind=kind,
        scope=Scope.GPU,
        source=source,
        provenance=Provenance.SIMULATED,
        resolution=1e-3,
        update_period_s=model.sensor_period_s,
        known_error_w=2 * model.noise_w if kind is DomainKind.GAUGE else 0.0,
        read_cost_s=20e-6,
        max_power_w=2 * model.max_limit_w,
        tdp_w=limit_w,
        tdp_note=(
            f"enforced power limit {limit_w:g} W of {model.default_limit_w:g} W default"
            if lowered
            else f"power limit {limit_w:g} W"
        ),
        device=model.name,
    )


def _real_cards(context: Context) -> int:
    """How many numbers real GPUs have taken: a simulated card never shares a name with one."""
    from wattloop.measure.meters.amd_gpu import find_cards, nvidia_count

    return nvidia_count(context.host) + sum(1 for _ in find_cards(context.host))
