"""Lightning under its present name."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_every_epoch_is_reported_with_what_the_model_logs(trial):
    """Promise: logged metrics, epochs from 1, steps counted and expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, about themselves
        pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
        from wattloop.tune.callbacks.lightning import TuneCallback

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, index):
                return self.layer(batch[0]).square().mean()

            def validation_step(self, batch, index):
                self.log("val_loss", self.layer(batch[0]).square().mean())

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        data = torch.utils.data.TensorDataset(torch.ones(8, 4))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            callbacks=[TuneCallback(trial)],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Model(), loader, loader)
    assert [epoch for epoch, _ in trial.reports] == [1, 2]
    assert trial.reports[1][1]["val_loss"] < trial.reports[0][1]["val_loss"]
    assert trial.steps_seen == 8
    assert trial.expected == 4
