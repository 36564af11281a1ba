"""Cost of compute-bound operations: matrix products, convolutions, attention, recurrent layers."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Unpack

from wattloop.predict.workload.costs.context import OpContext, element_bytes, operation, start
from wattloop.predict.workload.operation import Kind, Operation


def gemm(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str,
    layout: str = "nn",
    bias: bool = False,
    **place: Unpack[OpContext],
) -> Operation:
    """Return a batch of B products of M x K with K x N into row-major M x N.

    A linear layer's forward is `nt` (its weight is stored N x K), the gradient of its input `nn`,
    the gradient of its weight `tn`. A bias is added in the same kernel.
    """
    size = element_bytes(dtype)
    made = replace(
        start(Kind.GEMM, "aten.bmm" if b > 1 else ("aten.addmm" if bias else "aten.mm"), dtype),
        flops=2.0 * b * m * n * k,
        bytes_read=float(size) * (b * (m * k + k * n) + (n if bias else 0)),
        bytes_written=float(size) * b * m * n,
        dims=(b, m, n, k),
    )
    return operation(made, place, {"layout": layout, "bias": bias})


Lengths = int | Sequence[int]
"""One number for all axes, or one for each."""


def conv(  # noqa: PLR0913 - a convolution has that many numbers
    direction: str,
    n: int,
    c_in: int,
    hw: Sequence[int],
    c_out: int,
    kernel: Lengths,
    *,
    stride: Lengths = 1,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    groups: int = 1,
    dtype: str,
    channels_last: bool = False,
    transposed: bool = False,
    output_padding: Lengths = 0,
    bias: bool = False,
    **place: Unpack[OpContext],
) -> Operation:
    """Return one pass of a convolution of `n` images of `c_in` channels and size `hw` (of the
    input).

    `direction` is `forward`, `data` or `weight`. One axis is a picture of height 1; three fold
    the first two into the height. A transposed convolution does what the gradient of the input of
    the convolution back does, and has that one's dims.
    """
    axes = len(hw)
    kernel, stride, padding, dilation, output_padding = (
        _per_axis(value, axes) for value in (kernel, stride, padding, dilation, output_padding)
    )
    out = conv_output(hw, kernel, stride, padding, dilation, transposed, output_padding)
    small, (rows, columns) = (hw, (c_in, c_out)) if transposed else (out, (c_out, c_in))
    dims = (groups, n * prod(small), rows // groups, columns // groups * prod(kernel))
    size = element_bytes(dtype)
    x = n * c_in * prod(hw)
    y = n * c_out * prod(out)
    w = c_out * (c_in // groups) * prod(kernel)
    moved = {
        "forward": (x + w + (c_out if bias else 0), y),
        "data": (y + w, x),
        "weight": (x + y, w),
    }[direction]
    made = replace(
        start(
            Kind.CONV,
            "aten.convolution" if direction == "forward" else "aten.convolution_backward",
            dtype,
            direction,
        ),
        flops=2.0 * prod(dims),
        bytes_read=float(size) * moved[0],
        bytes_written=float(size) * moved[1],
        dims=dims,
    )
    return operation(
        made,
        place,
        {
            "direction": direction,
            "n": n,
            "c_in": c_in,
            "h": _folded(hw)[0],
            "w": _folded(hw)[1],
            "c_out": c_out,
            "k_h": _folded(kernel)[0],
            "k_w": _folded(kernel)[1],
            "stride": _folded(stride),
            "padding": _folded(padding, empty=0),
            "dilation": _folded(dilation),
            "groups": groups,
            "channels_last": channels_last,
            "transposed": transposed,
        },
    )


def conv_output(
    hw: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0, 0),
) -> tuple[int, ...]:
    """Return the lengths of the result along each axis."""
    axes = zip(hw, kernel, stride, padding, dilation, output_padding, strict=False)
    if transposed:
        return tuple((x - 1) * s - 2 * p + d * (k - 1) + o + 1 for x, k, s, p, d, o in axes)
    return tuple((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in axes)


def _per_axis(value: Lengths, axes: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def _folded(lengths: Sequence[int], empty: int = 1) -> tuple[int, int]:
    """Return height and width; one axis is a width, three have the first two in the height."""
    if len(lengths) == 1:
        return empty, lengths[0]
    *high, width = lengths
    return (sum(high) if empty == 0 else prod(high)), width


def attention(  # noqa: PLR0913 - attention has that many numbers
    direction: str,
    batch: int,
    heads: int,
    kv_heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    *,
    causal: bool,
    masked: bool,
    dtype: str,
    algorithm: str,
    value_dim: int | None = None,
    mask_elements: int | None = None,
    **place: Unpack[OpContext],
) -> Operation:
    """Return attention of `heads` queries over `kv_heads` keys and values, forward or backward.

    `flash` and `efficient` never write the scores and skip what a causal mask hides; `math`
    computes all of them and moves them between its kernels. `value_dim` is the width of the
    values where it differs, `mask_elements` the size of the mask as stored (one row by default).
    """
    size = element_bytes(dtype)
    value_dim = head_dim if value_dim is None else value_dim
    scores = batch * heads * q_len * kv_len
    fused = algorithm != "math"
    pairs = batch * heads * _causal_pairs(q_len, kv_len) if causal and fused else scores
    q, o = batch * heads * q_len * head_dim, batch * heads * q_len * value_dim
    k, v = batch * kv_heads * kv_len * head_dim, batch * kv_heads * kv_len * value_dim
    mask = (batch * kv_len if mask_elements is None else mask_elements) if masked else 0
    # The log of each row's sum, in fp32, is stored for the backward pass.
    rows_bytes = 4.0 * batch * heads * q_len if fused else 0.0
    if direction == "forward":
        flops = 2.0 * pairs * (head_dim + value_dim)
        read = float(size) * (q + k + v + mask)
        written = float(size) * o + rows_bytes
        # Scores written by the product, read and written by the softmax, read by the product.
        passes = (2, 2)
        kernels = 1 if fused else 4 + (causal or masked)
    else:
        # Fused kernels compute the scores again: five products instead of four.
        flops = 2.0 * pairs * ((3 if fused else 2) * head_dim + 2 * value_dim)
        read = float(size) * (q + k + v + 2 * o + mask) + rows_bytes
        written = float(size) * (q + k + v)
        passes = (5, 3)
        kernels = 3 if fused else 7
    made = replace(
        start(
            Kind.ATTENTION,
            "aten.scaled_dot_product_attention" + ("" if direction == "forward" else "_backward"),
            dtype,
            direction,
        ),
        flops=flops,
        bytes_read=read + (0 if fused else float(size) * passes[0] * scores),
        bytes_written=written + (0 if fused else float(size) * passes[1] * scores),
        kernels=kernels,
    )
    return operation(
        made,
        place,
        {
            "direction": direction,
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "q_len": q_len,
            "kv_len": kv_len,
            "head_dim": head_dim,
            "causal": causal,
            "masked": masked,
            "algorithm": algorithm,
        },
    )


def _causal_pairs(q_len: int, kv_len: int) -> int:
    """Return the pairs of query and key with the key not after the query (from the top left)."""
    whole = min(q_len, kv_len)
    return whole * (whole + 1) // 2 + (q_len - whole) * kv_len


GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Products of a cell with its input, and as many with its state."""


