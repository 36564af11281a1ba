import json
import os
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.integrations.test_loggers import wandb_rows
from tests.support.libraries import library
from wattloop.core.results import RunStatus

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library("accelerate", reason="the Trainer needs accelerate")
transformers = library("transformers", reason="transformers is not installed")
measured = library("wattloop.integrations.huggingface", reason="")


class Tiny(torch.nn.Module):  # type: ignore[name-defined,misc] # torch is found at run time
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer(folder: Path, callbacks: list[Any], **arguments: Any) -> Any:
    torch.manual_seed(0)
    rows = [{"x": torch.randn(4), "labels": i % 2} for i in range(16)]
    return transformers.Trainer(
        model=Tiny(),
        args=transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            logging_steps=2,
            eval_strategy="epoch",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=3,
            **arguments,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=callbacks,
    )


def test_trainer_is_measured_and_not_changed(machine: Machine, tmp_path: Path) -> None:
    """Promise: steps, epochs, losses and evaluation metrics of a real Trainer; same weights."""
    plain = trainer(tmp_path, [], report_to="none")
    plain.train()
    energy = measured.EnergyCallback()
    watched = trainer(tmp_path, [energy], report_to="none")
    watched.train()
    meter = energy.meter
    assert meter.fault is None
    assert [e.steps for e in meter.epochs] == [4, 4]
    assert len(meter.steps) == 8
    assert all(e.final and e.energy_j and e.energy_j > 0 for e in meter.epochs)
    assert "loss" in meter.epochs[0].metrics
    events = [event for journal in machine.journals() for event in journal.events]
    told = [event["value"] for event in events if event.get("type") == "precision"]
    assert told == ["float32"]  # advice uses it
    assert "eval_loss" in meter.epochs[1].metrics
    assert torch.equal(plain.model.layer.weight, watched.model.layer.weight)
    assert meter.run is not None


def test_a_second_training_is_a_run_of_its_own(machine: Machine, tmp_path: Path) -> None:
    """Promise: `train()` twice gives two runs."""
    energy = measured.EnergyCallback()
    watched = trainer(tmp_path, [energy], report_to="none")
    watched.train()
    first = energy.meter.run
    watched.train()
    second = energy.meter.run
    assert first is not None
    assert second is not None
    assert first.run_id != second.run_id


