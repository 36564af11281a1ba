"""A plain PyTorch loop.

from wattloop.integrations.torch_loop import EnergyMeter

with EnergyMeter() as meter:
    for epoch in range(3):
        with meter.epoch():
            for batch in loader:
                with meter.step() as step:
                    step.loss = train(batch)
            meter.log(accuracy=evaluate())
        print(meter.last_epoch.energy_j)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from wattloop.integrations.loggers import EnergyLogger, TensorBoardLogger
from wattloop.integrations.step_timeline import Timeline, TorchTimeline
from wattloop.integrations.training_meter import TrainingMeter


class EnergyMeter(TrainingMeter):
    """Energy of a PyTorch training.

    On a GPU the edges of steps are CUDA events; the loop is never synchronised. Without one they
    are times of the host.

    Args:
        name: what the run is called.
        exact: synchronise at every edge: each step's time is then exact, at some percent of speed.
        device: CUDA device whose work is cut into steps; the current one when not given.
        writer: a TensorBoard `SummaryWriter` to report epochs to.
        loggers: other places to report to, in addition to an active MLflow or W&B run.
        options: settings for the run, such as `interval_s=0.05`, `store="runs.db"`.
    """

    def __init__(
        self,
        name: str = "training",
        *,
        exact: bool = False,
        device: int | None = None,
        writer: Any = None,
        loggers: tuple[EnergyLogger, ...] = (),
        **options: Any,
    ) -> None:
        if writer is not None:
            loggers = (*loggers, TensorBoardLogger(writer))
        super().__init__(name, loggers=loggers, **options)
        self._exact = exact
        self._device = device

    @contextmanager
    def epoch(self, index: int | None = None) -> Iterator[None]:
        """One epoch; an epoch that raises is recorded as far as it came."""
        self.epoch_begin(index)
        try:
            yield
        finally:
            self.epoch_end()

    def step(self) -> LoopStep:
        """One step, as a context manager."""
        return LoopStep(self)

    def _make_timeline(self, now_s: Callable[[], float]) -> Timeline:
        return TorchTimeline(now_s, self._device, exact=self._exact)


class LoopStep:
    """The step inside `with meter.step() as step`; set `loss` or call `log` to keep numbers."""

    __slots__ = ("_meter", "_metrics", "loss")

    def __init__(self, meter: TrainingMeter) -> None:
        self._meter = meter
        self._metrics: dict[str, Any] = {}
        self.loss: Any = None

    def log(self, **metrics: Any) -> None:
        """Numbers of this step; tensors on a GPU are not waited for."""
        self._metrics.update(metrics)

    def __enter__(self) -> LoopStep:
        self._meter.step_begin()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self._meter.step_end(**{"loss": self.loss} | self._metrics)
        else:
            self._meter.interrupt()
