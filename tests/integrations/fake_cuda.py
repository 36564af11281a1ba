"""Stand-in for a GPU's queue and clock, as far as events show them, for machines without a GPU.

Kernels run one after another on the device; events complete when the device gets to them; the
device's clock has an offset and drifts against the host's; every call costs host time; elapsed
times are 32-bit milliseconds with the resolution of real hardware. Host time is virtual.
"""

import struct
from types import SimpleNamespace
from typing import Any


class FakeGpu:
    def __init__(self, drift: float = 4.5e-6, offset_s: float = 1_234.5) -> None:
        self.now = 100.0
        self.drift = drift
        self.offset_s = offset_s
        self.busy_until = 0.0
        self.capturing = False
        self.broken = False
        self.synchronisations = 0
        self.calls = 0
        self.pinned_writes: list[tuple[float, Any, float]] = []

    # -- training ------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self.now

    def host_works(self, duration_s: float) -> None:
        self.now += duration_s

    def kernel(self, duration_s: float) -> None:
        self.host_works(5e-6)
        self.busy_until = max(self.busy_until, self.now) + duration_s

    def synchronize(self, device: int | None = None) -> None:
        self.synchronisations += 1
        self.now = max(self.now, self.busy_until) + 5e-6

    def device_clock(self, host_s: float) -> float:
        return (host_s - self.offset_s) * (1 - self.drift)

    # -- interface of torch ------------------------------------------------------------------

    @property
    def torch(self) -> Any:
        cuda = SimpleNamespace(
            Event=lambda enable_timing: FakeEvent(self),
            current_stream=lambda device: self,
            current_device=lambda: 0,
            synchronize=self.synchronize,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
        )
        return SimpleNamespace(
            cuda=cuda,
            float32="float32",
            empty=lambda n, dtype, pin_memory: SimpleNamespace(
                unbind=lambda: [FakeSlot(self) for _ in range(n)]
            ),
        )


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.done_s: float | None = None

    def record(self, stream: FakeGpu) -> None:
        if self.gpu.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        self.gpu.host_works(2e-6)
        # Even an idle device needs some microseconds to get to the event.
        self.done_s = max(self.gpu.busy_until, self.gpu.now + 3e-6)
        self.gpu.busy_until = self.done_s

    def query(self) -> bool:
        self.gpu.host_works(0.3e-6)
        assert self.done_s is not None
        return self.done_s <= self.gpu.now

    def synchronize(self) -> None:
        self.gpu.synchronisations += 1
        assert self.done_s is not None
        self.gpu.now = max(self.gpu.now, self.done_s) + 4e-6

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.done_s is not None
        assert other.done_s is not None
        if other.done_s > self.gpu.now:
            raise RuntimeError("CUDA error: device not ready")
        elapsed_s = self.gpu.device_clock(other.done_s) - self.gpu.device_clock(self.done_s)
        rounded_ms = round(elapsed_s * 1e3 / 0.0005) * 0.0005
        return float(struct.unpack("f", struct.pack("f", rounded_ms))[0])


class FakeSlot:
    """Page-locked memory: it has the value only once the device has reached the copy."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.arrives_s = 0.0
        self.value = float("nan")

    def copy_(self, tensor: "FakeTensor", non_blocking: bool) -> None:
        assert non_blocking
        self.gpu.kernel(2e-6)
        self.arrives_s, self.value = self.gpu.busy_until, tensor.value

    def __float__(self) -> float:
        assert self.gpu.now >= self.arrives_s, "read before it arrived"
        return self.value


class FakeTensor:
    is_cuda = True

    def __init__(self, value: float) -> None:
        self.value = value

    def numel(self) -> int:
        return 1

    def detach(self) -> "FakeTensor":
        return self

    def reshape(self, shape: tuple[int, ...]) -> "FakeTensor":
        return self

    def item(self) -> float:
        raise AssertionError("item() synchronises")

    __float__ = item
