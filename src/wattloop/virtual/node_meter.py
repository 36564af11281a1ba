"""The meter of a virtual node: what a power meter at its socket would show."""

import math
from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.provenance import Provenance
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.measure.meter import Meter, Reading
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import NodeModel
from wattloop.virtual.noise import normal

__all__ = ["NodePower", "node_energy_j", "node_power_w"]

PERIOD_S = 0.1
"""A Yokogawa WT310E gives a value every 100 ms, the mean of that time."""
KNOWN_ERROR = 0.001
"""Its basic accuracy; here the spread of the readings."""
NOISE_STREAM = 1_000
"""Beyond every card's own."""


class NodePower(Meter):
    """Watts at the node's socket; simulated, and blind to what happens inside.

    A card that has failed for its own sensor goes on drawing power here.
    """

    name: ClassVar[str] = "virtual-node"

    def __init__(self, node: NodeModel, gpus: Sequence[VirtualGpu], clock: Clock) -> None:
        self._node = node
        self._gpus = tuple(gpus)
        self._clock = clock
        self._closed = False

    @property
    def domains(self) -> tuple[Domain, ...]:
        """`node`."""
        node = self._node
        return (
            Domain(
                name="node",
                kind=DomainKind.GAUGE,
                scope=Scope.NODE,
                source=f"virtual power meter of {node.name}",
                provenance=Provenance.SIMULATED,
                resolution=0.01,
                update_period_s=PERIOD_S,
                averaging_s=PERIOD_S,
                known_error=2 * KNOWN_ERROR,
                read_cost_s=50e-6,
                max_power_w=2 * node.supply_w,
                tdp_w=node.supply_w,
                tdp_note=f"power supplies of {node.supply_w:g} W",
                device=f"virtual node {node.name}",
            ),
        )

    def read(self) -> Sequence[Reading]:
        """Mean power of the last period."""
        if self._closed:
            return [Gap("node: the meter is closed")]
        for gpu in self._gpus:
            gpu.reap()
        tick = math.floor(self._clock.now_s() / PERIOD_S)
        power_w = node_power_w(self._node, self._gpus, (tick - 1) * PERIOD_S, tick * PERIOD_S)
        return [power_w * (1 + KNOWN_ERROR * normal(NOISE_STREAM, tick))]

    def close(self) -> None:
        """Nothing is kept open."""
        self._closed = True


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
