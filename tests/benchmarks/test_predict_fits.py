"""Promises of the fit of the rules for GPUs without a calibration."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tests.predict.models.kernels.made import step_of, transformer_step

from predict_fits import at_host_speed, fitted_rules, spec_seconds
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelConstants, KernelModel
from wattloop.predict.models.kernels.datasheet import SpecRules
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.prediction import Placement
from wattloop.predict.workload import costs

STEPS = [
    transformer_step(16, 256, 1024, 4, "fp32"),
    step_of(costs.elementwise(10**9, 1, 1, "fp32"), training=False),
]


def points(rules: SpecRules) -> list[MeasuredStep]:
    """Return steps whose times are exactly those of `rules`."""
    asked = [
        MeasuredStep(step, Placement(gpu_named(name)), 1.0, None, "made")
        for name in ("p100-pcie", "v100-pcie-32", "t4", "a100-pcie-40")
        for step in STEPS
    ]
    seconds = spec_seconds(asked, KernelConstants(), gpu_named("h200"), rules)
    return [
        MeasuredStep(p.workload, p.placement, float(s), None, p.group)
        for p, s in zip(asked, seconds, strict=True)
    ]


def test_the_fit_goes_towards_the_truth() -> None:
    """Promise: GPUs that reach less of their peaks are detected, as far as the prior allows."""
    measured = points(SpecRules(products=0.9, streams=0.88))
    reference, calibrated = KernelConstants(), gpu_named("h200")
    found = fitted_rules(measured, reference, calibrated, SpecRules())
    assert found.products < 0.97
    assert found.streams < 0.97

    def worst(rules: SpecRules) -> float:
        seconds = spec_seconds(measured, reference, calibrated, rules)
        return max(abs(s / p.step_s - 1) for s, p in zip(seconds, measured, strict=True))

    assert worst(found) < 0.75 * worst(SpecRules())


def test_right_rules_stay() -> None:
    """Promise: rules that predict every point do not change."""
    found = fitted_rules(points(SpecRules()), KernelConstants(), gpu_named("h200"), SpecRules())
    assert found.products == pytest.approx(1.0, abs=1e-3)
    assert found.joules == pytest.approx(1.0, abs=1e-3)


def test_the_speed_of_another_host_is_found() -> None:
    """Promise: steps from a host at 0.7 of the speed give that speed."""
    model = KernelModel(KernelConstants("h200"))
    slow = Placement(gpu_named("h200"), host_speed=0.7)
    points = []
    for batch in (1, 2, 4):
        work = transformer_step(batch, 32)
        step = model.predict(work, slow)
        points.append(
            MeasuredStep(work, Placement(gpu_named("h200")), step.step_s, step.power_w, "made")
        )
    found = at_host_speed(model, points)
    assert found[0].placement.host_speed == pytest.approx(0.7, rel=0.03)
