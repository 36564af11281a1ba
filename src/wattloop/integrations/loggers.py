"""Trackers: energy of steps, epochs and trainings in MLflow, W&B, TensorBoard and others."""

from __future__ import annotations

import atexit
import importlib
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wattloop.core.errors import ConfigError
from wattloop.integrations.records import EpochRecord, StepRecord

if TYPE_CHECKING:
    from wattloop.integrations.stored_steps import TrackerRow
    from wattloop.integrations.training_meter import TrainingMeter
    from wattloop.store.run_record import RunRecord


PREFIX = "energy/"
_log = logging.getLogger("wattloop")


class EnergyLogger(Protocol):
    """Somewhere to report to. One with a method `steps(numbers, step)` gets those of steps, too."""

    def epoch(self, epoch: EpochRecord) -> None:
        """An epoch's energy is known."""
        ...

    def total(self, meter: TrainingMeter) -> None: ...


def active_loggers(known: Sequence[EnergyLogger] = ()) -> list[EnergyLogger]:
    """Trackers that the program has imported and that have a run open. Imports nothing.

    Args:
        known: those of the last time; one that reports to a run still open stays, and with it the
            memory that its service has failed. So does one that can report to a run that has
            ended, until another is open: a program may end its MLflow run before its training
            is over.
    """
    found: list[MetricsLogger] = []
    for name, find in _OPEN_RUNS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            logger = find(module)
        except Exception as error:  # noqa: BLE001 - a library that is half imported, or of another version
            _log.debug("no open run of %s: %s", name, error)
            continue
        if logger is not None:
            found.append(logger)
    current = [next((old for old in known if _same_run(old, new)), new) for new in found]
    if not any(isinstance(logger, MlflowLogger) for logger in current):
        current += [old for old in known if isinstance(old, MlflowLogger)]
    return current


def _same_run(one: EnergyLogger, other: MetricsLogger) -> bool:
    return (
        isinstance(one, MetricsLogger) and type(one) is type(other) and one.target == other.target
    )


class MetricsLogger(ABC):
    """Turns steps, epochs and totals into named numbers; subclasses say where they go.

    A logging service that fails must not cost the training anything: it is told once, then left.

    Args:
        target: what tells the run, experiment or file reported to from another one.
    """

    def __init__(self, target: object = None) -> None:
        self.target = target
        self._failed = False

    def steps(self, numbers: dict[str, float], step: int) -> None:
        """Means of the steps since the last report."""
        self._try(numbers, step)

    def epoch(self, epoch: EpochRecord) -> None:
        """Energy, power and time of an epoch, at the framework's step where it has one."""
        at = epoch.index if epoch.at_step is None else epoch.at_step
        self._try(epoch_numbers(epoch), at, epoch.index)

    def total(self, meter: TrainingMeter) -> None:
        """Energy, power and time of the whole training, at its last step."""
        self._try(total_numbers(meter), meter.last_step, total=True)

    @abstractmethod
    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        """Report numbers.

        Args:
            numbers: by name.
            step: where they belong on the tracker's axis.
            epoch: which epoch they are of, if of one.
            total: whether they are of the whole training.
        """

    def _try(
        self, numbers: dict[str, float], step: int, epoch: int | None = None, *, total: bool = False
    ) -> None:
        if self._failed or not numbers:
            return
        try:
            self.write(numbers, step, epoch, total=total)
        except Exception as error:  # noqa: BLE001 - third parties' services fail in many ways
            self._failed = True
            _log.warning("energy is not reported to %s: %s", type(self).__name__, error)


class MlflowLogger(MetricsLogger):
    """The active MLflow run; by its identifier once it has ended."""

    def __init__(self, mlflow: Any, run_id: str | None = None) -> None:
        super().__init__(run_id)
        self._mlflow = mlflow

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        active = self._mlflow.active_run()
        if self.target is None or (active is not None and active.info.run_id == self.target):
            self._mlflow.log_metrics(numbers, step=step)
            return
        now_ms, metric = int(time.time() * 1_000), self._mlflow.entities.Metric
        metrics = [metric(name, value, now_ms, step) for name, value in numbers.items()]
        self._mlflow.tracking.MlflowClient().log_batch(self.target, metrics=metrics)


