"""Promises of the time of single operations, for any constants."""

from itertools import pairwise

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200
from wattloop.predict.intervals import class_of as calibrated_class
from wattloop.predict.models.kernels.constants import DEFAULTS, Values
from wattloop.predict.models.kernels.kernel_cost import (
    calculated_times,
    conv_dims,
    scale_scopes,
    small_picture_seconds,
)
from wattloop.predict.models.kernels.operation_table import OperationTable, class_of
from wattloop.predict.models.kernels.step import of_operation
from wattloop.predict.workload import Operation, Phase, costs

VALUES = Values(DEFAULTS).with_changes({"stream.l2_use": 1.0})


def seconds(*operations: Operation) -> list[float]:
    return list(calculated_times(OperationTable.of(operations), VALUES, H200).seconds)


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "fp32"])
def test_a_product_is_never_quicker_than_the_peak_or_the_memory(dtype: str) -> None:
    """A product stays under the roofline of the data sheet."""
    ops = [costs.gemm(1, m, 768, 3072, dtype=dtype) for m in (8, 100, 1024, 50_000)]
    peak = {**H200.vector_flops, **H200.matrix_flops}[dtype]
    for op, took_s in zip(ops, seconds(*ops), strict=True):
        assert took_s >= op.flops / peak
        if op.bytes_moved > H200.l2_bytes:
            assert took_s >= op.bytes_moved / H200.memory_bytes_s


def test_products_take_longer_when_a_dimension_grows() -> None:
    """Time never falls as rows are added, by more than a change of tile explains."""
    times = seconds(*(costs.gemm(1, 128 * i, 1024, 1024, dtype="bf16") for i in range(1, 200)))
    assert all(later >= 0.999 * earlier for earlier, later in pairwise(times))


def test_one_tile_more_than_fits_costs_a_wave() -> None:
    """Tiles are counted in whole waves over the multiprocessors."""
    full, more = seconds(
        costs.gemm(1, 128 * 132, 256, 65_536, dtype="bf16"),
        costs.gemm(1, 128 * 133, 256, 65_536, dtype="bf16"),
    )
    assert more > 1.1 * full


def test_rows_that_start_at_odd_addresses_are_slower() -> None:
    """An odd vocabulary costs more than the next round one."""
    odd, even = seconds(
        costs.gemm(1, 8192, 50_257, 768, dtype="bf16"),
        costs.gemm(1, 8192, 50_304, 768, dtype="bf16"),
    )
    assert odd > 1.3 * even


def test_what_fits_in_the_cache_streams_faster() -> None:
    """Bytes per second of a small tensor exceed those of a large one."""
    small, large = costs.elementwise(2**21, 1, 1, "fp32"), costs.elementwise(2**28, 1, 1, "fp32")
    floor_s = VALUES["kernel.minimum_s"]
    small_s, large_s = (took - floor_s for took in seconds(small, large))
    assert small.bytes_moved / small_s > 1.2 * large.bytes_moved / large_s


def test_nothing_is_quicker_than_an_empty_kernel() -> None:
    """Each kernel takes at least the minimum."""
    (took_s,) = seconds(costs.elementwise(1, 1, 1, "fp32", kernels=3))
    assert took_s >= 3 * VALUES["kernel.minimum_s"]


def test_views_cost_the_gpu_nothing() -> None:
    """A view has no row in the table."""
    assert len(OperationTable.of([costs.view()])) == 0


def test_gradients_of_a_convolution_have_products_of_their_own() -> None:
    """The weight's gradient sums over pixels, the input's over output channels."""
    dims = np.array([[1.0, 1000.0, 64.0, 27.0]] * 3)
    found = conv_dims(dims, np.array(["forward", "data", "weight"]))
    assert found.tolist() == [[1, 1000, 64, 27], [1, 1000, 27, 64], [1, 64, 27, 1000]]


def test_longer_sequences_make_attention_and_recurrence_longer() -> None:
    """Time grows with length for both."""

    def attention(length: int) -> Operation:
        return costs.attention(
            "forward", 8, 12, 12, length, length, 64, causal=True, masked=False, dtype="bf16",
            algorithm="flash",
        )  # fmt: skip

    def lstm(length: int) -> Operation:
        return costs.rnn("forward", "lstm", 2, 64, 256, 32, length, False, "fp32")

    for make in (attention, lstm):
        short, middle, long = seconds(make(64), make(512), make(2048))
        assert short < middle < long


