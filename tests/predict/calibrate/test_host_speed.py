"""Promises of the measured dispatch speed of a host."""

import sys
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.calibrate.host import NETWORKS, measured_host_speed, speed_of
from wattloop.predict.models.kernels import KernelModel


def pretended(*, full: bool = False) -> Any:
    """Pretend that the processor is a GPU without a queue."""
    from wattloop.predict.calibrate.machine import CalibrationDevice

    class Pretended(CalibrationDevice):
        on_gpu = True

        def synchronize(self) -> None:
            if full:
                raise self.torch.cuda.OutOfMemoryError("CUDA out of memory")

        def free(self) -> None:
            pass

    return Pretended("cpu", 1e6, 0)


def test_the_speed_is_the_middle_round_of_the_middle_network() -> None:
    """An outlying network, and a round in which the host was busy, change nothing."""
    expected_s = {"a": 0.010, "b": 0.020, "c": 0.030}
    usual = {"a": 0.0125, "b": 0.025, "c": 0.090}
    slow = {name: 2 * seconds for name, seconds in usual.items()}
    found = speed_of([usual, slow, usual], expected_s)
    assert found.speed == pytest.approx(0.8)
    assert (found.low, found.high) == (pytest.approx(0.4), pytest.approx(0.8))
    assert found.dispatch_s == usual


def test_networks_are_trained_and_compared_with_their_traces() -> None:
    """Every network has its time and that of the constants (here a CPU plays the GPU)."""
    pytest.importorskip("torch", reason="networks are torch's")
    gpu, name = gpu_named("h200"), "tabular_resnet@4 2 fp32"
    told: list[str] = []
    with pretended() as bench:
        found = measured_host_speed(bench, KernelModel.for_gpu(gpu), gpu, [name], told.append)
    assert told[0] == name and told[-1].startswith("round ")
    assert 1e-3 < found.expected_s[name] < 0.1
    assert found.speed == pytest.approx(found.expected_s[name] / found.dispatch_s[name], rel=0.2)
    assert found.low <= found.speed <= found.high


def test_what_a_network_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a missing library or too little memory: a sentence with the remedy, no traceback."""
    pytest.importorskip("torch", reason="networks are torch's")
    gpu = gpu_named("h200")
    model, name = KernelModel.for_gpu(gpu), "tabular_resnet@4 2 fp32"
    with pretended(full=True) as bench, pytest.raises(ConfigError, match="memory is too small"):
        measured_host_speed(bench, model, gpu, [name])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pretended() as bench, pytest.raises(ConfigError, match=r"install wattloop\[torch,hf\]"):
        measured_host_speed(bench, model, gpu, [name, "electra_small@128 8 fp32"])


def test_all_its_networks_fit_in_the_queue_and_every_precision_is_had() -> None:
    """More kernels than can wait on a GPU would make the host wait for them."""
    pytest.importorskip("transformers", reason="networks are Hugging Face's")
    from wattloop.predict.calibrate.steps import subject_workload
    from wattloop.predict.models.kernels.fit import QUEUE

    for network in NETWORKS:
        name, batch, precision = network.split()
        workload = subject_workload(name, int(batch), precision)
        assert precision == "fp32"
        assert sum(op.kernels * op.count for op in workload.operations) < QUEUE
