"""Promises of cost rules: shapes become FLOPs, bytes and dims."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.workload import Kind, Phase, costs


def test_a_product_counts_two_flops_a_multiply_add_and_each_operand_once():
    """2BMNK FLOPs; both operands and the bias read, the result written."""
    made = costs.gemm(1, 8, 16, 32, dtype="bf16", layout="nt", bias=True, module="fc")
    assert made.kind is Kind.GEMM
    assert made.flops == 2 * 8 * 16 * 32
    assert made.bytes_read == 2 * (8 * 32 + 32 * 16 + 16)
    assert made.bytes_written == 2 * 8 * 16
    assert made.dims == (1, 8, 16, 32)
    assert made.detail == {"layout": "nt", "bias": True}
    assert (made.op, made.module, made.phase) == ("aten.addmm", "fc", Phase.FORWARD)


def test_all_passes_of_a_convolution_have_the_same_dims_and_flops():
    """The implicit product is the forward's, for any pass; a gradient is backward."""
    made = {
        way: costs.conv(way, 2, 64, (56, 56), 128, 3, stride=2, padding=1, dtype="tf32")
        for way in ("forward", "data", "weight")
    }
    x, w, y = 2 * 64 * 56 * 56, 128 * 64 * 9, 2 * 128 * 28 * 28
    assert {each.dims for each in made.values()} == {(1, 2 * 28 * 28, 128, 64 * 9)}
    assert {each.flops for each in made.values()} == {2 * 2 * 28 * 28 * 128 * 64 * 9}
    assert (made["forward"].bytes_read, made["forward"].bytes_written) == (4 * (x + w), 4 * y)
    assert (made["data"].bytes_read, made["data"].bytes_written) == (4 * (y + w), 4 * x)
    assert (made["weight"].bytes_read, made["weight"].bytes_written) == (4 * (x + y), 4 * w)
    assert made["weight"].phase is Phase.BACKWARD
    assert made["forward"].detail["stride"] == (2, 2)


def test_convolutions_of_one_and_three_axes_and_transposed_ones_have_true_flops():
    """One axis is a picture of height 1; a transposed one works at its input's points."""
    line = costs.conv("forward", 4, 8, (100,), 16, 5, padding=2, dtype="fp32")
    assert line.dims == (1, 400, 16, 40)
    assert (line.detail["h"], line.detail["w"], line.detail["padding"]) == (1, 100, (0, 2))
    volume = costs.conv("forward", 1, 3, (4, 6, 8), 5, 3, padding=1, dtype="fp32")
    assert volume.flops == 2 * 4 * 6 * 8 * 5 * 3 * 27
    up = costs.conv("forward", 1, 16, (7, 7), 8, 2, stride=2, dtype="fp32", transposed=True)
    assert up.flops == 2 * 49 * 16 * 8 * 4
    assert up.bytes_written == 4 * 8 * 14 * 14


def test_depthwise_convolution_keeps_its_groups_in_the_dims():
    """Groups are the batch of the implicit product."""
    made = costs.conv("forward", 2, 32, (8, 8), 32, 3, padding=1, groups=32, dtype="fp32")
    assert made.dims == (32, 128, 1, 9)


def test_fused_attention_skips_what_the_mask_hides_and_computes_scores_again_backward():
    """Causal: key not after query. Backward: five products, not four."""
    shape = (2, 4, 4, 128, 128, 64)
    kind = {"masked": False, "dtype": "bf16", "algorithm": "flash"}
    whole = costs.attention("forward", *shape, causal=False, **kind)
    causal = costs.attention("forward", *shape, causal=True, **kind)
    back = costs.attention("backward", *shape, causal=False, **kind)
    assert whole.flops == 4 * 2 * 4 * 128 * 128 * 64
    assert causal.flops == whole.flops * 129 / 256
    assert back.flops == 2.5 * whole.flops
    slow = costs.attention("forward", *shape, causal=False, **(kind | {"algorithm": "math"}))
    assert slow.bytes_moved - whole.bytes_moved == 2 * 4 * 2 * 4 * 128 * 128 - 4 * 2 * 4 * 128


def test_grouped_keys_and_values_are_read_once_for_their_group():
    """kv_heads, not heads, decides the bytes of keys and values."""
    made = costs.attention(
        "forward", 1, 8, 2, 16, 16, 4, causal=False, masked=False, dtype="fp32", algorithm="math"
    )
    scores = 8 * 16 * 16
    assert made.bytes_read == 4 * (8 * 16 * 4 + 2 * 2 * 16 * 4 + 2 * scores)


def test_a_recurrent_network_counts_its_products_by_gates():
    """Four products with input and state in an LSTM, three in a GRU; backward is twice."""
    lstm = costs.rnn("forward", "lstm", 1, 32, 64, 8, 10, False, "fp32")
    back = costs.rnn("backward", "lstm", 1, 32, 64, 8, 10, False, "fp32")
    gru = costs.rnn("forward", "gru", 2, 32, 64, 8, 10, True, "fp32")
    assert lstm.flops == pytest.approx(2 * 80 * 4 * 64 * (32 + 64), rel=0.06)
    assert back.flops == 2 * lstm.flops
    assert gru.flops == pytest.approx(2 * 80 * 2 * 3 * 64 * (32 + 64 + 128 + 64), rel=0.06)


def test_optimizer_styles_move_what_torch_moves():
    """AdamW: 20 passes over the parameters by lists, 7 when fused; as many kernels a parameter."""
    sizes = [1000, 10, 1000]
    by_list = costs.optimizer_step("adamw", sizes, style="foreach")
    kernels = [each for each in by_list if each.kind is Kind.FOREACH]
    assert sum(each.bytes_moved for each in kernels) == 20 * 4 * 2010
    assert [each.kernels for each in kernels] == [1] * 8
    (_, fused) = costs.optimizer_step("adamw", sizes, style="fused")
    assert fused.bytes_moved == 7 * 4 * 2010
    loop = costs.optimizer_step("adamw", sizes, style="loop")
    assert sum(each.count * each.kernels for each in loop) == 8 * 3


def test_a_long_list_takes_more_kernels():
    """Arguments of a kernel hold 110 tensors or 320 blocks of 65536 elements."""
    assert costs.foreach("sgd", 111, 111, fused=False, lists=1).kernels == 2
    assert costs.foreach("sgd", 110, 110, fused=False, lists=1).kernels == 1
    assert costs.foreach("sgd", 1, 321 * 65536, fused=False, lists=1).kernels == 2


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: costs.gemm(1, 1, 1, 1, dtype="fp3"), "fp3"),
        (lambda: costs.optimizer_step("lion", [1]), "lion"),
        (lambda: costs.optimizer_step("adamw", [1], style="quick"), "quick"),
        (lambda: costs.optimizer_step("rmsprop", [1], style="fused"), "fused rmsprop"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(call, named):
    """The error also names the request."""
    with pytest.raises(ConfigError, match=named):
        call()
