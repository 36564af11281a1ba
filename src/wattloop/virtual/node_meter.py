"""Meters of a virtual node: what an instrument at its socket would show."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.provenance import Provenance
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Meter, Reading
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import NodeModel
from wattloop.virtual.noise import normal

__all__ = ["NodeEnergy", "NodePower", "node_energy_j", "node_power_w"]

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
        """What was shown at the last tick."""
        if self._closed:
            return [Gap("node: the meter is closed")]
        for gpu in self._gpus:
            gpu.reap()
        return [self._shown(math.floor(self._clock.now_s() / PERIOD_S))]

    def close(self) -> None:
        """Nothing is kept open."""
        self._closed = True

    @abstractmethod
    def _shown(self, tick: int) -> float:
        """The value at a tick."""


class NodeEnergy(_NodeMeter):
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
        """`node`."""
        return (_domain(self._node, DomainKind.COUNTER, "integrated", 1e-3),)

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


class NodePower(_NodeMeter):
    """Watts at the node's socket: the mean of the last period."""

    name: ClassVar[str] = "virtual-node-power"

    @property
    def domains(self) -> tuple[Domain, ...]:
        """`node`."""
        return (_domain(self._node, DomainKind.GAUGE, "power", 0.01),)

    def _shown(self, tick: int) -> float:
        power_w = node_power_w(self._node, self._gpus, (tick - 1) * PERIOD_S, tick * PERIOD_S)
        return power_w * (1 + KNOWN_ERROR * normal(NOISE_STREAM, tick))


def _domain(node: NodeModel, kind: DomainKind, what: str, resolution: float) -> Domain:
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
    """True mean power of the node over a short time.

    Cards that the node has beyond `gpus` are idle.
    """
    absent_w = max(0, node.gpus - len(gpus)) * node.card.idle_w
    gpus_w = sum(gpu.true_energy_j(begin_s, end_s) for gpu in gpus) / (end_s - begin_s)
    heat_w = sum(gpu.heat_w(end_s) for gpu in gpus)
    return node.power_w(gpus_w + absent_w, heat_w + absent_w)


def node_energy_j(
    node: NodeModel, gpus: Sequence[VirtualGpu], begin_s: float, end_s: float, step_s: float = 0.01
) -> float:
    """True energy of the node: the sum of its power over steps of `step_s`."""
    steps = max(1, math.ceil((end_s - begin_s) / step_s))
    width_s = (end_s - begin_s) / steps
    return width_s * sum(
        node_power_w(node, gpus, begin_s + k * width_s, begin_s + (k + 1) * width_s)
        for k in range(steps)
    )
