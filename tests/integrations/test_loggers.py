import importlib
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.integrations.test_stored_steps import EPOCH, PHASES, STEPS, add_run
from wattloop.core.errors import ConfigError
from wattloop.integrations.loggers import (
    TensorBoardLogger,
    WandbLogger,
    active_loggers,
    export_to_tracker,
)
from wattloop.integrations.stored_steps import read_tracker_rows
from wattloop.integrations.torch_loop import EnergyMeter
from wattloop.integrations.training_meter import TrainingMeter
from wattloop.store.database import Store, open_store
from wattloop.store.runs import RunRecord, find_run


def train(meter: TrainingMeter) -> None:
    with meter:
        for _ in range(2):
            meter.epoch_begin()
            time.sleep(0.05)
            meter.step_end()
            meter.epoch_end()


def test_tensorboard_gets_epochs_and_totals(machine: Machine, tmp_path: Path) -> None:
    """Promise: a writer that is passed in gets energy, power and time per epoch, and totals."""
    board = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with board.SummaryWriter(str(tmp_path / "board")) as writer:
        meter = EnergyMeter(writer=writer)
        train(meter)
    found = events.EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    scalars = found.Scalars("energy/epoch_energy_j")
    assert [s.step for s in scalars] == [0, 1]
    assert [s.value for s in scalars] == pytest.approx([e.energy_j for e in meter.epochs], rel=1e-5)
    tags = set(found.Tags()["scalars"])
    assert {"energy/epoch_power_w", "energy/epoch_time_s", "energy/total_j"} <= tags
    assert "energy/epoch_cpu0_package_j" in tags


def test_the_active_mlflow_run_gets_them(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: with an MLflow run open, epochs and totals are its metrics."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    mlflow.set_experiment("energy")
    with mlflow.start_run() as run:
        meter = TrainingMeter()
        train(meter)
    client = mlflow.tracking.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "energy/epoch_energy_j")
    assert [m.step for m in history] == [0, 1]
    data = client.get_run(run.info.run_id).data.metrics
    assert data["energy/total_j"] == pytest.approx(meter.energy_so_far_j())


