"""Steps and epochs of a training: their times, and their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from wattloop.core.results import EnergyProperties, WindowResult


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


class PendingStep:
    """A step whose energy is not known yet."""

    __slots__ = ("begin", "end", "epoch", "index", "values")

    def __init__(
        self, index: int, epoch: int | None, begin: Edge, end: Edge, values: dict[str, float]
    ) -> None:
        self.index = index
        self.epoch = epoch
        self.begin = begin
        self.end = end
        self.values = values


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: from the end of the step before it to its own end, waiting for data included.

    `energy` holds joules and their uncertainty per domain; a domain that could not be read is
    absent. `energy_j` is the total of those that do not overlap, None when nothing could be read.
    """

    index: int
    epoch: int | None
    begin_s: float
    end_s: float
    energy: dict[str, tuple[float, float]]
    energy_j: float | None
    uncertainty_j: float
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds on the time line of the device that did the work."""
        return self.end_s - self.begin_s

    @property
    def power_w(self) -> float | None:
        if self.energy_j is None or self.duration_s <= 0:
            return None
        return self.energy_j / self.duration_s

    @property
    def loss(self) -> float | None:
        """The loss, if the loop reported it."""
        return self.metrics.get("loss")


class EpochRecord(EnergyProperties):
    """One epoch. Its energy may be asked for at any time; while `final` is false it is that of
    the readings so far, and its uncertainty is larger.

    Attributes:
        index: number of the epoch, from 0.
        metrics: what the loop logged: loss, accuracy.
        steps: how many steps it had.
        final: whether all readings that bear on it are in.
    """

    def __init__(
        self, index: int, begin: Edge, resolve: Callable[[EpochRecord], WindowResult]
    ) -> None:
        self.index = index
        self.begin = begin
        self.end: Edge | None = None
        self.metrics: dict[str, float] = {}
        self.steps = 0
        self.final = False
        self._resolve = resolve
        self._result: WindowResult | None = None
        self._signal_sums: dict[str, tuple[float, int]] = {}

    @property
    def result(self) -> WindowResult:
        """Energies per domain, what is missing, warnings."""
        if self._result is not None:
            return self._result
        return self._resolve(self)

    def settle(self, result: WindowResult) -> None:
        """From now on this is its result."""
        self._result = result
        self.final = True

    @property
    def loss(self) -> float | None:
        """The loss, if the loop reported it."""
        return self.metrics.get("loss")

    @property
    def utilisation(self) -> float | None:
        """Mean utilisation of the GPUs (of the CPU where no GPU tells), 0 to 1."""
        return self._mean("/utilisation")

    @property
    def temperature_c(self) -> float | None:
        """Mean temperature of the GPUs (or of the CPU) in degrees Celsius."""
        return self._mean("/temperature")

    @property
    def signals(self) -> dict[str, float]:
        """Mean of every signal over the epoch."""
        return {name: total / count for name, (total, count) in self._signal_sums.items()}

    def saw_signals(self, values: dict[str, float]) -> None:
        """Signals as read once during the epoch."""
        for name, value in values.items():
            if value == value:  # noqa: PLR0124 - NaN marks a signal that could not be read
                total, count = self._signal_sums.get(name, (0.0, 0))
                self._signal_sums[name] = (total + value, count + 1)

    def _mean(self, ending: str) -> float | None:
        found = {n: v for n, v in self.signals.items() if n.endswith(ending)}
        values = [v for n, v in found.items() if n.startswith("gpu")] or list(found.values())
        return sum(values) / len(values) if values else None
