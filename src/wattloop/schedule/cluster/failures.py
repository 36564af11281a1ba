"""Nodes that die and come back: listed, drawn from a seed, or both."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Failures", "NodeEvent", "Outage"]


class NodeEvent(NamedTuple):
    """A node dies or comes back."""

    time_s: float
    node: int
    is_up: bool


class Outage(NamedTuple):
    """A node is away from `begin_s` until just before `end_s`."""

    begin_s: float
    end_s: float
    node: int


@dataclass(frozen=True, slots=True)
class Failures:
    """What befalls the nodes of a cluster.

    Attributes:
        outages: known ones, such as planned maintenance.
        mtbf_s: mean time of each node from its repair to its next failure; None for no more
            failures than those listed.
        mttr_s: mean time of a repair.
        until_s: no failure is drawn after this time; infinite leaves that to the horizon.
    """

    outages: tuple[Outage, ...] = ()
    mtbf_s: float | None = None
    mttr_s: float = 0.0
    until_s: float = float("inf")

    def events(self, nodes: int, horizon_s: float, seed: int) -> tuple[NodeEvent, ...]:
        """Failures and repairs up to the horizon, by time; a node alternates between the two.

        Times to failure and to repair are exponential. Each node has a stream of its own: more
        nodes or a longer horizon change nothing of what the others were going to suffer.

        Raises:
            ValueError: failures are drawn without end, because neither horizon nor `until_s` is
                finite.
        """
        last_s = min(horizon_s, self.until_s)
        if self.mtbf_s is not None and last_s == float("inf"):
            raise ValueError("failures without end: give a horizon, or failures.until")
        found: list[NodeEvent] = []
        for node in range(nodes):
            mine = [each for each in self.outages if each.node == node and each.end_s > 0]
            for begin_s, end_s in _merged([*mine, *self._drawn(node, last_s, seed)]):
                if begin_s < horizon_s:
                    found.append(NodeEvent(begin_s, node, is_up=False))
                if end_s < horizon_s:
                    found.append(NodeEvent(end_s, node, is_up=True))
        # Of two at one time the repair comes first: a node more can only help.
        found.sort(key=lambda event: (event.time_s, not event.is_up, event.node))
        return tuple(found)

    def _drawn(self, node: int, last_s: float, seed: int) -> Iterator[Outage]:
        if self.mtbf_s is None:
            return
        dice = random.Random(f"wattloop failures {seed} {node}")
        time_s = dice.expovariate(1 / self.mtbf_s)
        while time_s < last_s:
            repair_s = dice.expovariate(1 / self.mttr_s) if self.mttr_s else 0.0
            yield Outage(time_s, time_s + repair_s, node)
            time_s += repair_s + dice.expovariate(1 / self.mtbf_s)


def _merged(outages: Sequence[Outage]) -> Iterable[tuple[float, float]]:
    """Stretches during which a node is away, without overlaps; those of no length left out."""
    merged: list[tuple[float, float]] = []
    for begin_s, end_s, _ in sorted(outages):
        if end_s <= begin_s:
            continue
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((begin_s, end_s))
    return merged