class WandbLogger(MetricsLogger):
    """The open W&B run.

    W&B drops what a program logs at a step that its run has passed. So a report completes no row
    while the program may still log: it joins the open row. A report that would overwrite an earlier
    one there waits for the next row. Those that wait when the run is finished get rows of their
    own.

    Args:
        commit: whether each report is a row of its own, in a run in which no program logs steps.
    """

    def __init__(self, run: Any, *, commit: bool = False) -> None:
        super().__init__(run)
        self._commit = commit
        self._run = run
        self._defined: set[str] = set()
        self._waiting: deque[dict[str, float]] = deque()
        self._open_step: int | None = None
        self._open_names: set[str] = set()
        """Names of ours in the open row."""

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        """Log against axes of their own (W&B's own step counts calls); totals are its summary."""
        if total:
            self._run.summary.update(numbers)
            return
        axis, value = ("step", step) if epoch is None else ("epoch", epoch)
        for name in (f"{PREFIX}{axis}", *numbers):
            if name not in self._defined:
                self._defined.add(name)
                drawn = {"step_metric": f"{PREFIX}{axis}"} if name in numbers else {"hidden": True}
                self._run.define_metric(name, **drawn)
        row = {**numbers, f"{PREFIX}{axis}": value}
        if self._commit:
            self._run.log(row, commit=True)
            return
        if self._open_step is None:
            self._call_at_finish()
        self._waiting.append(row)
        self._join_open_row()

    def _join_open_row(self) -> None:
        if (step := self._run.step) != self._open_step:
            self._open_step, self._open_names = step, set()
        while self._waiting and self._open_names.isdisjoint(self._waiting[0]):
            row = self._waiting.popleft()
            self._open_names.update(row)
            self._run.log(row, commit=False)

    def _call_at_finish(self) -> None:
        """Have the waiting rows completed by `finish`, or by a program that ends without it."""
        atexit.register(self._complete)  # runs before W&B's own, which was registered earlier
        try:  # W&B has no public call for this, and a run used with `with` does not call `finish`
            wandb_run = importlib.import_module("wandb.sdk.wandb_run")
            hook = wandb_run.TeardownHook(self._complete, wandb_run.TeardownStage.EARLY)
            self._run._teardown_hooks.append(hook)
        except (ImportError, AttributeError):
            finish = self._run.finish

            def complete_and_finish(*args: Any, **named: Any) -> Any:
                self._complete()
                return finish(*args, **named)

            self._run.finish = complete_and_finish

    def _complete(self) -> None:
        atexit.unregister(self._complete)
        if self._failed or not self._waiting:
            return
        try:
            self._join_open_row()
            self._run.log({}, commit=True)
            while self._waiting:
                self._run.log(self._waiting.popleft(), commit=True)
        except Exception as error:  # noqa: BLE001 - the program is ending, and must end as it would
            _log.warning("energy is not complete in W&B: %s", error)


class TensorBoardLogger(MetricsLogger):
    """A `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class TrackioLogger(MetricsLogger):
    """The open Trackio run."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._run = run

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        """Log with the axis that the Trainer uses, at Trackio's present step: that one counts the
        program's calls, and must not move because of us.
        """
        following = getattr(self._run, "_next_step", None)
        now = max(0, following - 1) if isinstance(following, int) else None
        self._run.log({**numbers, "train/global_step": step}, step=now)


class CometLogger(MetricsLogger):
    """The running Comet experiment."""

    def __init__(self, experiment: Any) -> None:
        super().__init__(experiment)
        self._experiment = experiment

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        self._experiment.log_metrics(numbers, step=step, epoch=epoch)


class ClearmlLogger(MetricsLogger):
    """The current ClearML task."""

    def __init__(self, task: Any) -> None:
        super().__init__(task.id)
        self._task = task

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        """Write a plot `energy` with a line per name, totals as single values as well."""
        logger = self._task.get_logger()
        for name, value in numbers.items():
            series = name.removeprefix(PREFIX)
            logger.report_scalar(PREFIX.rstrip("/"), series, value=value, iteration=step)
            if total:
                logger.report_single_value(name, value)


def _mlflow_run(mlflow: Any) -> MetricsLogger | None:
    run = mlflow.active_run()
    return None if run is None else MlflowLogger(mlflow, run.info.run_id)