def test_recurrent_layers_of_autocast_are_persistent_where_they_are_narrow() -> None:
    """In fp16 the host launches one kernel for all time steps; wider ones cost what bf16's do."""

    def lstm(hidden: int, dtype: str) -> Operation:
        return costs.rnn("forward", "lstm", 1, 16, hidden, 256, 400, False, dtype)

    narrow, wide, real = lstm(128, "fp16"), lstm(256, "fp16"), lstm(128, "bf16")
    launches = "host.launch_s.rnn.forward"
    assert launches not in of_operation(narrow)
    assert of_operation(wide)[launches] == of_operation(real)[launches] == 400
    names = [class_of(op) for op in (narrow, wide)]
    assert names == ["rnn.persistent.lstm.forward.fp16", "rnn.stepwise.lstm.forward.bf16"]
    assert scale_scopes(OperationTable.of([wide])) == ["rnn.bf16"]
    assert calibrated_class(narrow) == calibrated_class(real) == "lstm bf16"


def test_classes_go_from_coarse_to_fine() -> None:
    """Operations that take other kernels are in other classes."""
    dense = costs.conv("weight", 8, 64, (28, 28), 64, 3, padding=1, dtype="bf16")
    depthwise = costs.conv("weight", 8, 64, (28, 28), 64, 3, padding=1, groups=64, dtype="bf16")
    grouped = costs.conv("weight", 8, 64, (28, 28), 64, 3, padding=1, groups=4, dtype="bf16")
    names = [class_of(op) for op in (dense, depthwise, grouped)]
    assert names == ["conv.weight.bf16", "depthwise.weight.bf16", "grouped.weight.bf16"]
    in_place = costs.elementwise(8, 1, 1, "fp32", op="aten.relu_.default")
    assert class_of(in_place) == "elementwise.relu.fp32"


def test_gradients_made_for_each_picture_are_written_and_read() -> None:
    """In tf32, single pixels of many pictures take 8 n c_in c_out bytes instead of a product."""

    def gradient(dtype: str, pictures: int) -> Operation:
        return costs.conv("weight", pictures, 512, (1, 1), 2048, 1, dtype=dtype)

    few, many = seconds(gradient("tf32", 256)), seconds(gradient("tf32", 1024))
    assert many[0] > 8 * 1024 * 512 * 2048 / H200.memory_bytes_s
    assert few[0] < many[0] / 50
    assert seconds(gradient("bf16", 1024))[0] < many[0] / 50


@pytest.mark.parametrize(
    ("direction", "n", "channels", "side", "measured_s"),
    [
        ("data", 4096, 512, 4, 16.72e-3),
        ("data", 4096, 512, 2, 16.66e-3),
        ("data", 2048, 1024, 1, 32.82e-3),
        ("data", 4096, 160, 1, 1.70e-3),
        ("forward", 4096, 512, 4, 24.93e-3),
        ("forward", 4096, 512, 2, 24.92e-3),
        ("forward", 2048, 640, 4, 19.25e-3),
    ],
)
def test_many_small_pictures_in_fp32_take_as_long_as_larger_ones(
    direction: str, n: int, channels: int, side: int, measured_s: float
) -> None:
    """Microbenchmarks of an H200; a thousandth of the pictures is left to the formula."""
    made = [
        costs.conv(direction, count, channels, (side, side), channels, 3, padding=1, dtype=dtype)
        for count, dtype in ((n, "fp32"), (4, "fp32"), (n, "tf32"))
    ]
    least, few, matrix_units = small_picture_seconds(OperationTable.of(made), H200)
    assert least == pytest.approx(measured_s, rel=0.08)
    assert few == matrix_units == 0


def test_a_gradient_that_sorts_its_indices_waits_for_the_gpu() -> None:
    """Measured on a host: 30 us for 2,048 rows, 130 to 340 us for 4,096 and more."""
    values = Values(DEFAULTS)
    asked_s = []
    for kernels in (2, 10):
        op = costs.embedding(
            "backward", 16384, 64, 20_000, dtype="fp32", phase=Phase.BACKWARD, kernels=kernels
        )
        asked_s.append(sum(values.find(name) * n for name, n in of_operation(op).items()))
    assert asked_s[0] < 40e-6
    assert 130e-6 < asked_s[1] < 340e-6


def test_only_a_single_query_is_padded_to_less_than_a_block() -> None:
    """Short sequences cost as much as 128 queries, which microbenchmarks of 16 to 64 show."""
    made = [
        costs.attention(
            "forward", 128, 32, 32, q_len, 4096, 64,
            causal=False, masked=True, dtype="bf16", algorithm="efficient",
        )
        for q_len in (1, 16, 64, 128)
    ]  # fmt: skip
    one, few, half, full = seconds(*made)
    assert one < 0.8 * full
    assert few == pytest.approx(full, rel=0.05)
    assert half == pytest.approx(full, rel=0.05)
