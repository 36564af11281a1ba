"""Promises of equations 4.7 to 4.15, against values computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.predict.models.made import PLACE, addition, conv, gemm, workload
from wattloop.predict.models.adept.equations import PARAMETERS, AdeptStep, step_of
from wattloop.predict.models.adept.features import AdeptFeatures
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.workload import Workload

START = {name: each.start for name, each in PARAMETERS.items()}


def step(
    of: Workload, place: Placement = PLACE, saturation: str = "sigmoid", **changed: float
) -> AdeptStep:
    """Return the terms with all parameters at their start but these."""
    return step_of(AdeptFeatures.of([(of, place)]), {**START, **changed}, saturation)


def test_products_take_flops_over_peak_and_efficiency() -> None:
    """4.9 to 4.12: F / (P beta S(M) S(N) S(K)) C."""
    found = step(
        workload(gemm(160, 160, 160)),
        beta_gemm=0.8,
        gemm_time=2.0,
        r_gemm_m=10.0,
        r_gemm_n=40.0,
        r_gemm_k=20.0,
    )
    # 10, 20 and 40 tiles over their references: 1, 1/2 and 2
    saturation = 1.0
    for x in (1.0, 0.5, 2.0):
        saturation /= 1 + math.exp(-x)
    expected = 2 * 160**3 / (50e12 * 0.8 * saturation) * 2.0
    assert found.gemm_s[0] == pytest.approx(expected)


def test_convolutions_saturate_in_channels_and_pixels() -> None:
    """4.9 with the dimensions of a convolution, another saturation."""
    found = step(
        workload(conv(64, 10, 8)),
        saturation="softsign",
        beta_conv=0.5,
        conv_time=3.0,
        r_conv_channels=8.0,
        r_conv_pixels=300.0,
    )
    flops = 2 * 800 * 64 * 64 * 9
    assert found.conv_s[0] == pytest.approx(flops / (50e12 * 0.5 * 0.5 * 0.25) * 3.0)


def test_other_arithmetic_saturates_in_elements() -> None:
    """4.9 for the ordinary units."""
    found = step(
        workload(addition(10**6, count=2)), saturation="tanh", beta_alu=0.25, r_alu_elements=1e6
    )
    assert found.alu_s[0] == pytest.approx(2e6 / (50e12 * 0.25 * math.tanh(2)))


@pytest.mark.parametrize(("elements", "miss"), [(10**5, 0.3), (25 * 10**5, 0.6), (10**8, 1.0)])
def test_traffic_that_fits_the_cache_takes_less(elements: int, miss: float) -> None:
    """4.13: the base miss rate, the share of the cache, all of it (12 B an element, 50 MB)."""
    found = step(workload(addition(elements)), miss_base=0.3, memory_time=1.5)
    assert found.memory_s[0] == pytest.approx(12 * elements / 5e12 * miss * 1.5)


def test_a_ring_passes_gradients_on() -> None:
    """4.8 for four GPUs: six hops, one and a half times the gradients."""
    place = replace(PLACE, gpus=4, link_bytes_s=100e9)
    found = step(workload(gemm(8, 8, 8), parameters=10**9), place, hop_s=1e-5, link_share=0.5)
    assert found.communication_s[0] == pytest.approx(6e-5 + 1.5 * 4e9 / 50e9)


def test_one_gpu_does_not_communicate() -> None:
    """4.8 is 0 for one GPU."""
    assert step(workload(gemm(8, 8, 8))).communication_s[0] == 0


def test_the_step_is_the_longer_of_computing_and_memory_and_the_rest() -> None:
    """4.7 with two passes before the optimizer."""
    of = workload(addition(10**9), gemm(512, 512, 512), accumulate=2, parameters=10**8)
    found = step(of, optimizer_time=2.0, launch_s=1e-5, fixed_s=3e-3)
    assert found.memory_s[0] > found.compute_s[0]
    assert found.pass_s[0] == pytest.approx(2 * found.memory_s[0])
    assert found.optimizer_s[0] == pytest.approx(28e8 / 5e12 * 2.0)
    assert found.launch_s[0] == pytest.approx(4e-5)
    assert found.step_s[0] == pytest.approx(2 * found.memory_s[0] + 28e8 / 5e12 * 2.0 + 4e-5 + 3e-3)


def test_power_is_the_mean_of_phases_by_time() -> None:
    """4.14 and 4.15: the pass by its ratio, the update by its own, the rest at static power."""
    of = workload(addition(10**9), gemm(4096, 4096, 4096), parameters=10**8)
    found = step(of, static_share=0.2, power_scale=0.9, fixed_s=1e-3, launch_s=1e-8)

    def watts(use: float) -> float:
        return 140 + use * (700 - 140) * 0.9

    pass_use = min(1.0, found.compute_s[0] / found.memory_s[0])
    update_use = (18e8 / 50e12) / (28e8 / 5e12)
    energy_j = (
        found.pass_s[0] * watts(pass_use)
        + found.optimizer_s[0] * watts(update_use)
        + (1e-3 + 2e-8) * watts(0)
    )
    assert found.power_w[0] == pytest.approx(energy_j / found.step_s[0])


def test_scalars_hold_for_their_rows_only() -> None:
    """ALBERT's multiply ALBERT's times, BF16's those under BF16."""
    scalars = {
        "albert_gemm": 2.0,
        "albert_alu": 3.0,
        "albert_memory": 5.0,
        "bf16_gemm": 7.0,
        "bf16_conv": 11.0,
        "bf16_alu": 13.0,
    }
    operations = (gemm(64, 64, 64, dtype="bf16"), conv(64, 8, 8, dtype="bf16"), addition(10**6))
    for name, precision, factors in (
        ("gpt2", "tf32", (1, 1, 1, 1)),
        ("albert", "tf32", (2, 1, 3, 5)),
        ("gpt2", "bf16", (7, 11, 13, 1)),
        ("albert", "bf16", (14, 11, 39, 5)),
    ):
        of = workload(*operations, name=name, precision=precision)
        plain, scaled = step(of), step(of, **scalars)
        for term, factor in zip(("gemm_s", "conv_s", "alu_s", "memory_s"), factors, strict=True):
            assert getattr(scaled, term)[0] == pytest.approx(factor * getattr(plain, term)[0])


def test_candidates_and_rows_are_computed_at_once() -> None:
    """A column of candidates gives the same numbers as one at a time."""
    rows = [
        (workload(gemm(64, 64, 64)), PLACE),
        (workload(addition(10**7)), PLACE),
        (workload(conv(64, 8, 8)), PLACE),
    ]
    features = AdeptFeatures.of(rows)
    betas = (0.2, 0.9)
    columns = {**{name: np.full((2, 1), value) for name, value in START.items()}}
    columns["beta_gemm"] = np.array([[beta] for beta in betas])
    together = step_of(features, columns)
    for i, beta in enumerate(betas):
        alone = step_of(features, {**START, "beta_gemm": beta})
        assert together.step_s[i] == pytest.approx(alone.step_s)
        assert together.power_w[i] == pytest.approx(alone.power_w)