def _wandb_run(wandb: Any) -> MetricsLogger | None:
    run = getattr(wandb, "run", None)
    # A run that several processes share has no steps.
    shared = getattr(getattr(run, "settings", None), "mode", "") == "shared"
    return None if run is None else WandbLogger(run, commit=shared)


def _trackio_run(trackio: Any) -> MetricsLogger | None:
    run = trackio.context_vars.current_run.get()
    return None if run is None else TrackioLogger(run)


def _comet_experiment(comet_ml: Any) -> MetricsLogger | None:
    experiment = comet_ml.get_running_experiment()
    return None if experiment is None else CometLogger(experiment)


def _clearml_task(clearml: Any) -> MetricsLogger | None:
    task = clearml.Task.current_task()
    return None if task is None else ClearmlLogger(task)


_OPEN_RUNS: dict[str, Callable[[Any], MetricsLogger | None]] = {
    "mlflow": _mlflow_run,
    "wandb": _wandb_run,
    "trackio": _trackio_run,
    "comet_ml": _comet_experiment,
    "clearml": _clearml_task,
}
"""Module of a tracker -> what finds its open run."""


class StepSums:
    """Sums over steps: their number, time, energy, samples and tokens.

    `energy_j` and `time_s` are those of the `read` steps of which energy is known. Samples and
    tokens are None once a step lacks them.
    """

    def __init__(self) -> None:
        self.steps = self.read = 0
        self.all_s = self.time_s = self.energy_j = 0.0
        self.amounts: dict[str, float | None] = {"sample": 0.0, "token": 0.0}

    def add(self, step: StepRecord) -> None:
        self.steps += 1
        self.all_s += step.duration_s
        if step.energy_j is not None:
            self.read += 1
            self.time_s += step.duration_s
            self.energy_j += step.energy_j
        for unit, amount in self.amounts.items():
            more = step.metrics.get(f"{unit}s")
            self.amounts[unit] = None if amount is None or more is None else amount + more

    def numbers(self, prefix: str = PREFIX) -> dict[str, float]:
        """Return means per step, sample and token; what is not known is absent."""
        if not self.steps:
            return {}
        numbers = {"step_s": self.all_s / self.steps}
        if self.read:
            numbers["step_j"] = self.energy_j / self.read
            if self.time_s > 0:
                numbers["step_power_w"] = self.energy_j / self.time_s
        for unit, amount in self.amounts.items():
            if amount and self.read == self.steps and self.energy_j > 0:
                numbers[f"{unit}_j"] = self.energy_j / amount
                numbers[f"{unit}s_per_j"] = amount / self.energy_j
        return {f"{prefix}{name}": value for name, value in numbers.items()}


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
    sums = meter.step_sums
    if sums.steps:
        numbers |= {"total_steps": sums.steps, **sums.numbers("total_")}
        numbers |= {f"total_{unit}s": amount or None for unit, amount in sums.amounts.items()}
    return {f"{PREFIX}{name}": v for name, v in numbers.items() if v is not None}


def _plain(domain: str) -> str:
    """`cpu:0/package` as every service accepts it."""
    return domain.replace(":", "").replace("/", "_")


# A stored run, written into the tracker's run that its program had open.

TRACKERS = ("mlflow", "tensorboard", "wandb")
RUN_TAG = "wattloop.run_id"


def export_to_tracker(
    record: RunRecord, rows: Sequence[TrackerRow], tracker: str, into: str, uri: str = ""
) -> None:
    """Write the rows of a stored run into a run of a tracker.

    Args:
        record: the run.
        rows: its steps, epochs and totals.
        tracker: one of `TRACKERS`.
        into: MLflow's run, TensorBoard's folder, or W&B's `entity/project/run`.
        uri: where MLflow keeps its runs; its own setting unless given.

    Raises:
        ConfigError: the library is not installed, its run is not there, or it has this one already.
    """
    module = "torch.utils.tensorboard" if tracker == "tensorboard" else tracker
    try:
        library = importlib.import_module(module)
    except ImportError:
        remedy = f"pip install 'wattloop[{tracker}]'"
        raise ConfigError(f"--to {tracker}: it is not installed; {remedy}") from None
    named = [
        row._replace(numbers={f"{PREFIX}{name}": value for name, value in row.numbers.items()})
        for row in rows
    ]
    try:
        _EXPORTS[tracker](library, record.run_id, named, into, uri)
    except ConfigError:
        raise
    except Exception as error:  # third parties' services fail in many ways
        raise ConfigError(f"--to {tracker}: {into}: {error}") from error


