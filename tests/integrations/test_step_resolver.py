import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from tests.integrations.fake_cuda import FakeGpu
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.integrations import step_resolver as resolver_module
from wattloop.integrations.records import EpochRecord, PendingStep
from wattloop.integrations.step_resolver import StepResolver
from wattloop.integrations.step_timeline import CudaTimeline, Edge
from wattloop.measure.session import Session
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.registry import Inventory

GPU_W, CPU_W = 600.0, 120.0


class VirtualMeter(Meter):
    name: ClassVar[str] = "virtual-test"

    def __init__(self, domain: Domain, value: Callable[[], Reading]) -> None:
        self._domain, self._value = domain, value

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        return [self._value()]


class Clock:
    """The fake GPU's host time as a clock."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.now_s = gpu.now_s
        self.wall_s = gpu.now_s

    def suspended_s(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nothing waits here")


def machine(gpu: FakeGpu, gpu_energy_j: Callable[[float], float] | None = None) -> Session:
    """A slow GPU counter with a gauge, and a quick CPU counter, read by hand."""
    energy_j = gpu_energy_j or (lambda t: GPU_W * t)

    def at_tick(t: float) -> float:
        return math.floor(t / 0.1) * 0.1

    def domain(name: str, kind: DomainKind, scope: Scope, period_s: float) -> Domain:
        return Domain(name=name, kind=kind, scope=scope, source="test", update_period_s=period_s)

    meters = [
        VirtualMeter(
            domain("gpu:0", DomainKind.COUNTER, Scope.GPU, 0.1),
            lambda: energy_j(at_tick(gpu.now)),
        ),
        VirtualMeter(
            domain("gpu:0", DomainKind.GAUGE, Scope.GPU, 0.1),
            lambda: (energy_j(at_tick(gpu.now)) - energy_j(at_tick(gpu.now) - 0.1)) / 0.1,
        ),
        VirtualMeter(
            domain("cpu:0/package", DomainKind.COUNTER, Scope.CPU, 0.001),
            lambda: CPU_W * gpu.now,
        ),
    ]
    context = Context(Host(), Settings(), Clock(gpu))
    return Session(
        context, Inventory(list(meters)), run_id="r", name="t", job=None, in_process=True
    )


def read(session: Session) -> None:
    for feed in session.feeds:
        feed.read()


def trained(
    gpu: FakeGpu, session: Session, resolver: StepResolver, steps: int, gap_s: float = 0.0
) -> list[Edge]:
    """Train with GPU-bound steps of 12 ms, sensors read every 100 ms and a pass every second."""
    timeline = CudaTimeline(gpu.torch, gpu.now_s)
    for wait_s in (0.0, 0.7, 3.0):  # in the order of the sampler
        gpu.host_works(wait_s)
        session.feeds[1].find_ticks(0.3, gpu.host_works)
        read(session)
    edges = [timeline.mark()]
    read_s = pass_s = gpu.now
    for i in range(steps):
        gpu.host_works(0.003 + gap_s)
        gpu.kernel(0.012)
        gpu.now = max(gpu.now, gpu.busy_until - 0.2)
        edges.append(timeline.mark())
        resolver.add_step(PendingStep(i, 0, edges[-2], edges[-1], {"loss": 1 / (i + 1)}))
        if gpu.now - read_s > 0.1:
            read_s = gpu.now
            read(session)
        if gpu.now - pass_s > 1.0:
            pass_s = gpu.now
            resolver.resolve()
    timeline.finish()
    gpu.host_works(0.15)
    read(session)
    resolver.resolve(force=True)
    return edges


def events(session: Session, kind: str) -> list[dict[str, Any]]:
    return [e for e in session._journal.events if e["type"] == kind]


def test_steps_telescope_to_the_energy_between_first_and_last_edge() -> None:
    """Promise: the sum over 1,000 steps is the energy from the first edge to the last, and the
    truth, per domain, although batches are resolved at different times.
    """
    gpu = FakeGpu()
    session = machine(gpu)
    resolver = StepResolver(session, lambda: None)
    edges = trained(gpu, session, resolver, 1_000)
    records = list(resolver.steps)
    assert [r.index for r in records] == list(range(1_000))
    first, last = edges[0], edges[-1]
    assert first.time_s is not None
    assert last.time_s is not None
    for name, whole in (
        ("gpu:0", session.between(first.time_s, last.time_s).domains[0].energy_j),
        ("cpu:0/package", session.between(first.host_s, last.host_s).domains[1].energy_j),
    ):
        total_j = sum(r.energy[name][0] for r in records)
        assert whole is not None
        assert total_j == pytest.approx(whole, rel=1e-6)
    gpu_j = sum(r.energy["gpu:0"][0] for r in records)
    assert gpu_j == pytest.approx(GPU_W * (last.time_s - first.time_s), rel=0.01)


def test_each_step_states_an_uncertainty_that_contains_the_truth() -> None:
    """Promise: a step's stated interval contains its true energy, also while power changes."""
    gpu = FakeGpu()

    def energy_j(t: float) -> float:  # 400 W to 700 W and back every 4 s
        return 550 * t - 150 * 4 / (2 * math.pi) * math.cos(2 * math.pi * t / 4)

    session = machine(gpu, energy_j)
    resolver = StepResolver(session, lambda: None)
    trained(gpu, session, resolver, 1_000)
    inside = 0
    widths = []
    for step in resolver.steps:
        stated_j, uncertainty_j = step.energy["gpu:0"]
        true_j = energy_j(step.end_s) - energy_j(step.begin_s)
        inside += abs(stated_j - true_j) <= uncertainty_j
        assert uncertainty_j > 0
        widths.append(uncertainty_j / stated_j)
    assert inside >= 950
    assert sorted(widths)[500] < 0.5


