"""Promises of the check of a GPU before it is measured."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.calibrate import machine
from wattloop.predict.calibrate.gpu_sensor import GpuSensor
from wattloop.predict.calibrate.machine import CalibrationDevice, check_at_rest, refusal

GIB = 2**30


def test_a_gpu_at_rest_is_not_refused():
    """A context, a desktop, a short start-up, or a driver without values."""
    assert refusal(79 * GIB, 80 * GIB, [0.9, 0.0, 0.0]) == ""
    assert refusal(60 * GIB, 80 * GIB, [0.05, 0.12]) == ""
    assert refusal(79 * GIB, 80 * GIB, [None, None]) == ""


@pytest.mark.parametrize(
    ("free_gib", "shares", "told"),
    [
        (30, [0.0], "only 30.0 GiB of its 80.0 GiB of memory are free"),
        (79, [0.4, 1.0, None, 0.3], "busy 30% of the time with the work of others"),
    ],
)
def test_a_gpu_in_use_is_refused_with_the_reason(free_gib, shares, told):
    """The message names the obstacle."""
    assert told in refusal(free_gib * GIB, 80 * GIB, shares)


class _Gpu(CalibrationDevice):
    """A fake GPU with replaced answers of torch."""

    on_gpu = True


class _Busy(GpuSensor):
    def busy_share(self):
        return 0.97


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ((79 * GIB, 80 * GIB), "busy 97% of the time"),
        (
            RuntimeError("CUDA-capable device(s) is/are busy\nCompile with"),
            "cannot be used \\(CUDA",
        ),
    ],
)
def test_a_gpu_of_others_is_an_error_that_says_what_to_do(monkeypatch, memory, told):
    """The user reads the cause in one line, not in a traceback."""
    torch = pytest.importorskip("torch", reason="the suite measures torch")
    monkeypatch.setattr(machine, "PAUSE_S", 0)

    def look(device):
        if isinstance(memory, RuntimeError):
            raise memory
        return memory

    monkeypatch.setattr(torch.cuda, "mem_get_info", look)
    with pytest.raises(ConfigError, match=rf"--gpu .*{told}.*nvidia-smi"):
        check_at_rest(_Gpu("cpu", 4096, 0), _Busy())


def test_the_cpu_is_always_at_rest():
    """There the suite only tries the program."""
    pytest.importorskip("torch", reason="the suite measures torch")
    check_at_rest(CalibrationDevice("cpu", 4096, 0), _Busy())