def _export_to_mlflow(
    mlflow: Any, run_id: str, rows: Sequence[TrackerRow], into: str, uri: str
) -> None:
    client = mlflow.tracking.MlflowClient(uri or None)
    if client.get_run(into).data.tags.get(RUN_TAG) == run_id:
        raise ConfigError(f"--to mlflow: run {into} has the energy of {run_id} already")
    metric = mlflow.entities.Metric
    metrics = [
        metric(name, value, int(row.wall_s * 1_000), row.step)
        for row in rows
        for name, value in row.numbers.items()
    ]
    for begin in range(0, len(metrics), 1_000):  # MLflow's limit
        client.log_batch(into, metrics=metrics[begin : begin + 1_000])
    client.set_tag(into, RUN_TAG, run_id)


def _export_to_tensorboard(
    board: Any, run_id: str, rows: Sequence[TrackerRow], into: str, _uri: str
) -> None:
    if any(Path(into).glob(f"*.wattloop-{run_id}")):
        raise ConfigError(f"--to tensorboard: {into} has the energy of {run_id} already")
    with board.SummaryWriter(into, filename_suffix=f".wattloop-{run_id}") as writer:
        for row in rows:
            for name, value in row.numbers.items():
                writer.add_scalar(name, value, row.step, walltime=row.wall_s)


def _export_to_wandb(
    wandb: Any, run_id: str, rows: Sequence[TrackerRow], into: str, _uri: str
) -> None:
    entity, project, name = ["", "", *into.split("/")][-3:]
    run = wandb.init(id=name, project=project or None, entity=entity or None, resume="allow")
    try:
        if run.config.get(RUN_TAG) == run_id:
            raise ConfigError(f"--to wandb: run {into} has the energy of {run_id} already")
        run.config.update({RUN_TAG: run_id})
        logger = WandbLogger(run, commit=True)
        *steps, total = rows
        for row in steps:
            logger.write(row.numbers, row.step, None, total=False)
        logger.write(total.numbers, total.step, None, total=True)
    finally:
        run.finish()


_EXPORTS: dict[str, Callable[[Any, str, Sequence[TrackerRow], str, str], None]] = {
    "mlflow": _export_to_mlflow,
    "tensorboard": _export_to_tensorboard,
    "wandb": _export_to_wandb,
}


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


class StepReporter:
    """Reports means of steps, once their energy is known, at the step where they were asked for.

    Called by the thread that trains.

    Args:
        loggers: where to report to at the moment.
    """

    def __init__(self, loggers: Callable[[], Sequence[EnergyLogger]]) -> None:
        self.sums = StepSums()
        """Of all steps that were reported."""
        self._loggers = loggers
        self._marks: deque[tuple[int, int]] = deque()
        self._taken = self._marked = 0

    def mark(self, steps: int, at_step: int) -> None:
        """Report the steps up to number `steps`, at the tracker's step `at_step`."""
        if steps > self._marked:
            self._marked = steps
            self._marks.append((steps, at_step))

    def is_due(self, resolved: int) -> bool:
        """Return True if a report can be made, of so many steps with energy."""
        return bool(self._marks) and self._marks[0][0] <= resolved

    def report(
        self, known: Sequence[StepRecord], resolved: int, *, everything: bool = False
    ) -> None:
        """Report what is due, or as much of everything as is known.

        Args:
            known: the last steps with energy.
            resolved: how many steps have energy.
            everything: report also what is not complete.
        """
        while self.is_due(resolved) or (everything and self._marks):
            steps, at_step = self._marks.popleft()
            part = StepSums()
            for step in known:
                if self._taken <= step.index < steps:
                    part.add(step)
                    self.sums.add(step)
            self._taken = steps
            numbers = part.numbers()
            for logger in self._loggers():
                report = getattr(logger, "steps", None)
                if numbers and report is not None:
                    report(numbers, at_step)