def rnn(  # noqa: PLR0913 - a recurrent layer has that many numbers
    direction: str,
    cell: str,
    layers: int,
    input_size: int,
    hidden: int,
    batch: int,
    seq: int,
    bidirectional: bool,
    dtype: str,
    *,
    biased: bool = True,
    training: bool = True,
    **place: Unpack[OpContext],
) -> Operation:
    """Return all layers of a recurrent network over a sequence, forward or backward.

    The backward pass computes gradients of input, state and weights: twice the forward's
    products. Weights are counted as moved once; that they are read again at each step is the
    model's to know. In training the forward also writes what the backward reads (the reserve).
    """
    size = element_bytes(dtype)
    ways = 2 if bidirectional else 1
    weights = rnn_weights(cell, layers, input_size, hidden, bidirectional, biased)
    products = rnn_weights(cell, layers, input_size, hidden, bidirectional, biased=False)
    x, y = batch * seq * input_size, batch * seq * hidden * ways
    states = layers * ways * batch * hidden * (2 if cell == "lstm" else 1)
    reserve = rnn_reserve_elements(cell, layers, hidden, batch, seq, bidirectional)
    pointwise = 10.0 * GATES[cell] * layers * ways * batch * seq * hidden / 4
    flops = 2.0 * batch * seq * products + pointwise
    if direction == "forward":
        read, written = x + weights + states, y + states + (reserve if training else 0)
    else:
        flops = 2 * flops
        read, written = 2 * y + x + weights + states + reserve, x + weights + states
    made = replace(
        start(
            Kind.RNN,
            "aten._cudnn_rnn" + ("" if direction == "forward" else "_backward"),
            dtype,
            direction,
        ),
        flops=flops,
        bytes_read=float(size) * read,
        bytes_written=float(size) * written,
        # Each layer and way: one product for all inputs, then a kernel per step (cuDNN overlaps
        # products and gates of neighbouring layers; the backward has the weights' product more).
        kernels=layers * ways * (seq + (1 if direction == "forward" else 3)),
    )
    return operation(
        made,
        place,
        {
            "direction": direction,
            "cell": cell,
            "layers": layers,
            "input": input_size,
            "hidden": hidden,
            "batch": batch,
            "seq": seq,
            "bidirectional": bidirectional,
        },
    )


def rnn_weights(
    cell: str, layers: int, input_size: int, hidden: int, bidirectional: bool, biased: bool
) -> int:
    """Return the number of weights of all layers."""
    ways = 2 if bidirectional else 1
    per_row = layers * (hidden + (2 if biased else 0)) + input_size + (layers - 1) * hidden * ways
    return GATES[cell] * hidden * ways * per_row


def rnn_reserve_elements(
    cell: str, layers: int, hidden: int, batch: int, seq: int, bidirectional: bool
) -> int:
    """Return the elements stored for the backward pass: each gate, and the state of the cell."""
    ways = 2 if bidirectional else 1
    return (GATES[cell] + 1) * layers * ways * batch * seq * hidden
