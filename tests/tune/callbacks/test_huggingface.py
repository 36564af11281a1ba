"""Hugging Face's trainer with a model of a few numbers."""

import pytest

from tests.support.libraries import library

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library("transformers", reason="transformers is not installed")
library("accelerate", reason="the trainer needs accelerate")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.ones(4), "labels": torch.tensor(1.0)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        value = self.layer(x).squeeze(-1)
        return {"loss": (value - labels).square().mean(), "logits": value}


def test_every_evaluation_is_reported(trial, tmp_path):
    """Promise: the trainer's own names, at the epoch it says, steps counted and expected."""
    from transformers import Trainer, TrainingArguments

    from wattloop.tune.callbacks.huggingface import TuneCallback

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        eval_strategy="epoch",
        report_to=[],
        save_strategy="no",
        logging_steps=2,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=Model(),
        args=arguments,
        train_dataset=Data(),
        eval_dataset=Data(),
        callbacks=[TuneCallback(trial)],
    )
    trainer.train()
    evaluations = [(epoch, found) for epoch, found in trial.reports if epoch is not None]
    assert [epoch for epoch, _ in evaluations] == [1.0, 2.0]
    assert all("eval_loss" in found for _, found in evaluations)
    assert any("loss" in found for epoch, found in trial.reports if epoch is None)
    assert trial.steps_seen == 8
    assert trial.expected == 4
