"""Promises of the totals of a workload: those of the thesis (4.3.4)."""

import pytest

from wattloop.predict.workload import Phase, Workload, costs
from wattloop.predict.workload.aggregates import aggregates


def made(*operations, **options):
    return Workload(name="made", operations=operations, **options)


def test_flops_are_split_by_unit_and_phase():
    """Products, convolutions and the rest; forward, backward and optimizer apart."""
    gemm = costs.gemm(1, 8, 8, 8, dtype="fp32", count=2)
    conv = costs.conv("weight", 1, 4, (4, 4), 4, 1, dtype="fp32")
    add = costs.elementwise(100, 2, 1, "fp32")
    step = costs.optimizer_step("sgd", [50])
    totals = aggregates(made(gemm, conv, add, *step, accumulate=3))
    assert totals.phases[Phase.FORWARD].gemm_flops == 2 * gemm.flops
    assert totals.phases[Phase.FORWARD].alu_flops == 100
    assert totals.phases[Phase.BACKWARD].conv_flops == conv.flops
    assert totals.phases[Phase.OPTIMIZER].alu_flops == 100
    assert totals.step.gemm_flops == 6 * gemm.flops
    assert totals.step.kernels == 3 * 4 + 1
    assert totals.step.bytes_read == 3 * (2 * gemm.bytes_read + conv.bytes_read + 800) + 400
    assert totals.step.elements == 3 * 100 + 50


def test_mean_dims_are_weighted_by_flops():
    """Equation 4.6: the large product counts more, and twice when it occurs twice."""
    small = costs.gemm(1, 2, 2, 2, dtype="fp32")
    large = costs.gemm(1, 4, 4, 4, dtype="fp32", count=2)
    whole = 16 + 2 * 128
    mean = (16 * 2 + 2 * 128 * 4) / whole
    assert aggregates(made(small, large)).gemm_dims == pytest.approx((1, mean, mean, mean))
    assert aggregates(made(small)).conv_dims is None


def test_sizes_of_convolutions_are_weighted_as_well():
    """Channels, pixels and kernel, as saturation needs them."""
    conv = costs.conv("forward", 2, 8, (8, 8), 16, 3, padding=1, dtype="fp32")
    totals = aggregates(made(conv))
    assert totals.conv_dims == (1, 128, 16, 72)
    assert totals.conv_sizes == pytest.approx(
        {"batch": 2, "c_in": 8, "c_out": 16, "pixels_out": 64, "kernel": 9}
    )


def test_an_empty_workload_has_totals_of_nothing():
    """Empty totals cause no division by zero."""
    totals = aggregates(made())
    assert (totals.step.flops, totals.unruled_share, totals.gemm_dims) == (0, 0, None)
