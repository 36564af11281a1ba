"""Promises of the host's part of a fit."""

from dataclasses import replace

import pytest

from tests.predict.models.kernels.made import H200, transformer_step
from wattloop.predict.models.kernels import KernelConstants, KernelModel
from wattloop.predict.models.kernels.step import host_counts, phase_of
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Phase

TRUE = KernelModel(KernelConstants("h200"))
SLOW = 0.7


def _points(host: str, speed: float) -> list[MeasuredStep]:
    """Return small steps, which wait for the host."""
    made = []
    for width in (256, 384, 512):
        work = transformer_step(1, 32, width, 6, "bf16")
        step = TRUE.predict(work, Placement(H200, host_speed=speed))
        made.append(
            MeasuredStep(work, Placement(H200), step.step_s, step.power_w, str(width), host=host)
        )
    return made


def _asked(point: MeasuredStep, factor: float) -> MeasuredStep:
    """Return them with dispatch times of a host with backward costs multiplied by this factor."""
    counts = host_counts(point.workload).of_step(point.workload.accumulate)
    values = TRUE.kernel_constants.values
    sums = dict.fromkeys(Phase, 0.0)
    for name, number in counts.items():
        phase = phase_of(name)
        assert phase is not None
        sums[phase] += number * values.find(name)
    sums[Phase.BACKWARD] *= factor
    return replace(point, host_s={str(phase): seconds for phase, seconds in sums.items()})


def test_the_speed_of_a_sittings_host_is_found() -> None:
    """Steps of a host at 0.7 of the speed are not taken for more expensive calls."""
    model = TRUE.fit([*_points("", 1.0), *_points("other", SLOW)])
    slow = _points("other", SLOW)[0]
    assert model.placed(slow).host_speed == pytest.approx(SLOW, rel=0.05)
    here = _points("", 1.0)[0]
    assert model.placed(here).host_speed == 1.0
    step = model.predict(here.workload, here.placement)
    assert step.step_s == pytest.approx(here.step_s, rel=0.03)


def test_a_left_out_network_is_predicted_at_the_speed_of_its_sitting() -> None:
    """The sitting's other networks show how fast its host was."""
    points = [*_points("", 1.0), *_points("other", SLOW)]
    model = TRUE.fit([point for point in points if point.group != "384"])
    left_out = points[4]
    step = model.predict(left_out.workload, model.placed(left_out))
    assert step.step_s == pytest.approx(left_out.step_s, rel=0.05)


def test_dispatch_times_tell_phases_apart() -> None:
    """A whole step cannot show that backward is expensive and forward is not."""
    plain = _points("", 1.0)
    dear = [_asked(point, 1.5) for point in plain]
    longer = [replace(p, step_s=sum(p.host_s.values())) for p in dear]

    def ratio(model: KernelModel) -> float:
        values, before = model.kernel_constants.values, TRUE.kernel_constants.values
        each = [
            values.find(f"host.call_s.{phase}.gemm") / before.find(f"host.call_s.{phase}.gemm")
            for phase in ("backward", "forward")
        ]
        return each[0] / each[1]

    blind = TRUE.fit([replace(point, host_s={}) for point in longer])
    told = TRUE.fit(longer)
    assert ratio(told) > 1.3
    assert ratio(told) > ratio(blind) + 0.1


def test_dispatch_of_more_kernels_than_the_queue_holds_is_not_believed() -> None:
    """The host may have waited for the GPU there, and its time would be the GPU's."""
    many = transformer_step(1, 32, 256, 200, "bf16")
    step = TRUE.predict(many, Placement(H200))
    point = MeasuredStep(many, Placement(H200), step.step_s, step.power_w, "many")
    waited = replace(point, host_s={"forward": 50.0, "backward": 50.0})
    found = [TRUE.fit([p]).kernel_constants.values.numbers for p in (point, waited)]
    assert found[0] == found[1]


def test_a_dispatch_time_of_a_phase_without_calls_is_not_believed() -> None:
    """No cost of a call could explain it: the fit is the same as without it."""
    point = _points("", 1.0)[0]
    forward = tuple(op for op in point.workload.operations if op.phase is Phase.FORWARD)
    point = replace(point, workload=replace(point.workload, operations=forward))
    told = replace(point, host_s={"backward": 1e-3})
    found = [TRUE.fit([p]).kernel_constants.values.numbers for p in (point, told)]
    assert found[0] == found[1]


def test_every_cost_of_a_step_has_a_phase() -> None:
    """A cost without one would belong to no measured dispatch time."""
    counts = host_counts(transformer_step()).of_step(1)
    assert all(phase_of(name) for name in counts)
    assert phase_of("host.overlap") is None
