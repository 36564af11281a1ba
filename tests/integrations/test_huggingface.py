from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from wattloop.core.results import RunStatus  # noqa: E402 - after the skips
from wattloop.integrations.huggingface import EnergyCallback  # noqa: E402 - after the skips


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
    energy = EnergyCallback()
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
    assert told == ["float32"]  # advice asks for it
    assert "eval_loss" in meter.epochs[1].metrics
    assert torch.equal(plain.model.layer.weight, watched.model.layer.weight)
    assert meter.run is not None


def test_a_second_training_is_a_run_of_its_own(machine: Machine, tmp_path: Path) -> None:
    """Promise: `train()` twice gives two runs."""
    energy = EnergyCallback()
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
    energy = EnergyCallback()
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


class Interrupting(transformers.TrainerCallback):  # type: ignore[name-defined,misc] # as above
    """Somebody stops the cell."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("attached", [False, True])
def test_the_trainers_tensorboard_gets_the_energy(
    machine: Machine, tmp_path: Path, attached: bool
) -> None:
    """Promise: of a trainer that writes TensorBoard, epochs and totals are in the same place."""
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    watched = trainer(tmp_path, [] if attached else [EnergyCallback()], report_to="tensorboard")
    if attached:
        EnergyCallback.attach(watched)
    watched.train()
    (folder,) = {p.parent for p in tmp_path.rglob("events.out.tfevents.*")}
    board = events.EventAccumulator(str(folder))
    board.Reload()
    assert [e.step for e in board.Scalars("energy/epoch_energy_j")] == [0, 1]
    assert {"train/loss", "energy/total_j"} <= set(board.Tags()["scalars"])


def test_the_trainers_mlflow_run_gets_every_epoch_and_the_totals(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: though the trainer ends its MLflow run before it tells us that it is over."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    energy = EnergyCallback()
    trainer(tmp_path, [energy], report_to="mlflow").train()
    assert mlflow.active_run() is None
    client = mlflow.tracking.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    history = client.get_metric_history(run.info.run_id, "energy/epoch_energy_j")
    assert sorted(m.step for m in history) == [0, 1]
    total_j = energy.meter.energy_so_far_j()
    assert run.data.metrics["energy/total_j"] == pytest.approx(total_j)
