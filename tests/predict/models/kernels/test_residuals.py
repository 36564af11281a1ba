"""Promises of corrections by microbenchmarks, and the fit of both."""

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200
from wattloop.predict.calibrate.kernel_fit import (
    Sample,
    _tried,
    fitted_group,
    fitted_to_samples,
)
from wattloop.predict.models.kernels.constants import DEFAULTS, KernelConstants, Values, nearness
from wattloop.predict.models.kernels.kernel_cost import calculated_times, operation_times
from wattloop.predict.models.kernels.operation_table import OperationTable
from wattloop.predict.workload import Operation, costs

SIZES = [2**power for power in range(6, 14)]
OPS = [costs.gemm(1, m, n, 1024, dtype="bf16") for m in SIZES for n in (256, 1024, 4096)]


def true_seconds(operations: list[Operation]) -> np.ndarray:
    """Return the time of a GPU that is less efficient than the defaults, and slow at small
    sizes.
    """
    other = Values(DEFAULTS).with_changes({"product.efficiency": 0.4, "product.tile_s": 4e-6})
    table = OperationTable.of(operations)
    rows = np.array([op.dims[1] for op in operations if op.dims])
    return calculated_times(table, other, H200).seconds * np.where(rows < 512, 1.6, 1.0)


@pytest.fixture(scope="module")
def fitted() -> KernelConstants:
    samples = [Sample(op, float(s)) for op, s in zip(OPS, true_seconds(OPS), strict=True)]
    return fitted_to_samples(KernelConstants(), samples, H200).constants


def test_measured_shapes_are_met_and_near_ones_as_well(fitted: KernelConstants) -> None:
    """Both samples and shapes between them are within a few percent."""
    between = [costs.gemm(1, 3 * 2**p, 2048, 1024, dtype="bf16") for p in (5, 6, 9, 11)]
    for ops, bound in ((OPS, 0.03), (between, 0.12)):
        table = OperationTable.of(ops)
        found = operation_times(table, fitted.values, fitted.residuals, H200).seconds
        assert np.mean(np.abs(found / true_seconds(ops) - 1)) < bound


def test_far_from_all_samples_only_the_formula_speaks(fitted: KernelConstants) -> None:
    """A correction fades with distance."""
    far = costs.gemm(4096, 7, 3, 5, dtype="bf16")
    assert fitted.residuals.factors(OperationTable.of([far]))[0][0] == pytest.approx(1.0, abs=0.05)
    unmeasured = costs.gemm(1, 64, 64, 64, dtype="fp64")
    assert fitted.residuals.factors(OperationTable.of([unmeasured]))[0][0] == 1.0


def test_how_far_a_shape_is_from_samples_is_told(fitted: KernelConstants) -> None:
    """Promise: 0 at a sample, more with distance, 1 out of reach and where nothing was measured."""
    sample, near = OPS[0], costs.gemm(1, 72, 256, 1024, dtype="bf16")
    out = costs.gemm(1, 2**26, 2**24, 1, dtype="bf16")
    unknown = costs.elementwise(4096, 2, 1, dtype="fp32")
    table = OperationTable.of([sample, near, out, unknown])
    far = operation_times(table, fitted.values, fitted.residuals, H200).far
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert 0 < far[1] < far[2] <= 1
    assert far[2] > 0.9
    assert far[3] == 1


def test_noise_alone_is_not_learned() -> None:
    """Residuals without a pattern give almost no correction."""
    chance = np.random.default_rng(0)
    places = chance.uniform(0, 10, (60, 3))
    group, _ = fitted_group(places, chance.normal(0, 0.1, 60))
    if group is not None:
        assert np.abs(group.corrections(chance.uniform(0, 10, (200, 3)))[0]).mean() < 0.05


def test_leaving_out_in_closed_form_is_leaving_out() -> None:
    """The shortcut equals fitting again without each sample."""
    chance = np.random.default_rng(1)
    places, residuals = chance.uniform(0, 3, (12, 2)), chance.normal(size=12)
    best = _tried(places, residuals)
    for i in range(12):
        rest = np.arange(12) != i
        kernel = nearness(places, places)
        weights = np.linalg.solve(
            kernel[rest][:, rest] + best.noise**2 * np.eye(11), residuals[rest]
        )
        assert best.errors[i] == pytest.approx(residuals[i] - kernel[i, rest] @ weights)
