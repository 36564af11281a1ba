"""Meters of virtual cards and of the virtual node: counters and gauges like real sensors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope, Signal
from wattloop.meters.base import Context, DeviceProcess, Meter, Reading
from wattloop.virtual.gpu import VirtualGpu, normal, refusal_to_read
from wattloop.virtual.node import NodeModel
from wattloop.virtual.timeline import NO_OWNER


def detect(context: Context) -> Sequence[Meter]:
    """The virtual cards that the user asked for, and the node they sit in where it is modelled."""
    count = context.settings.virtual_gpus
    if count <= 0:
        raise MeterUnavailable(
            "virtual",
            "no virtual GPU was asked for",
            "set 'virtual_gpus: 1' in wattloop.yaml or WATTLOOP_VIRTUAL_GPUS=1 to try one",
        )
    from wattloop.virtual.node import shared_machine

    machine = shared_machine(count, context.clock, host=context.host)
    first = first_number(context)
    meters: list[Meter] = [
        VirtualEnergy(machine.gpus, context.clock, first),
        VirtualPower(machine.gpus, context.clock, first),
    ]
    if machine.node is not None:
        meters.append(VirtualNodeEnergy(machine.node, machine.gpus, context.clock))
        meters.append(VirtualNodePower(machine.node, machine.gpus, context.clock))
    return meters


class _VirtualMeter(Meter):
    """Cards and their faults; subclasses know what to read.

    Args:
        first_number: number of the first one's domain, after the machine's real cards.
    """

    def __init__(self, gpus: Sequence[VirtualGpu], clock: Clock, first_number: int = 0) -> None:
        self._gpus = tuple(gpus)
        self._clock = clock
        self._closed = False
        self._names = [f"gpu:{first_number + index}" for index in range(len(gpus))]
        self._domains = tuple(map(self._domain, self._names, gpus))

    def read(self) -> Sequence[Reading]:
        return [
            self._guarded(name, gpu, self._sensed)
            for name, gpu in zip(self._names, self._gpus, strict=True)
        ]

    def close(self) -> None:
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
        gpu.reap()
        reason, lost = refusal_to_read(gpu.now())
        if reason:
            return Gap(f"{name}: {reason}", lost=lost)
        # A sensor holds its value for a period: what is read now was taken at its last tick.
        period_s = gpu.model.sensor_period_s
        tick = math.floor(self._clock.now_s() / period_s)
        return read(gpu, tick, tick * period_s)


class VirtualEnergy(_VirtualMeter):
    """The energy counter, which never falls: what a job that wakes up late takes back of the last
    milliseconds is counted by the next ones.
    """

    name: ClassVar[str] = "virtual"

    def __init__(self, gpus: Sequence[VirtualGpu], clock: Clock, first_number: int = 0) -> None:
        super().__init__(gpus, clock, first_number)
        self._shown: dict[int, tuple[float, float]] = {}

    def _sensed(self, gpu: VirtualGpu, tick: int, tick_s: float) -> float:
        zero_j = gpu.now().counter_zero_j
        energy_j = math.floor(max(0.0, gpu.energy_j(tick_s) - zero_j) * 1_000) / 1_000
        shown = max(self._shown.get(gpu.index, (zero_j, 0.0)), (zero_j, energy_j))
        self._shown[gpu.index] = shown
        return shown[1]

    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        return _domain(name, gpu, DomainKind.COUNTER, "virtual energy counter")


class VirtualPower(_VirtualMeter):
    """Power as the sensor sees it: noisy, and looking at a part of the time only."""

    name: ClassVar[str] = "virtual-power"
    _processes_s: float | None = None

    @property
    def signals(self) -> tuple[Signal, ...]:
        return tuple(Signal(f"{n}/{s}", unit) for n in self._names for s, unit, _ in _SIGNALS)

    def read_signals(self) -> Sequence[Reading]:
        return [
            self._guarded(name, gpu, lambda gpu, tick, tick_s, of=of: of(gpu, tick_s))  # type: ignore[misc]  # mypy cannot type a default that binds the loop's variable
            for name, gpu in zip(self._names, self._gpus, strict=True)
            for _, _, of in _SIGNALS
        ]

    def read_processes(self) -> Mapping[str, Sequence[DeviceProcess] | Gap]:
        """As NVML has them: whole percents, and a process id where a process did the work."""
        now_s, begin_s = self._clock.now_s(), self._processes_s
        if begin_s is not None and now_s <= begin_s:
            return {}
        self._processes_s = now_s
        found: dict[str, Sequence[DeviceProcess] | Gap] = {}
        for name, gpu in zip(self._names, self._gpus, strict=True):
            gpu.reap()
            if refusal := refusal_to_read(gpu.now())[0]:
                found[name] = Gap(f"{name}: {refusal}")
                continue
            use = gpu.process_use(now_s - 0.1 if begin_s is None else begin_s, now_s)
            found[name] = [
                DeviceProcess(int(owner.pid), round(100 * each.sm) / 100, each.memory_b)
                for owner, each in use.items()
                if owner != NO_OWNER and each.memory_b > 0
            ]
        return found

    def _sensed(self, gpu: VirtualGpu, tick: int, tick_s: float) -> float:
        window_s = gpu.model.sensor_window_s
        power_w = gpu.true_energy_j(tick_s - window_s, tick_s) / window_s
        return max(0.0, power_w + gpu.model.noise_w * normal(gpu.index, tick))

    def _domain(self, name: str, gpu: VirtualGpu) -> Domain:
        return _domain(name, gpu, DomainKind.GAUGE, "virtual power sensor")


_SIGNALS: tuple[tuple[str, str, Callable[[VirtualGpu, float], float]], ...] = (
    ("utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).utilisation),
    ("memory_utilisation", "fraction", lambda gpu, at_s: gpu.at(at_s).memory_utilisation),
    ("sm_clock", "MHz", lambda gpu, at_s: gpu.at(at_s).clock_mhz),
    ("memory_clock", "MHz", lambda gpu, at_s: gpu.at(at_s).memory_clock_mhz),
    ("temperature", "degC", lambda gpu, at_s: gpu.temperature_c(at_s)),
    ("memory_used", "B", lambda gpu, at_s: gpu.at(at_s).held_b),
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


PERIOD_S = 0.1
"""A Yokogawa WT310E gives a value every 100 ms, the mean of that time."""
KNOWN_ERROR = 0.001
"""Its basic accuracy; here the spread of the readings."""
NOISE_STREAM = 1_000
"""Beyond every card's own."""


