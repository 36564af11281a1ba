"""Promises of the sizes in the efficiency."""

from dataclasses import replace

import pytest

from tests.predict.models.made import addition, conv, gemm
from wattloop.predict.models.adept.features import conv_sizes, elements, gemm_tiles, weighted_means
from wattloop.predict.workload.operation import Kind, Operation, Phase


def test_mean_dimensions_are_weighted_by_flops() -> None:
    """Equation 4.6, for two products of which one has three times the FLOPs of the other."""
    small, large = gemm(160, 80, 40), gemm(480, 80, 40)
    m, n, k = weighted_means([small, large], gemm_tiles, 3)
    assert m == pytest.approx((1 * 160 + 3 * 480) / 4 / 16)
    assert (n, k) == pytest.approx((10, 10))


def test_calls_that_are_alike_weigh_as_many() -> None:
    """`count` products count as that many."""
    m, _, _ = weighted_means([gemm(160, 80, 40, count=3), gemm(480, 80, 40)], gemm_tiles, 3)
    assert m == pytest.approx((160 + 480) / 2 / 16)


def test_nothing_to_average_is_zero() -> None:
    """A network without convolutions has no channels."""
    assert weighted_means([], conv_sizes, 2) == (0.0, 0.0)


def test_tiles_are_deeper_under_bf16() -> None:
    """16 x 8 x 8 for mixed precision, 16 x 8 x 4 for tf32."""
    assert gemm_tiles(gemm(64, 64, 64, dtype="bf16")) == (4, 8, 8)
    assert gemm_tiles(gemm(64, 64, 64, dtype="tf32")) == (4, 8, 16)


def test_convolutions_count_channels_in_blocks_and_pixels_of_one_image() -> None:
    """64 channels are 8 blocks; the batch does not make the image larger."""
    assert conv_sizes(conv(64, 14, 32)) == (8.0, 196.0)


def test_a_convolution_without_detail_has_its_dims() -> None:
    """Channels are then those of the implicit product."""
    bare = replace(conv(64, 14, 32), detail={})
    assert conv_sizes(bare) == ((64 + 64 * 9) / 2 / 8, 32 * 196)


def test_attention_is_the_product_of_queries_and_keys() -> None:
    """One attention operation has no dims; its lengths are in the detail."""
    attention = Operation(
        "aten.sdpa",
        Kind.ATTENTION,
        Phase.FORWARD,
        dtype="bf16",
        detail={"q_len": 128, "kv_len": 256, "head_dim": 64},
    )
    assert gemm_tiles(attention) == (8, 32, 8)


def test_lstm_is_the_product_with_its_state() -> None:
    """Batch x 4 gates x hidden."""
    lstm = Operation(
        "lstm", Kind.RNN, Phase.FORWARD, detail={"cell": "lstm", "batch": 64, "hidden": 32}
    )
    assert gemm_tiles(lstm) == (4, 16, 8)


def test_elements_are_what_is_written() -> None:
    """The operation gives them, or else the shapes of its outputs."""
    assert elements(addition(1000)) == 1000
    norm = Operation("aten.native_layer_norm", Kind.NORM, Phase.FORWARD, outputs=((4, 8), (4,)))
    assert elements(norm) == 36