def test_a_training_that_broke_off_is_ended_by_the_next(machine: Machine, tmp_path: Path) -> None:
    """Promise: after ctrl-C in a notebook, `train()` again is a run of its own, not a part."""

    class Interrupting(transformers.TrainerCallback):  # type: ignore[name-defined,misc] # as above
        """A user who stops the cell."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    energy = measured.EnergyCallback()
    watched = trainer(tmp_path, [energy, Interrupting()], report_to="none")
    with pytest.raises(KeyboardInterrupt):
        watched.train()
    broken = energy.meter
    watched.pop_callback(Interrupting)
    watched.train()
    assert broken.run is not None
    assert broken.run.status is RunStatus.FAILED
    assert energy.meter.run is not None
    assert energy.meter.run.run_id != broken.run.run_id


@pytest.mark.parametrize("attached", [False, True])
def test_the_trainers_tensorboard_gets_the_energy(
    machine: Machine, tmp_path: Path, attached: bool
) -> None:
    """Promise: for a trainer that writes TensorBoard, epochs and totals go to the same place."""
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    watched = trainer(
        tmp_path, [] if attached else [measured.EnergyCallback()], report_to="tensorboard"
    )
    if attached:
        measured.EnergyCallback.attach(watched)
    watched.train()
    (folder,) = {p.parent for p in tmp_path.rglob("events.out.tfevents.*")}
    board = events.EventAccumulator(str(folder))
    board.Reload()
    assert [e.step for e in board.Scalars("energy/epoch_energy_j")] == [4, 8]
    at_steps = [e.step for e in board.Scalars("train/loss")]
    assert [e.step for e in board.Scalars("energy/step_j")] == at_steps == [2, 4, 6, 8]
    (total,) = board.Scalars("energy/total_j")
    assert total.step == 8
    assert [e.value for e in board.Scalars("energy/total_steps")] == [8]
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1  # the trainer's own file


def test_the_trainers_mlflow_run_gets_every_epoch_and_the_totals(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: at the trainer's steps, though it ends its MLflow run when the training ends."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    mlflow.set_experiment("trainer")  # not the one of another test
    energy = measured.EnergyCallback()
    trainer(tmp_path, [energy], report_to="mlflow").train()
    assert mlflow.active_run() is None
    client = mlflow.tracking.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    history = client.get_metric_history(run.info.run_id, "energy/epoch_energy_j")
    assert sorted(m.step for m in history) == [4, 8]
    total_j = energy.meter.energy_so_far_j()
    assert run.data.metrics["energy/total_j"] == pytest.approx(total_j)
    for name, steps in (("energy/total_j", [8]), ("energy/step_j", [2, 4, 6, 8])):
        found = client.get_metric_history(run.info.run_id, name)
        assert sorted(m.step for m in found) == steps
    assert [step.loss is not None for step in energy.meter.steps] == [False, True] * 4


TRACKERS = ("wandb", "trackio", "comet_ml", "clearml")


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_of_the_trainer_gets_steps_epochs_and_totals(
    tracker: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the tracker's own offline file has all values at the trainer's steps."""
    offline = {
        **{"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"},
        **{"COMET_OFFLINE_DIRECTORY": str(tmp_path), "COMET_START_ONLINE": "0"},
        **{"COMET_API_KEY": "none", "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(tmp_path)},
        **{"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": str(tmp_path)},
    }
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    module = pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    energy = measured.EnergyCallback()
    if tracker == "clearml":  # a task that does not check which packages the tests import
        module.Task.force_requirements_env_freeze(requirements_file=os.devnull)
        quiet = {"auto_connect_streams": False, "auto_resource_monitoring": False}
        module.Task.init("tests", "energy", auto_connect_frameworks=False, **quiet)
    trainer(tmp_path, [energy], report_to=tracker).train()
    if tracker == "clearml":
        module.Task.current_task().close()
    if tracker == "wandb":
        module.finish()
        module.teardown()  # writes its file to the end
    if tracker == "comet_ml":
        module.get_running_experiment().end()
    found = {
        "wandb": read_wandb,
        "trackio": read_trackio,
        "comet_ml": read_comet,
        "clearml": read_clearml,
    }[tracker](tmp_path)
    assert [step for step, _ in found["energy/step_j"]] == [2, 4, 6, 8]
    epochs = [0, 1] if tracker == "wandb" else [4, 8]  # W&B has an axis for epochs
    assert [step for step, _ in found["energy/epoch_energy_j"]] == epochs
    energies_j = [value for _, value in found["energy/epoch_energy_j"]]
    assert energies_j == pytest.approx([epoch.energy_j for epoch in energy.meter.epochs])
    last = None if tracker == "wandb" else 8  # a summary has no step
    total_j = energy.meter.energy_so_far_j()
    assert found["energy/total_j"] == [(last, pytest.approx(total_j))]
    assert [value for _, value in found["energy/total_steps"]] == [8]


Found = dict[str, list[tuple[int | None, float]]]


def read_wandb(folder: Path) -> Found:
    found: Found = {}
    rows, summary = wandb_rows(folder)
    for row in rows:
        for name, value in row.items():
            axis = "energy/epoch" if name.startswith("energy/epoch") else "energy/step"
            found.setdefault(name, []).append((row.get(axis), value))
    totals = {name: value for name, value in summary.items() if name.startswith("energy/total")}
    return found | {name: [(None, value)] for name, value in totals.items()}


def read_trackio(folder: Path) -> Found:
    (path,) = folder.glob("*.db")
    found: Found = {}
    own_steps = []
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    for own_step, text in rows:
        metrics = json.loads(text)
        if "train/loss" in metrics or "eval/loss" in metrics:
            own_steps.append(own_step)
        for name, value in metrics.items():
            found.setdefault(name, []).append((metrics.get("train/global_step"), value))
    assert own_steps == list(range(6))  # the trainer's rows are where they would be without us
    return found


def read_comet(folder: Path) -> Found:
    (path,) = folder.glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("messages.json").decode().splitlines()
    found: Found = {}
    for message in map(json.loads, lines):
        metric = (message.get("payload") or {}).get("metric")
        if isinstance(metric, dict):
            pair = (metric.get("step"), float(metric["metricValue"]))
            found.setdefault(metric["metricName"], []).append(pair)
    return found


def read_clearml(folder: Path) -> Found:
    (path,) = folder.glob("offline/*/metrics.jsonl")
    found: Found = {}
    for line in path.read_text().splitlines():
        for event in json.loads(line):
            if event.get("metric") == "energy":
                pair = (event["iter"], event["value"])
                found.setdefault(f"energy/{event['variant']}", []).append(pair)
    return found
