"""Meters of the virtual GPU: a counter and a gauge that see it as sensors of real cards would.

Every run asks `detect`; the physics is loaded where a virtual GPU was asked for.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.provenance import Provenance
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.meters.base import Context, Meter, Reading

if TYPE_CHECKING:
    from wattloop.virtual.gpu import VirtualGpu

__all__ = ["VirtualEnergy", "VirtualPower", "detect", "first_number"]


def detect(context: Context) -> Sequence[Meter]:
    """The virtual cards that the user asked for, and the node they sit in where it is modelled."""
    count = context.settings.virtual_gpus
    if count <= 0:
        raise MeterUnavailable(
            "virtual",
            "no virtual GPU was asked for",
            "set 'virtual_gpus: 1' in wattloop.yaml or WATTLOOP_VIRTUAL_GPUS=1 to try one",
        )
    from wattloop.virtual.machine import shared_machine
    from wattloop.virtual.node_meter import NodeEnergy, NodePower

    machine = shared_machine(count, context.clock, host=context.host)
    first = first_number(context)
    meters: list[Meter] = [
        VirtualEnergy(machine.gpus, context.clock, first),
        VirtualPower(machine.gpus, context.clock, first),
    ]
    if machine.node is not None:
        meters.append(NodeEnergy(machine.node, machine.gpus, context.clock))
        meters.append(NodePower(machine.node, machine.gpus, context.clock))
    return meters


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
        from wattloop.virtual.faults import refusal_to_read

        gpu.reap()
        reason, lost = refusal_to_read(gpu.now())
        if reason:
            return Gap(f"{name}: {reason}", lost=lost)
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
        from wattloop.virtual.noise import normal

        window_s = gpu.model.sensor_window_s
        power_w = gpu.true_energy_j(tick_s - window_s, tick_s) / window_s
        return max(0.0, power_w + gpu.model.noise_w * normal(gpu.index, tick))

    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        return _domain(name, gpu, DomainKind.GAUGE, "virtual power sensor")


_SIGNALS: tuple[tuple[str, str, Callable[[VirtualGpu, float], float]], ...] = (
    ("utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).busy),
    ("memory_utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).memory_utilisation),
    ("sm_clock", "MHz", lambda gpu, at_s: gpu.at(at_s).clock_mhz),
    ("memory_clock", "MHz", lambda gpu, at_s: gpu.at(at_s).memory_clock_mhz),
    ("temperature", "degC", lambda gpu, at_s: gpu.temperature_c(at_s)),
    ("memory_used", "B", lambda gpu, at_s: gpu.at(at_s).memory_used_b),
    ("power_limit", "W", lambda gpu, at_s: gpu.now().limit_w),
)


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


def first_number(context: Context) -> int:
    """Number of the first virtual card, after the real ones: they never share a name."""
    from wattloop.meters.amd_gpu import find_cards, nvidia_count

    return nvidia_count(context.host) + sum(1 for _ in find_cards(context.host))
