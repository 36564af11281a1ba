"""Promises of the host's own time for a step."""

import time

from wattloop.predict.calibrate.host import dispatch_seconds


class _Gpu:
    """A GPU that records when it is waited for."""

    def __init__(self, on_gpu=True):
        self.on_gpu = on_gpu
        self.calls = []

    def synchronize(self):
        self.calls.append("synchronize")


class _Training:
    def __init__(self, gpu):
        self._gpu = gpu

    def forward(self):
        self._gpu.calls.append("forward")
        time.sleep(0.03)

    def backward(self):
        self._gpu.calls.append("backward")

    def update(self):
        self._gpu.calls.append("update")


def test_each_phase_is_timed_alone_on_an_idle_gpu():
    """The GPU is waited for before a phase begins, so that its queue is empty."""
    gpu = _Gpu()
    found = dispatch_seconds(gpu, _Training(gpu), longest_s=0.0)
    assert list(found) == ["forward", "backward", "optimizer"]
    assert found["forward"] >= 0.03
    one = ["synchronize", "forward", "synchronize", "backward", "synchronize", "update"]
    assert gpu.calls == one * 4 + ["synchronize"]


def test_where_the_host_runs_the_kernels_there_is_no_such_time():
    """The value is missing, instead of the time of the kernels."""
    gpu = _Gpu(on_gpu=False)
    assert dispatch_seconds(gpu, _Training(gpu)) is None
    assert gpu.calls == []
