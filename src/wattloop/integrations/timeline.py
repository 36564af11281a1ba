"""Edges of steps and epochs, and the time line they lie on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Edge:
    """An instant between two steps.

    Attributes:
        host_s: when the host passed it; parts that the host drives (CPU, DRAM) are cut here.
        time_s: when the device passed it, on the host's clock; None until that is known.
        blur_s: half-width of `time_s`.
        event: what the time line waits for, if anything.
        scalars: values that are on their way from the device: (where, name, slot).
    """

    __slots__ = ("blur_s", "event", "host_s", "scalars", "time_s")

    def __init__(self, host_s: float, *, known: bool = True) -> None:
        self.host_s = host_s
        self.time_s: float | None = host_s if known else None
        self.blur_s = 0.0
        self.event: Any = None
        self.scalars: list[tuple[dict[str, float], str, int]] | None = None


class Timeline(Protocol):
    """Marks edges. `mark` costs microseconds and never waits for a device."""

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """An edge here and now; numbers among `values` become floats, at once or later."""
        ...

    def poll(self) -> None:
        """Fill in the times of edges that the device has passed by now."""
        ...

    def wait(self, edge: Edge) -> None:
        """Wait until the device has passed `edge`; called only when its energy is read."""
        ...

    def finish(self) -> None:
        """The training is over: wait for every edge."""
        ...


class HostTimeline:
    """Edges are host times.

    Args:
        now_s: the clock.
        settle: called before the clock is read: where the work is done elsewhere, it waits for
            it, so that the edge is exact (and costs the caller the waiting).
    """

    def __init__(
        self, now_s: Callable[[], float], settle: Callable[[], None] | None = None
    ) -> None:
        self._now_s = now_s
        self._settle = settle

    def mark(self, values: dict[str, Any] | None = None) -> Edge:
        """An edge here and now."""
        if self._settle is not None:
            self._settle()
        edge = Edge(self._now_s())
        if values:
            for name in list(values):
                number = as_number(values[name], may_wait=self._settle is not None)
                if number is None:
                    del values[name]
                else:
                    values[name] = number
        return edge

    def poll(self) -> None:
        """Nothing is ever pending."""

    def wait(self, edge: Edge) -> None:
        """Every edge is known when it is marked."""

    def finish(self) -> None:
        """Nothing is ever pending."""


def as_number(value: Any, *, may_wait: bool = False) -> float | None:
    """A float of a number or a one-element tensor in host memory; None of anything else.

    A value in a device's memory is taken only where waiting for the device is allowed.
    """
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device != "cpu" and not may_wait:
        return None
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except Exception:  # noqa: BLE001 - the user's object may do anything; it is not a number
        return None
