"""Promises of framework hooks: logged values reach their step, and open runs of trackers are
noted.
"""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from wattloop.integrations.step_hook import framework_hooks
from wattloop.integrations.step_hook.collector import StepCollector, complete_epochs
from wattloop.integrations.step_hook.program_steps import ProgramSteps
from wattloop.measure.api import Measurement, active_session


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramSteps:
    """The recorder of this process, in a program that does not record its steps itself."""
    monkeypatch.delitem(sys.modules, "wattloop.integrations.training_meter", raising=False)
    for name in ("mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "steps").mkdir()
    made = ProgramSteps(str(tmp_path / "steps"))
    monkeypatch.setattr(ProgramSteps, "_shared", made)
    return made


def collected(steps: ProgramSteps, machine: Machine) -> list[dict[str, Any]]:
    """Return the events of a run whose program wrote these steps."""
    measurement = Measurement("run", {}).begin()
    session = active_session()
    assert session is not None
    collector = StepCollector(session, Path(steps._folder))
    steps._finish()
    collector.finish()
    measurement.end()
    return [event for journal in machine.journals() for event in journal.events]


def test_complete_epochs() -> None:
    """Promise: an epoch ends at the step where the trainer's count passes a whole number."""
    assert complete_epochs([(3, 0.75), (6, 1.5), (8, 2.0)]) == [(0, 0, 3), (1, 4, 7)]
    assert complete_epochs([(4, 1.0), (8, 2.0)]) == [(0, 0, 3), (1, 4, 7)]
    # 3.33 steps an epoch, as Trainer rounds them; the last one is not complete
    assert complete_epochs([(10, 3.0), (12, 3.6)]) == [(0, 0, 2), (1, 3, 6), (2, 7, 9)]
    assert complete_epochs([(2, 0.4)]) == []
    assert complete_epochs([(5, 1.0), (5, 1.0), (6, 0.2)]) == [(0, 0, 4)]


def test_lightning_reports_loss_and_epoch(steps: ProgramSteps, machine: Machine) -> None:
    """Promise: rows of steps have the batch's loss, and epochs are recorded with their energy."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    call = types.ModuleType("call")
    call._call_callback_hooks = lambda trainer, hook, *_, **__: hook  # type: ignore[attr-defined]
    framework_hooks.install_lightning(call)
    for epoch in range(2):
        trainer = types.SimpleNamespace(current_epoch=epoch)
        for batch in range(3):
            steps.step()
            output = {"loss": torch.tensor(epoch + batch / 4.0, requires_grad=True)}
            hooks = call._call_callback_hooks(trainer, "on_train_batch_end", output, None, batch)
            assert hooks == "on_train_batch_end"
        call._call_callback_hooks(trainer, "on_train_epoch_end", monitoring_callbacks=True)
    events = collected(steps, machine)
    rows = [event for event in events if event["type"] == "steps"]
    assert [loss for event in rows for loss in event["loss"]] == [0, 0.25, 0.5, 1, 1.25, 1.5]
    epochs = [event for event in events if event.get("kind") == "epoch"]
    assert [(e["index"], e["metrics"]["steps"]) for e in epochs] == [(0, 3), (1, 3)]
    assert epochs[0]["begin_s"] < epochs[0]["end_s"] <= epochs[1]["begin_s"]


def test_a_loss_on_a_device_is_not_waited_for(steps: ProgramSteps) -> None:
    class OnGpu:
        device = types.SimpleNamespace(type="cuda")

        def __float__(self) -> float:
            raise AssertionError("waited for the device")

    assert not isinstance(framework_hooks._host_number(OnGpu()), float)
    steps.metric(framework_hooks.LOSS, framework_hooks._host_number(OnGpu()))
    assert not steps._records


def test_open_runs_of_trackers_are_noted(
    steps: ProgramSteps, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the open run is known after the program, without a password, and so is a resumed
    trainer's count.
    """
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    mlflow = types.SimpleNamespace(
        active_run=lambda: run, get_tracking_uri=lambda: "https://me:secret@host/api"
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    writer = types.SimpleNamespace(SummaryWriter=type("SummaryWriter", (), {"log_dir": "runs/a"}))
    framework_hooks.install_tensorboard(writer)
    writer.SummaryWriter()
    steps.step()
    steps.metric(framework_hooks.TRAINER_STEP, 501)
    steps.step()
    (event,) = [e for e in collected(steps, machine) if e["type"] == "trackers"]
    assert event["steps_before"] == 500
    assert event["runs"] == [
        {"tracker": "tensorboard", "into": str(tmp_path / "runs/a")},
        {"tracker": "mlflow", "into": "abc", "uri": "https://host/api"},
    ]
    assert "secret" not in json.dumps(event)


def test_a_tracker_that_raises_does_not_stop_the_steps(
    steps: ProgramSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ConnectionError("no server")

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(active_run=broken))
    steps.step()
    assert (steps.count, steps._off) == (1, False)
