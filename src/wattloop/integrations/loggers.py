"""Log energy to MLflow, Weights & Biases and TensorBoard where one of them is in use."""

from __future__ import annotations

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from wattloop.integrations.records import EpochRecord

if TYPE_CHECKING:
    from wattloop.integrations.training_meter import TrainingMeter


PREFIX = "energy/"
_log = logging.getLogger("wattloop")


class EnergyLogger(Protocol):
    """Somewhere to report to."""

    def epoch(self, epoch: EpochRecord) -> None:
        """An epoch's energy is known."""
        ...

    def total(self, meter: TrainingMeter) -> None: ...


def active_loggers(known: Sequence[EnergyLogger] = ()) -> list[EnergyLogger]:
    """MLflow and W&B, if the program has imported them and has a run open. Imports nothing.

    Args:
        known: those of the last time; one that reports to a run still open stays, and with it the
            memory that its service has failed. So does one that can report to a run that has
            ended, until another is open: Hugging Face's trainer ends its MLflow run before it
            tells other callbacks that the training is over.
    """
    found: list[MetricsLogger] = []
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and hasattr(mlflow, "active_run"):
        run = mlflow.active_run()
        if run is not None:
            found.append(MlflowLogger(mlflow, run.info.run_id))
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        found.append(WandbLogger(wandb.run))
    current = [next((old for old in known if _same_run(old, new)), new) for new in found]
    if not any(isinstance(logger, MlflowLogger) for logger in current):
        current += [old for old in known if isinstance(old, MlflowLogger)]
    return current


def _same_run(one: EnergyLogger, other: MetricsLogger) -> bool:
    return (
        isinstance(one, MetricsLogger) and type(one) is type(other) and one.target == other.target
    )


class MetricsLogger(ABC):
    """Turns epochs and totals into named numbers; subclasses say where they go.

    A logging service that fails must not cost the training anything: it is told once, then left.

    Args:
        target: what tells the run, experiment or file reported to from another one.
    """

    def __init__(self, target: object = None) -> None:
        self.target = target
        self._failed = False

    def epoch(self, epoch: EpochRecord) -> None:
        """Energy, power and time of an epoch."""
        self._try(epoch_numbers(epoch), epoch.index)

    def total(self, meter: TrainingMeter) -> None:
        """Energy, power and time of the whole training."""
        self._try(total_numbers(meter), None)

    @abstractmethod
    def write(self, numbers: dict[str, float], epoch: int | None) -> None:
        """Report numbers of an epoch, or of the whole training."""

    def _try(self, numbers: dict[str, float], epoch: int | None) -> None:
        if self._failed or not numbers:
            return
        try:
            self.write(numbers, epoch)
        except Exception as error:  # noqa: BLE001 - third parties' services fail in many ways
            self._failed = True
            _log.warning("energy is not reported to %s: %s", type(self).__name__, error)


class MlflowLogger(MetricsLogger):
    """The active MLflow run; by its identifier once it has ended."""

    def __init__(self, mlflow: Any, run_id: str | None = None) -> None:
        super().__init__(run_id)
        self._mlflow = mlflow

    def write(self, numbers: dict[str, float], epoch: int | None) -> None:
        """As metrics; the epoch is their step."""
        active = self._mlflow.active_run()
        if self.target is None or (active is not None and active.info.run_id == self.target):
            self._mlflow.log_metrics(numbers, step=epoch)
            return
        now_ms, metric = int(time.time() * 1_000), self._mlflow.entities.Metric
        metrics = [metric(name, value, now_ms, epoch or 0) for name, value in numbers.items()]
        self._mlflow.tracking.MlflowClient().log_batch(self.target, metrics=metrics)


class WandbLogger(MetricsLogger):
    """The open W&B run."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._run = run

    def write(self, numbers: dict[str, float], epoch: int | None) -> None:
        """Epochs against an axis of their own (W&B's own step counts calls), totals as summary."""
        if epoch is None:
            self._run.summary.update(numbers)
            return
        axis = f"{PREFIX}epoch"
        self._run.define_metric(axis, hidden=True)
        self._run.define_metric(f"{PREFIX}*", step_metric=axis)
        self._run.log({**numbers, axis: epoch})


class TensorBoardLogger(MetricsLogger):
    """A `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer

    def write(self, numbers: dict[str, float], epoch: int | None) -> None:
        """As scalars; the epoch is their step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, 0 if epoch is None else epoch)
        self._writer.flush()


def epoch_numbers(epoch: EpochRecord) -> dict[str, float]:
    """Return the reported numbers of an epoch; unread ones are absent, not zero."""
    result = epoch.result
    numbers = {
        "epoch_energy_j": result.energy_j,
        "epoch_uncertainty_j": result.uncertainty_j if result.energy_j is not None else None,
        "epoch_power_w": result.power_w,
        "epoch_time_s": result.duration_s,
        "epoch_utilisation": epoch.utilisation,
        "epoch_temperature_c": epoch.temperature_c,
    }
    numbers |= {f"epoch_{_plain(d.name)}_j": d.energy_j for d in result.domains}
    return {f"{PREFIX}{name}": v for name, v in numbers.items() if v is not None}


def total_numbers(meter: TrainingMeter) -> dict[str, float]:
    """Return the numbers reported at the end."""
    result = meter.result
    if result is None:
        return {}
    numbers = {
        "total_j": result.energy_j,
        "total_uncertainty_j": result.uncertainty_j if result.energy_j is not None else None,
        "total_power_w": result.power_w,
        "total_time_s": result.duration_s,
    }
    numbers |= {f"total_{_plain(d.name)}_j": d.energy_j for d in result.domains}
    if meter.run is not None:
        numbers["total_carbon_g"] = meter.run.accounting.get("carbon_g")
    return {f"{PREFIX}{name}": v for name, v in numbers.items() if v is not None}


def _plain(domain: str) -> str:
    """`cpu:0/package` as every service accepts it."""
    return domain.replace(":", "").replace("/", "_")


class EpochReporter:
    """Reports each epoch once, when its energy is final, in order.

    Called by the thread that trains: an MLflow run belongs to it.

    Args:
        loggers: where to report to at the moment.
    """

    def __init__(self, loggers: Callable[[], Sequence[EnergyLogger]]) -> None:
        self._loggers = loggers
        self._reported = 0

    def report(self, epochs: Sequence[EpochRecord], *, everything: bool = False) -> None:
        """Report epochs that are final and have not been reported yet, or all of them."""
        while self._reported < len(epochs):
            epoch = epochs[self._reported]
            if not (epoch.final or everything):
                return
            self._reported += 1
            for logger in self._loggers():
                logger.epoch(epoch)

    def report_total(self, meter: TrainingMeter) -> None:
        for logger in self._loggers():
            logger.total(meter)
