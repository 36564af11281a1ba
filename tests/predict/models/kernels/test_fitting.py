"""Promises of the fit to measured steps: it finds the constants that made them."""

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200, transformer_step
from wattloop.predict.models.kernels import KernelConstants, KernelModel
from wattloop.predict.models.kernels.constants import DEFAULTS
from wattloop.predict.models.kernels.fit import minimise
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.prediction import Placement

TRUE = KernelConstants("h200").with_values(
    {
        "scale.gemm.bf16": 0.4,
        "scale.gemm.fp32": -0.1,
        "host.call_s.forward": 9e-6,
        "power.static_w": 60.0,
        "power.joule_per_flop.bf16": 6e-13,
        "power.joule_per_byte": 9e-11,
    }
)


def points(model: KernelModel) -> list[MeasuredStep]:
    made = []
    for width in (512, 768, 1024):
        for batch in (1, 8, 64):
            for dtype in ("bf16", "fp32"):
                work = transformer_step(batch, 256, width, 6, dtype)
                step = model.predict(work, Placement(H200))
                made.append(
                    MeasuredStep(work, Placement(H200), step.step_s, step.power_w, str(width))
                )
    return made


def test_steps_of_a_left_out_model_are_predicted() -> None:
    """Fitted to two widths, the third is within 6% in time and power."""
    every = points(KernelModel(TRUE))
    model = KernelModel().fit([point for point in every if point.group != "768"])
    for point in every:
        if point.group == "768":
            step = model.predict(point.workload, point.placement)
            assert step.step_s == pytest.approx(point.step_s, rel=0.06)
            assert step.power_w == pytest.approx(point.power_w, rel=0.06)


def test_fitting_leaves_the_model_as_it_was() -> None:
    """`fit` returns another model."""
    model = KernelModel()
    before = model.constants()
    model.fit(points(KernelModel(TRUE))[:4])
    assert model.constants() == before


def test_steps_without_power_fit_time_only() -> None:
    """A row without measured power does not count as 0 W."""
    every = [
        MeasuredStep(p.workload, p.placement, p.step_s, None, p.group)
        for p in points(KernelModel(TRUE))[:4]
    ]
    values = KernelModel().fit(every).constants()["values"]
    assert isinstance(values, dict)
    assert values["power.joule_per_byte"] == pytest.approx(DEFAULTS["power.joule_per_byte"])


def test_an_outlier_does_not_rule() -> None:
    """A robust line passes through nine of ten points."""
    x = np.arange(10.0)
    y = 2 * x + 1
    y[7] += 40
    found = minimise(lambda p: p[0] * x + p[1] - y, np.zeros(2), np.full(2, 1e3))
    assert found == pytest.approx([2, 1], abs=0.1)


def test_a_second_fit_has_not_seen_the_first_ones_steps() -> None:
    """Fitting starts from microbenchmarks, independent of earlier fits."""
    every = points(KernelModel(TRUE))
    first, second = every[:6], every[6:12]
    once = KernelModel().fit(second)
    twice = KernelModel().fit(first).fit(second)
    assert twice.constants()["values"] == once.constants()["values"]
