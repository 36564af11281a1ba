import csv
import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_fit_is_measured_under_both_names(package: str, machine: Machine, tmp_path: Path) -> None:
    """Promise: per batch and epoch, losses and validation metrics, into the trainer's logger."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # messages of Lightning about itself
        pl = pytest.importorskip(package, reason=f"{package} is not installed")
        energy = importlib.import_module("wattloop.integrations.lightning").EnergyCallback()
        logger = importlib.import_module(f"{package}.loggers").CSVLogger(str(tmp_path))
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=logger,
            callbacks=[energy],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=1,
            log_every_n_steps=1,
        )
        trainer.fit(_model(pl), _loader(), _loader())
    meter = energy.meter
    assert meter.fault is None
    assert [e.steps for e in meter.epochs] == [4, 4]
    assert all(s.loss is not None for s in meter.steps)
    assert "val_loss" in meter.epochs[1].metrics
    events = [event for journal in machine.journals() for event in journal.events]
    told = [event["value"] for event in events if event.get("type") == "precision"]
    assert told == ["32-true"]  # advice uses it
    assert all(e.energy_j and e.energy_j > 0 for e in meter.epochs)
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    def steps_of(name: str) -> list[int]:
        return sorted(int(row["step"]) for row in rows if row[name])

    # at the step where Lightning logs the model's values, though the energy is known later
    assert steps_of("energy/epoch_energy_j") == steps_of("loss_epoch") == [3, 7]
    assert steps_of("energy/step_j") == steps_of("loss_step") == list(range(8))
    assert steps_of("energy/total_j") == [7]
    (total,) = [row for row in rows if row["energy/total_j"]]
    assert float(total["energy/total_steps"]) == 8
    assert float(total["energy/total_samples"]) == 32
    per_sample_j = sum(s.energy_j or 0.0 for s in meter.steps) / 32
    assert float(total["energy/total_sample_j"]) == pytest.approx(per_sample_j, rel=1e-3)


def test_a_failed_fit_ends_its_run(machine: Machine) -> None:
    """Promise: an exception in the training ends the run as failed, and reaches the user."""
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    energy = importlib.import_module("wattloop.integrations.lightning").EnergyCallback()
    model = _model(pl)
    model.fail = True
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, callbacks=[energy],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        warnings.simplefilter("ignore")  # messages of Lightning about itself
        trainer.fit(model, _loader())
    assert energy.meter.run is not None
    assert energy.meter.run.status == "failed"


def _loader() -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    return torch.utils.data.DataLoader(data, batch_size=4)


def _model(pl: Any) -> Any:
    class Tiny(pl.LightningModule):  # type: ignore[misc] # the package is a parameter
        fail = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            if self.fail:
                raise ZeroDivisionError
            loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            logits = self.layer(batch[0])
            self.log("val_loss", torch.nn.functional.cross_entropy(logits, batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Tiny()
