"""Records of a training step and of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wattloop.core.results import EnergyProperties, WindowResult
from wattloop.integrations.step_timeline import Edge


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
        kind: `epoch`, or the part of a `generate` call that it is.
        metrics: what the loop logged: loss, accuracy.
        steps: how many steps it had.
        at_step: the framework's own step at its end, where trackers show it; None where the
            framework counts epochs.
        final: whether all readings that bear on it are in.
    """

    def __init__(
        self,
        index: int,
        begin: Edge,
        resolve: Callable[[EpochRecord], WindowResult],
        kind: str = "epoch",
    ) -> None:
        self.index = index
        self.kind = kind
        self.begin = begin
        self.end: Edge | None = None
        self.metrics: dict[str, float] = {}
        self.steps = 0
        self.at_step: int | None = None
        self.final = False
        self._resolve = resolve
        self._result: WindowResult | None = None
        self._signal_sums: dict[str, tuple[float, int]] = {}

    @property
    def result(self) -> WindowResult:
        if self._result is not None:
            return self._result
        return self._resolve(self)

    def settle(self, result: WindowResult) -> None:
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
