"""Promises of ADEPT behind the interface of all models."""

import json
from dataclasses import replace

import pytest

from tests.predict.models.made import PLACE, addition, conv, gemm, workload
from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.adept import Adept
from wattloop.predict.models.adept.equations import PARAMETERS, shipped_constants
from wattloop.predict.models.adept.features import AdeptFeatures
from wattloop.predict.prediction import Regime

START = {name: each.start for name, each in PARAMETERS.items()}
STEP = workload(gemm(1024, 1024, 1024), conv(64, 8, 8), addition(10**6))


def test_terms_add_up_to_the_step() -> None:
    """Equation 4.7: the terms are complete."""
    found = Adept(START).predict(STEP, PLACE)
    assert sum(found.terms_s.values()) == pytest.approx(found.step_s)
    assert found.energy_j == pytest.approx(found.step_s * found.power_w)


@pytest.mark.parametrize(
    ("changed", "regime"),
    [
        ({"gemm_time": 50.0, "launch_s": 1e-8, "fixed_s": 1e-6}, Regime.COMPUTE),
        ({"memory_time": 50.0, "launch_s": 1e-8, "fixed_s": 1e-6}, Regime.MEMORY),
        ({"launch_s": 1e-4}, Regime.LAUNCH),
    ],
)
def test_the_regime_is_the_largest_term(changed: dict[str, float], regime: Regime) -> None:
    """The result names the largest part of the step."""
    assert Adept({**START, **changed}).predict(STEP, PLACE).regime is regime


def test_many_gpus_over_a_slow_link_are_bound_by_communication() -> None:
    """Eight GPUs at 1 GB/s wait for gradients."""
    place = replace(PLACE, gpus=8, link_bytes_s=1e9)
    found = Adept(START).predict(workload(gemm(64, 64, 64), parameters=10**8), place)
    assert found.regime is Regime.COMMUNICATION
    assert found.gpus == 8


def test_constants_make_the_same_model_again() -> None:
    """After JSON and back, predictions stay the same."""
    model = Adept(START, saturation="tanh")
    again = Adept.from_constants(json.loads(json.dumps(model.constants())))
    assert again.predict(STEP, PLACE) == model.predict(STEP, PLACE)


@pytest.mark.parametrize(
    ("constants", "named"),
    [
        ({}, "parameters"),
        ({"parameters": {**START, "beta": 1}}, "beta"),
        ({"parameters": {**START, "beta_gemm": "much"}}, "much"),
        ({"parameters": {**START, "launch_s": 0.0}}, "launch_s is 0"),
        ({"parameters": {**START, "launch_s": float("nan")}}, "launch_s is nan"),
        ({"parameters": START, "saturation": "relu"}, "relu"),
    ],
)
def test_broken_constants_are_refused_by_name(constants: dict[str, object], named: str) -> None:
    """The error names the wrong field, without a traceback."""
    with pytest.raises(ConfigError, match=named):
        Adept.from_constants(constants)


def test_without_parameters_it_says_so() -> None:
    """Predicting before fitting names the remedy."""
    with pytest.raises(ConfigError, match="fit it"):
        Adept().predict(STEP, PLACE)


def test_what_it_does_not_know_is_said() -> None:
    """Caps and clocks have a smaller effect than in reality, with a warning."""
    found = Adept(START).predict(STEP, replace(PLACE, cap_w=400.0, clock_mhz=1200.0))
    assert any("clock" in warning for warning in found.warnings)
    assert any("cap" in warning for warning in found.warnings)
    assert found.power_w < 400


def test_dimensions_are_weighted_means_in_tiles() -> None:
    """Equation 4.6: the step has one product, whose M is 64 tiles."""
    assert float(AdeptFeatures.of([(STEP, PLACE)]).tiles_m[0]) == 64


def test_the_shipped_model_predicts_on_the_gpu_it_was_fitted_to() -> None:
    """The H200 has parameters in the package; for another GPU the error lists those that have."""
    model = Adept.for_gpu(gpu_named("h200"))
    assert model.predict(STEP, replace(PLACE, gpu=gpu_named("h200"))).step_s > 0
    with pytest.raises(ConfigError, match="fitted for h200, not for v100"):
        Adept.for_gpu(gpu_named("v100"))


def test_constants_are_read_as_shipped_with_model_and_source() -> None:
    """The shipped file itself is a calibration of any GPU."""
    whole = {"model": "adept", "gpu": "h200", "constants": shipped_constants(gpu_named("h200"))}
    assert Adept.from_constants(whole).parameters == Adept.for_gpu(gpu_named("h200")).parameters


def test_power_is_never_above_the_limit() -> None:
    """A factor of power above 1 ends at the board's limit."""
    found = Adept({**START, "power_scale": 2.0, "overhead_use": 1.0}).predict(STEP, PLACE)
    assert 0.95 * PLACE.gpu.tdp_w < found.power_w <= PLACE.gpu.tdp_w