def test_the_open_wandb_run_gets_them(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: with a W&B run open, epochs are logged and totals are in its summary."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb = pytest.importorskip("wandb", reason="W&B is not installed")
    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off")
    run = wandb.init(dir=str(tmp_path), project="energy", settings=settings)
    try:
        meter = TrainingMeter()
        train(meter)
    finally:
        run.finish()
        wandb.teardown()
    rows, summary = wandb_rows(tmp_path)
    assert [row["energy/epoch"] for row in rows] == [0, 1]
    assert summary["energy/total_j"] == pytest.approx(meter.energy_so_far_j())
    assert not [logger for logger in active_loggers() if "Wandb" in type(logger).__name__]


def wandb_rows(folder: Path) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return rows and summary of W&B's file: LevelDB's log format after a head of seven bytes."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, position, part = path.read_bytes(), 7, b""
    rows, summary = [], {}
    while position < len(data):
        if (left := 32_768 - position % 32_768) < 7:
            position += left
            continue
        size, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        part = (b"" if kind <= 2 else part) + data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind not in (1, 4):
            continue
        record = records.Record.FromString(part)
        for items, found in ((record.history.item, row := {}), (record.summary.update, summary)):
            found |= {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
        if row:
            rows.append(row)
    return rows, summary


class RunStandIn:
    """A W&B run as far as rows go: one open row, which a later step or a commit completes."""

    def __init__(self) -> None:
        self.step = 0
        self.summary: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self._open: dict[str, float] = {}
        self._teardown_hooks: list[tuple[Callable[[], None], str]] = []

    def define_metric(self, name: str, **options: object) -> None:
        pass

    def log(
        self, data: dict[str, float], step: int | None = None, commit: bool | None = None
    ) -> None:
        if step is not None and step < self.step:
            return  # W&B drops it
        if step is not None and step > self.step:
            self._complete(step)
        self._open |= data
        if commit or (commit is None and step is None):
            self._complete(self.step + 1)

    def finish(self) -> None:
        for call, _ in self._teardown_hooks:
            call()
        self._complete(self.step + 1)

    def _complete(self, step: int) -> None:
        if self._open:
            self.rows.append({**self._open, "_step": self.step})
        self._open, self.step = {}, step


@pytest.fixture(params=["stand-in", "without hooks", "wandb"])
def wandb_run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Callable[[], list[dict[str, float]]]]:
    """Return a W&B run that is the open one, and a function that finishes it and returns its
    rows.
    """
    if request.param != "wandb":
        hooks = SimpleNamespace()
        if request.param == "stand-in":
            hooks.TeardownHook = lambda call, stage: (call, stage)
            hooks.TeardownStage = SimpleNamespace(EARLY="early")
        run = RunStandIn()
        monkeypatch.setitem(sys.modules, "wandb.sdk.wandb_run", hooks)
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
        return run, lambda: (run.finish(), run.rows)[1]
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb = pytest.importorskip("wandb", reason="W&B is not installed")
    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off")
    run = wandb.init(dir=str(tmp_path), project="energy", settings=settings)
    # Its service writes the file to its end, and forgets the settings, when it is torn down.
    return run, lambda: (run.finish(), wandb.teardown(), wandb_rows(tmp_path)[0])[2]


@pytest.mark.parametrize("every", [1, 2, 10], ids=["often", "seldom", "never"])
@pytest.mark.parametrize("explicit", [False, True], ids=["counted", "explicit"])
def test_wandb_has_every_row_of_the_program_and_of_wattloop(
    every: int, explicit: bool, wandb_run: tuple[Any, Callable[[], list[dict[str, float]]]]
) -> None:
    """Promise: however often a program logs, at its own steps too, no report overwrites another,
    and the program's rows are those that it has without Wattloop.
    """
    run, finish = wandb_run
    (logger,) = [found for found in active_loggers() if isinstance(found, WandbLogger)]
    own = []
    for epoch in range(5):
        logger.write({"energy/step_j": 10.0 + epoch}, 8 * epoch, None, total=False)
        logger.write({"energy/epoch_energy_j": 100.0 + epoch}, 8 * epoch, epoch, total=False)
        if epoch % every == every - 1:
            own.append((epoch if explicit else len(own), epoch))
            run.log({"loss": epoch}, step=epoch if explicit else None)
            if explicit:
                run.log({"accuracy": 0.5}, step=epoch)
    if explicit:
        run.log({"test": 1}, step=5)  # after the training
    rows = finish()
    assert [(row["_step"], row["loss"]) for row in rows if "loss" in row] == own
    assert all(row["accuracy"] == 0.5 for row in rows if "loss" in row and explicit)
    assert [row["_step"] for row in rows if "test" in row] == ([5] if explicit else [])
    steps = [(r["energy/step"], r["energy/step_j"]) for r in rows if "energy/step" in r]
    assert steps == [(8 * epoch, 10 + epoch) for epoch in range(5)]
    epochs = [(r["energy/epoch"], r["energy/epoch_energy_j"]) for r in rows if "energy/epoch" in r]
    assert epochs == [(epoch, 100 + epoch) for epoch in range(5)]


def test_a_logger_that_fails_costs_nothing(machine: Machine) -> None:
    """Promise: a service that is down is reported once and never disturbs the training."""

    class Down:
        calls = 0

        def add_scalar(self, *args: object) -> None:
            self.calls += 1
            raise ConnectionError("service is down")

    writer = Down()
    meter = TrainingMeter(loggers=(TensorBoardLogger(writer),))
    train(meter)
    assert meter.fault is None
    assert writer.calls == 1


def test_an_active_service_that_fails_is_reported_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a run that is open but unreachable causes one warning, not one per epoch."""

    class DownRun:
        calls = 0

        def define_metric(self, *args: object, **options: object) -> None:
            self.calls += 1
            raise ConnectionError("service is down")

    run = DownRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    train(TrainingMeter())
    assert run.calls == 1
    assert sum("service is down" in line for line in caplog.messages) == 1


def test_detection_of_loggers_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a program without MLflow or W&B does not load them because of Wattloop."""
    for name in ("mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert active_loggers() == []
    assert "mlflow" not in sys.modules
    assert "wandb" not in sys.modules


def stored_training(store: Store) -> RunRecord:
    """A run of four steps in two epochs, whose trainer resumed at step 100."""
    epochs = [
        {**EPOCH, "index": i, "begin_s": begin_s, "end_s": begin_s + 2.0}
        | {"energy": {"gpu:0": [500.0 + i, 1.0]}, "metrics": {"steps": 2}}
        for i, begin_s in enumerate((1_000.0, 1_002.0))
    ]
    steps = {**STEPS, "index": [0, 1, 2, 3], "epoch": [0, 0, 1, 1], "count": [1] * 4}
    steps |= {"begin_s": [1_000.0, 1_001.0, 1_002.0, 1_003.0]}
    steps |= {"end_s": [1_001.0, 1_002.0, 1_003.0, 1_004.0]}
    steps |= {"domains": ["gpu:0"], "energy_j": [[250.0, None, 250.0, 250.0]]}
    steps |= {"uncertainty_j": [[0.0] * 4], "loss": [2.0, None, 1.0, 1.0]}
    steps |= {"metrics": {"samples": [8] * 4}}
    trackers = {"type": "trackers", "time_s": 1_004.0, "runs": [], "steps_before": 100}
    add_run(store, steps, *epochs, PHASES, trackers)
    return find_run(store, "r1")


def test_a_stored_run_goes_into_tensorboard(tmp_path: Path) -> None:
    """Promise: steps, epochs and totals at the trainer's steps and at their time of day, once."""
    pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = str(tmp_path / "board")
    with open_store(tmp_path / "runs.db") as store:
        record = stored_training(store)
        rows = read_tracker_rows(store, record)
    export_to_tracker(record, rows, "tensorboard", folder)
    board = events.EventAccumulator(folder)
    board.Reload()
    found = board.Scalars("energy/step_j")
    assert [(e.step, e.value) for e in found] == [(101, 250), (103, 250), (104, 250)]
    wall_s = record.started_wall_s + 1_001.0 - record.started_s
    assert found[0].wall_time == pytest.approx(wall_s, abs=1e-3)
    epochs = [(e.step, e.value) for e in board.Scalars("energy/epoch_energy_j")]
    assert epochs == [(102, 500), (104, 501)]
    assert [e.step for e in board.Scalars("energy/total_tokens_per_j")] == [104]
    assert board.Scalars("energy/phase_start_up_j")[0].value == 300
    with pytest.raises(ConfigError, match="already"):
        export_to_tracker(record, rows, "tensorboard", folder)


def test_a_stored_run_goes_into_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: totals go into the run that the program had open, though it has ended, and only
    once.
    """
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    uri = f"file:{tmp_path / 'mlruns'}"
    client = mlflow.tracking.MlflowClient(uri)
    run_id = client.create_run(client.create_experiment("energy")).info.run_id
    client.set_terminated(run_id)
    with open_store(tmp_path / "runs.db") as store:
        record = stored_training(store)
        rows = read_tracker_rows(store, record)
    export_to_tracker(record, rows, "mlflow", run_id, uri)
    history = client.get_metric_history(run_id, "energy/epoch_energy_j")
    assert sorted((m.step, m.value) for m in history) == [(102, 500), (104, 501)]
    assert client.get_run(run_id).data.metrics["energy/total_j"] == record.energy_j
    with pytest.raises(ConfigError, match="already"):
        export_to_tracker(record, rows, "mlflow", run_id, uri)
    with pytest.raises(ConfigError, match="nothing"):
        export_to_tracker(record, rows, "mlflow", "nothing", uri)