class _NodeMeter(Meter):
    """A node whose cards are watched; subclasses know what is shown of it.

    It is blind to what happens inside: a card that has failed for its own sensor goes on drawing
    power here.
    """

    def __init__(self, node: NodeModel, gpus: Sequence[VirtualGpu], clock: Clock) -> None:
        self._node = node
        self._gpus = tuple(gpus)
        self._clock = clock
        self._closed = False

    def read(self) -> Sequence[Reading]:
        if self._closed:
            return [Gap("node: the meter is closed")]
        for gpu in self._gpus:
            gpu.reap()
        return [self._shown(math.floor(self._clock.now_s() / PERIOD_S))]

    def close(self) -> None:
        self._closed = True

    @abstractmethod
    def _shown(self, tick: int) -> float:
        """The value at a tick."""


class VirtualNodeEnergy(_NodeMeter):
    """Joules at the node's socket since this meter was made, as an instrument integrates them."""

    name: ClassVar[str] = "virtual-node"

    LONGEST = 50
    """A time between two readings is cut into no more steps than this."""
    OPEN_TICKS = 5
    """The last ticks are looked at again: a job's work begins with its process, which is known
    when it has loaded its modules.
    """

    def __init__(self, node: NodeModel, gpus: Sequence[VirtualGpu], clock: Clock) -> None:
        super().__init__(node, gpus, clock)
        self._tick = math.floor(clock.now_s() / PERIOD_S)
        self._energy_j = self._shown_j = 0.0

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (_domain_node_meter(self._node, DomainKind.COUNTER, "integrated", 1e-3),)

    def _shown(self, tick: int) -> float:
        settled = tick - self.OPEN_TICKS
        if settled > self._tick:
            self._energy_j += self._between(self._tick, settled)
            self._tick = settled
        self._shown_j = max(self._shown_j, self._energy_j + self._between(self._tick, tick))
        return self._shown_j

    def _between(self, begin: int, end: int) -> float:
        if end <= begin:
            return 0.0
        step_s = PERIOD_S * max(1.0, (end - begin) / self.LONGEST)
        begin_s, end_s = begin * PERIOD_S, end * PERIOD_S
        return node_energy_j(self._node, self._gpus, begin_s, end_s, step_s)


class VirtualNodePower(_NodeMeter):
    """Watts at the node's socket: the mean of the last period."""

    name: ClassVar[str] = "virtual-node-power"

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (_domain_node_meter(self._node, DomainKind.GAUGE, "power", 0.01),)

    def _shown(self, tick: int) -> float:
        power_w = node_power_w(self._node, self._gpus, (tick - 1) * PERIOD_S, tick * PERIOD_S)
        return power_w * (1 + KNOWN_ERROR * normal(NOISE_STREAM, tick))


def _domain_node_meter(node: NodeModel, kind: DomainKind, what: str, resolution: float) -> Domain:
    gauge = kind is DomainKind.GAUGE
    return Domain(
        name="node",
        kind=kind,
        scope=Scope.NODE,
        source=f"virtual power meter of {node.name}, {what}",
        provenance=Provenance.SIMULATED,
        resolution=resolution,
        update_period_s=PERIOD_S,
        averaging_s=PERIOD_S if gauge else 0.0,
        known_error=2 * KNOWN_ERROR if gauge else 0.0,
        read_cost_s=1e-3,
        max_power_w=2 * node.supply_w,
        tdp_w=node.supply_w,
        tdp_note=f"power supplies of {node.supply_w:g} W",
        device=f"virtual node {node.name}",
    )


def node_power_w(
    node: NodeModel, gpus: Sequence[VirtualGpu], begin_s: float, end_s: float
) -> float:
    """Return the mean power over a short time; cards that the node has beyond `gpus` are idle."""
    absent_w = max(0, node.gpus - len(gpus)) * node.card.idle_w
    gpus_w = sum(gpu.true_energy_j(begin_s, end_s) for gpu in gpus) / (end_s - begin_s)
    heat_w = sum(gpu.heat_w(end_s) for gpu in gpus)
    return node.power_w(gpus_w + absent_w, heat_w + absent_w)


def node_energy_j(
    node: NodeModel, gpus: Sequence[VirtualGpu], begin_s: float, end_s: float, step_s: float = 0.01
) -> float:
    steps = max(1, math.ceil((end_s - begin_s) / step_s))
    width_s = (end_s - begin_s) / steps
    return width_s * sum(
        node_power_w(node, gpus, begin_s + k * width_s, begin_s + (k + 1) * width_s)
        for k in range(steps)
    )
