"""Promises of `wattloop.predict` for programs: one call, and nothing heavy before it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wattloop.predict
from tests.predict.small import small_workload
from wattloop.core.errors import ConfigError
from wattloop.predict import predict


def test_every_name_exists_and_others_do_not() -> None:
    """Every name in `__all__` exists."""
    for name in wattloop.predict.__all__:
        assert getattr(wattloop.predict, name) is not None
    with pytest.raises(AttributeError, match="forecats"):
        _ = wattloop.predict.forecats  # type: ignore[attr-defined]  # the very point


def test_importing_loads_neither_torch_nor_numpy() -> None:
    """A program pays for the imports only when it predicts."""
    code = "import sys, wattloop.predict; print(*({'torch', 'numpy', 'yaml'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_a_module_with_inputs_and_loss_is_predicted_as_given() -> None:
    """Given inputs are not guessed, and the module is unchanged."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.Linear(16, 4).eval()
    before = module.weight.clone()
    inputs = torch.empty(32, 16, device="meta")
    forecast = predict(
        module, inputs=inputs, loss=lambda y: y.square().mean(), optimizer="sgd", host_speed=1
    )
    assert forecast.workload.batch == 32
    assert forecast.workload.parameters == 16 * 4 + 4
    assert forecast.workload.optimizer == "sgd"
    assert forecast.notes == ()
    assert torch.equal(module.weight, before)
    assert not module.training


def test_a_workload_answers_for_any_gpu_and_run() -> None:
    """One trace serves many predictions."""
    one = predict(small_workload(), gpu="a100", steps=100)
    assert one.run is not None
    assert one.run.time_s.value == pytest.approx(100 * one.prediction.step_s)
    assert predict(small_workload(), gpu="h200").run is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu": 5}, "gpu 5: must be a name such as 'h200'"),
        ({"gpu": None}, "gpu None: must be a name such as 'h200'"),
        ({"batch": "8"}, "batch '8': must be a whole number of at least 1"),
        ({"batch": 2.5}, "batch 2.5: must be a whole number"),
        ({"gpus": "2"}, "gpus '2': must be a whole number"),
        ({"gpus": True}, "gpus True: must be a whole number"),
        ({"cap_w": "300"}, "cap '300': must be a number"),
        ({"samples_s": [9]}, r"samples-per-second \[9\]: must be a number"),
        ({"host_speed": "0.8"}, "host-speed '0.8': must be a number"),
        ({"steps": "5"}, "steps '5': must be a number above 0"),
        ({"steps": 2.5}, "steps 2.5: must be a whole number"),
        ({"steps": 10**400}, "steps 1e.15 or more: no run is that long"),
        ({"epochs": 1e300, "samples": 10}, "epochs 1e.15 or more: no run is that long"),
        ({"epochs": float("nan"), "samples": 10}, "epochs nan: must be above 0"),
    ],
)
def test_arguments_of_another_kind_are_refused(options: dict[str, object], said: str) -> None:
    """A ConfigError that names the argument, never a bare TypeError or AttributeError."""
    with pytest.raises(ConfigError, match=said):
        predict(small_workload(), **options)  # type: ignore[arg-type]  # wrong on purpose


def test_whole_numbers_of_other_libraries_are_numbers() -> None:
    """Numbers of numpy are accepted, and can be written as JSON."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    forecast = predict(small_workload(), gpus=numpy.int64(2), steps=numpy.int32(5))
    assert forecast.run is not None
    assert forecast.run.steps == 5
    assert json.loads(json.dumps(forecast.to_dict()))["gpus"] == 2


def test_a_whole_number_with_a_point_is_that_number() -> None:
    """8.0 is a batch of 8, and 2.0 are 2 GPUs."""
    torch = pytest.importorskip("torch", reason="modules are torch's")
    forecast = predict(torch.nn.Linear(16, 4), batch=8.0, gpus=2.0, steps=5.0)  # type: ignore[arg-type]  # floats on purpose
    assert forecast.run is not None
    shown = (forecast.workload.batch, forecast.placement.gpus, forecast.run.steps)
    assert [str(number) for number in shown] == ["8", "2", "5"]
