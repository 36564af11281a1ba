"""Promises of occupancy: the share of a GPU that an operation keeps busy."""

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200
from wattloop.predict.models.kernels.kernel_cost import filled_share, occupancy_of
from wattloop.predict.models.kernels.operation_table import OperationTable
from wattloop.predict.workload import costs


def _share(operation):
    return occupancy_of(OperationTable.of([operation]), H200)[0]


def test_large_products_fill_the_gpu():
    """Thousands of tiles leave at most the last wave short."""
    assert _share(costs.gemm(1, 8192, 8192, 1024, dtype="bf16", layout="nn")) > 0.95


def test_small_products_leave_most_of_it_idle():
    """Four tiles keep four multiprocessors busy, not 132, and so draw little."""
    assert _share(costs.gemm(1, 128, 128, 64, dtype="bf16", layout="nn")) < 0.05


def test_long_sums_are_cut_into_parts():
    """A small result over a long sum still occupies many multiprocessors."""
    short, long = filled_share(np.array([[1, 64, 576, 128], [1, 64, 576, 400_000.0]]), 132)
    assert short < 0.1
    assert long > 0.7


def test_batch_norm_of_few_channels_keeps_few_busy():
    """torch gives a channel to one multiprocessor: 64 channels leave half of 132 idle."""
    few, many = (
        _share(costs.norm("backward", "batch", 100_000, channels, dtype="fp32"))
        for channels in (64, 512)
    )
    assert few == pytest.approx(64 / 132)
    assert many == 1


def test_streams_fill_it():
    """Moving bytes occupies all of them."""
    assert _share(costs.elementwise(2**24, 2.0, 1.0, "fp32")) == 1