def test_batches_are_one_event_each() -> None:
    """Promise: the journal gets one compact event per batch, with columns of equal length."""
    gpu = FakeGpu()
    session = machine(gpu)
    resolver = StepResolver(session, lambda: None)
    trained(gpu, session, resolver, 300)
    found = events(session, "steps")
    assert 2 <= len(found) <= 8
    assert sum(len(e["index"]) for e in found) == 300
    for event in found:
        n = len(event["index"])
        assert set(event["domains"]) == {"gpu:0", "cpu:0/package"}
        assert len(event["begin_s"]) == len(event["end_s"]) == len(event["loss"]) == n
        for table in (event["energy_j"], event["uncertainty_j"]):
            assert len(table) == 2
            assert all(len(column) == n for column in table)


def test_very_long_trainings_write_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a journal does not grow without bound; merged entries keep all the energy."""
    monkeypatch.setattr(resolver_module, "JOURNALED_STEPS_LIMIT", 100)
    gpu = FakeGpu()
    session = machine(gpu)
    resolver = StepResolver(session, lambda: None)
    trained(gpu, session, resolver, 600)
    found = events(session, "steps")
    assert sum(sum(e.get("count", [1] * len(e["index"]))) for e in found) == 600
    assert any("count" in e for e in found)
    column = [c for e in found for c in e["energy_j"][e["domains"].index("gpu:0")]]
    assert sum(column) == pytest.approx(sum(s.energy["gpu:0"][0] for s in resolver.steps), rel=1e-5)


def test_a_lost_sensor_does_not_hold_steps_back() -> None:
    """Promise: steps wait a limited time for their readings, and a lost device is not a zero."""
    gpu = FakeGpu()
    session = machine(gpu)
    resolver = StepResolver(session, lambda: None)
    read(session)
    gpu.host_works(0.2)
    read(session)
    begin = Edge(gpu.now)
    for feed in session.feeds:
        if feed.domains[0].scope is Scope.GPU:
            feed.take(gpu.now, [Gap("fell off the bus", lost=True)])
    gpu.host_works(1.0)
    end = Edge(gpu.now)
    resolver.add_step(PendingStep(0, None, begin, end, {}))
    session.feeds[2].read()
    resolver.resolve()
    assert not resolver.steps
    gpu.host_works(resolver_module.PATIENCE_S + 1)
    resolver.resolve()
    (step,) = resolver.steps
    assert "gpu:0" not in step.energy
    assert step.energy["cpu:0/package"][0] == pytest.approx(CPU_W, rel=0.05)


def test_an_epoch_cuts_gpus_on_the_device_and_the_rest_on_the_host() -> None:
    """Promise: the GPU's part of an epoch lies between the device's edges, the CPU's between the
    host's, though the device lags behind.
    """
    gpu = FakeGpu()
    session = machine(gpu)
    resolver = StepResolver(session, lambda: None)
    begin, end = Edge(gpu.now + 1), Edge(gpu.now + 3)
    end.time_s = gpu.now + 4
    for _ in range(60):
        read(session)
        gpu.host_works(0.1)
    epoch = EpochRecord(0, begin, resolver.window)
    epoch.end = end
    resolver.add_epoch(epoch)
    resolver.resolve()
    assert epoch.final
    by_name = {d.name: d.energy_j for d in epoch.result.domains}
    assert by_name["gpu:0"] == pytest.approx(3 * GPU_W, rel=0.02)
    assert by_name["cpu:0/package"] == pytest.approx(2 * CPU_W, rel=0.02)
    (event,) = events(session, "step")
    assert event["kind"] == "epoch"
    assert event["energy"]["gpu:0"][0] == pytest.approx(3 * GPU_W, rel=0.02)
