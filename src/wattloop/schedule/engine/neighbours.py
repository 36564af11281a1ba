"""Who runs on which node, and how much slower for the company."""

from collections.abc import Mapping

from wattloop.schedule.engine.stretch import Stretch

__all__ = ["Neighbours"]


class Neighbours:
    """Jobs by node.

    Args:
        nodes: how many there are.
        interference: by how much a job slows down for each other job on its busiest node.
    """

    def __init__(self, nodes: int, interference: float) -> None:
        self._jobs: list[set[int]] = [set() for _ in range(nodes)]
        self._interference = interference

    def on(self, node: int) -> list[int]:
        """Jobs on a node, by number."""
        return sorted(self._jobs[node])

    def join(self, stretch: Stretch, running: Mapping[int, Stretch]) -> list[tuple[Stretch, float]]:
        """A job comes and takes its speed; the others whose speed changes, and their slowdowns."""
        for node, _ in stretch.nodes:
            self._jobs[node].add(stretch.job)
        if not self._interference:
            return []
        stretch.slowdown = self._slowdown(stretch)
        return self._changed(stretch, running)

    def leave(
        self, stretch: Stretch, running: Mapping[int, Stretch]
    ) -> list[tuple[Stretch, float]]:
        """A job goes; the others whose speed changes, and their slowdowns."""
        for node, _ in stretch.nodes:
            self._jobs[node].discard(stretch.job)
        return self._changed(stretch, running) if self._interference else []

    def _changed(
        self, stretch: Stretch, running: Mapping[int, Stretch]
    ) -> list[tuple[Stretch, float]]:
        met = {job for node, _ in stretch.nodes for job in self._jobs[node]} - {stretch.job}
        found = [(running[job], self._slowdown(running[job])) for job in sorted(met)]
        return [(other, slowdown) for other, slowdown in found if slowdown != other.slowdown]

    def _slowdown(self, stretch: Stretch) -> float:
        others = max(len(self._jobs[node]) for node, _ in stretch.nodes) - 1
        return 1.0 + self._interference * others
