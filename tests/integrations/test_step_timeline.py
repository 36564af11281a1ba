import sys

import pytest

from tests.integrations.fake_cuda import FakeGpu, FakeTensor
from wattloop.integrations.step_timeline import CudaTimeline, Edge, TorchTimeline


def train(
    gpu: FakeGpu, timeline: CudaTimeline, steps: int, gpu_s: float, host_s: float
) -> list[tuple[Edge, float]]:
    """Run steps that take the GPU `gpu_s` and the host `host_s`; return edges and their true
    times.
    """
    edges = []
    for _ in range(steps):
        gpu.host_works(host_s)
        gpu.kernel(gpu_s)
        # A queue takes about a thousand launches; then the host waits.
        gpu.now = max(gpu.now, gpu.busy_until - 0.5)
        edge = timeline.mark()
        event = edge.event
        edges.append((edge, event.done_s if event is not None else gpu.busy_until))
    return edges


@pytest.mark.parametrize(("gpu_s", "host_s"), [(0.012, 0.003), (0.003, 0.012)])
def test_edges_are_where_the_gpu_passed_them(gpu_s: float, host_s: float) -> None:
    """Promise: edges lie on the device's time line, within the stated half-width, whether the GPU
    or the host is the bottleneck, and nothing is synchronised for them.
    """
    gpu = FakeGpu()
    timeline = CudaTimeline(gpu.torch, gpu.now_s)
    at_start = gpu.synchronisations
    edges = train(gpu, timeline, 5_000, gpu_s, host_s)
    assert gpu.synchronisations == at_start
    timeline.finish()
    for edge, true_s in edges:
        assert edge.time_s is not None
        assert abs(edge.time_s - true_s) <= edge.blur_s + 2e-6
        assert edge.blur_s < 0.005


def test_drift_is_followed_for_a_day() -> None:
    """Promise: 32-bit milliseconds and 30 ppm of drift do not move edges, for any duration."""
    gpu = FakeGpu(drift=30e-6)
    timeline = CudaTimeline(gpu.torch, gpu.now_s)
    for _ in range(2_000):
        timeline.mark()  # an epoch begins: the GPU is idle
        ((edge, true_s),) = train(gpu, timeline, 1, 0.001, 0.01)
        gpu.host_works(43.0)
        timeline.poll()
        assert edge.time_s is not None
        assert abs(edge.time_s - true_s) <= edge.blur_s + 2e-6
        assert edge.blur_s < 100e-6
    assert timeline.drift == pytest.approx(30e-6, abs=3e-6)


def test_events_are_reused() -> None:
    """Promise: a long training does not collect events."""
    gpu = FakeGpu()
    made = []
    torch = gpu.torch
    create = torch.cuda.Event
    torch.cuda.Event = lambda enable_timing: made.append(1) or create(enable_timing)
    timeline = CudaTimeline(torch, gpu.now_s)
    train(gpu, timeline, 10_000, 0.012, 0.003)
    assert len(made) < 100


def test_a_loss_on_the_gpu_is_not_waited_for() -> None:
    """Promise: losses arrive with their step, without item() and without synchronising."""
    gpu = FakeGpu()
    timeline = CudaTimeline(gpu.torch, gpu.now_s)
    at_start = gpu.synchronisations
    kept = []
    for i in range(50):
        gpu.kernel(0.012)
        values = {"loss": FakeTensor(i / 10), "rate": 0.1}
        timeline.mark(values)
        kept.append(values)
    assert gpu.synchronisations == at_start
    timeline.finish()
    assert [v["loss"] for v in kept] == [i / 10 for i in range(50)]
    assert all(v["rate"] == 0.1 for v in kept)


def test_a_graph_being_captured_is_not_touched() -> None:
    """Promise: no event of Wattloop gets into the user's CUDA graph."""
    gpu = FakeGpu()
    timeline = CudaTimeline(gpu.torch, gpu.now_s)
    gpu.capturing = True
    edge = timeline.mark()
    assert edge.event is None
    assert edge.time_s == edge.host_s


def test_a_broken_device_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: when CUDA fails, pending edges get the host's time and the loop continues."""
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    timeline = TorchTimeline(gpu.now_s)
    timeline.mark()
    gpu.kernel(1.0)
    first = timeline.mark()
    assert first.time_s is None
    gpu.broken = True
    second = timeline.mark()
    assert first.time_s == first.host_s
    assert first.blur_s > 0.01
    assert second.time_s == second.host_s
    timeline.finish()


def test_detection_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a process that has not chosen its GPU can still do so; edges are host times."""
    gpu = FakeGpu()
    torch = gpu.torch
    torch.cuda.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "torch", torch)
    timeline = TorchTimeline(gpu.now_s)
    assert timeline.mark().time_s is not None
    assert timeline.cuda is None
    torch.cuda.is_initialized = lambda: True
    timeline.mark()
    assert timeline.cuda is not None


def test_exact_edges_synchronise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: on request each edge waits for the device, and is then the host's time."""
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    timeline = TorchTimeline(gpu.now_s, exact=True)
    gpu.kernel(0.5)
    edge = timeline.mark()
    assert gpu.synchronisations == 1
    assert edge.time_s is not None
    assert edge.time_s >= 100.5
    assert edge.blur_s == 0.0
