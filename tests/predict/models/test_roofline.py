"""Promises of the baseline model: two shares of the published peaks, and two wattages."""

from dataclasses import replace

import pytest

from tests.predict.models.made import GPU, PLACE, addition, gemm, workload
from wattloop.core.errors import ConfigError
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.models.roofline import Roofline, RooflineConstants
from wattloop.predict.prediction import Regime
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

TRUE = RooflineConstants({"fp32": 0.8, "bf16": 0.55}, 0.75, 0.9, 0.6)


def steps() -> list[Workload]:
    """Return workloads from byte-bound to FLOP-bound, in two precisions."""
    return [
        workload(
            gemm(size, size, size, dtype=precision, count=3),
            gemm(64 * size, 64, 64, dtype=precision),
            addition(size * size * 4, count=many, phase=Phase.BACKWARD),
            precision=precision,
        )
        for precision in ("fp32", "bf16")
        for size in (256, 1024, 4096)
        for many in (1, 10, 40)
    ]


def test_an_operation_takes_the_longer_of_flops_and_bytes() -> None:
    """A product bound by FLOPs and an addition bound by bytes add up, as computed by hand."""
    step = workload(gemm(5000, 5000, 5000), addition(10**9, count=2))
    found = Roofline(RooflineConstants({"fp32": 0.5}, 0.8, 1.0, 0.5)).predict(step, PLACE)
    compute_s = 2 * 5000**3 / (50e12 * 0.5)
    memory_s = 2 * 12e9 / (5e12 * 0.8)
    assert found.terms_s == pytest.approx({"compute": compute_s, "memory": memory_s})
    assert found.step_s == pytest.approx(compute_s + memory_s)
    power_w = 700 * (compute_s * 1.0 + memory_s * 0.5) / (compute_s + memory_s)
    assert found.power_w == pytest.approx(power_w)
    assert found.regime is Regime.COMPUTE


def test_passes_before_the_optimizer_are_counted() -> None:
    """Accumulation repeats forward and backward, not the optimizer."""
    model = Roofline.of_peaks()
    step = workload(addition(10**9), addition(10**8, phase=Phase.OPTIMIZER))
    once, thrice = (model.predict(step.accumulating(n), PLACE).step_s for n in (1, 3))
    assert once == pytest.approx(12e9 / 5e12 + 12e8 / 5e12)
    assert thrice == pytest.approx(3 * 12e9 / 5e12 + 12e8 / 5e12)


def test_fit_finds_the_shares_that_made_the_data() -> None:
    """Times and powers made by known shares give these shares back."""
    truth = Roofline(TRUE)
    points = [
        MeasuredStep(step, PLACE, made.step_s, made.power_w, "made")
        for step in steps()
        for made in [truth.predict(step, PLACE)]
    ]
    found = Roofline().fit(points).constants()
    assert found["compute_share"] == pytest.approx(TRUE.compute_share, rel=1e-3)
    assert found["memory_share"] == pytest.approx(0.75, rel=1e-3)
    assert found["compute_power_share"] == pytest.approx(0.9, rel=1e-3)
    assert found["memory_power_share"] == pytest.approx(0.6, rel=1e-3)


def test_points_without_power_are_fitted_for_time() -> None:
    """A point without measured power still counts for time."""
    points = [
        MeasuredStep(step, PLACE, Roofline(TRUE).predict(step, PLACE).step_s, None, "made")
        for step in steps()
    ]
    found = Roofline().fit(points).constants()
    assert found["memory_share"] == pytest.approx(0.75, rel=1e-3)


def test_no_share_is_above_one() -> None:
    """Steps faster than the peaks allow are predicted at the peaks, not above."""
    points = [
        MeasuredStep(
            step, PLACE, 0.5 * Roofline.of_peaks().predict(step, PLACE).step_s, 900.0, "made"
        )
        for step in steps()
    ]
    found = Roofline().fit(points).constants()
    assert found == Roofline.of_peaks().constants() | {"compute_share": {"bf16": 1.0, "fp32": 1.0}}


def test_constants_make_the_same_model_again() -> None:
    """The values of `constants()` suffice to predict the same."""
    step = steps()[0]
    again = Roofline.from_constants(Roofline(TRUE).constants())
    assert again.predict(step, PLACE) == Roofline(TRUE).predict(step, PLACE)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"memory_share": None}, "NoneType"),
        ({"memory_share": 0.0}, "above 0"),
        ({"compute_share": {}}, "above 0"),
        ({"compute_share": {"fp32": float("nan")}}, "above 0"),
        ({"memory": 1.0}, "memory"),
    ],
)
def test_broken_constants_are_refused_by_name(changed: dict[str, object], named: str) -> None:
    """The error names the wrong field, without a traceback."""
    with pytest.raises(ConfigError, match=named):
        Roofline.from_constants({**Roofline(TRUE).constants(), **changed})


def test_without_constants_it_says_so() -> None:
    """Predicting before fitting names the remedies."""
    with pytest.raises(ConfigError, match="fit it"):
        Roofline().predict(steps()[0], PLACE)


def test_what_it_does_not_know_is_said() -> None:
    """A precision never fitted and a power cap give warnings."""
    found = Roofline(TRUE).predict(
        workload(gemm(512, 512, 512), precision="tf32"), replace(PLACE, cap_w=300.0)
    )
    assert "without tf32" in found.warnings[0]
    assert "power cap" in found.warnings[1]


def test_a_large_product_takes_the_seconds_of_its_flops() -> None:
    """At the peaks, only FLOPs bound it."""
    step = Roofline.of_peaks().predict(workload(gemm(5000, 5000, 5000)), PLACE)
    assert step.terms_s["memory"] == 0
    assert step.step_s == pytest.approx(2 * 5000**3 / GPU.vector_flops["fp32"])
