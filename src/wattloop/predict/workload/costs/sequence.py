"""Attention and recurrent layers: cost, and rules of the calls that CUDA runs whole.

`tracing.fused_ops` keeps these calls whole in a trace.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Unpack

from wattloop.predict.workload.costs.call import (
    Call,
    OpContext,
    dtype_name,
    element_bytes,
    make_operation,
)
from wattloop.predict.workload.costs.stream import copy, elementwise
from wattloop.predict.workload.operation import Kind, Operation


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
    if not fused:
        read += float(size) * passes[0] * scores
        written += float(size) * passes[1] * scores
    return make_operation(
        Kind.ATTENTION,
        "aten.scaled_dot_product_attention" + ("" if direction == "forward" else "_backward"),
        dtype,
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
        direction=direction,
        flops=flops,
        bytes_read=read,
        bytes_written=written,
        kernels=kernels,
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
    return make_operation(
        Kind.RNN,
        "aten._cudnn_rnn" + ("" if direction == "forward" else "_backward"),
        dtype,
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
        direction=direction,
        flops=flops,
        bytes_read=float(size) * read,
        bytes_written=float(size) * written,
        # Each layer and way: one product for all inputs, then a kernel per step (cuDNN overlaps
        # products and gates of neighbouring layers; the backward has the weights' product more).
        kernels=layers * ways * (seq + (1 if direction == "forward" else 3)),
    )


def rnn_weights(
    cell: str, layers: int, input_size: int, hidden: int, bidirectional: bool, biased: bool
) -> int:
    ways = 2 if bidirectional else 1
    per_row = layers * (hidden + (2 if biased else 0)) + input_size + (layers - 1) * hidden * ways
    return GATES[cell] * hidden * ways * per_row


def rnn_reserve_elements(
    cell: str, layers: int, hidden: int, batch: int, seq: int, bidirectional: bool
) -> int:
    """Return the elements stored for the backward pass: each gate, and the state of the cell."""
    ways = 2 if bidirectional else 1
    return (GATES[cell] + 1) * layers * ways * batch * seq * hidden


def _attention(call: Call) -> Operation:
    direction = "backward" if call.name.endswith("_backward") else "forward"
    q, k, v, mask, causal, algorithm = call.args[:6]
    batch, heads, q_len, head_dim = (1,) * (4 - q.dim()) + tuple(q.shape)
    kv_heads, kv_len = (1, k.shape[-2]) if k.dim() == 3 else tuple(k.shape[1:3])
    place = call.place
    # Compiled models say what slows the kernel down: `flash+hidden+dropout`.
    algorithm, *slower = str(algorithm).split("+")
    mask_elements = 0 if mask is None else mask.numel()
    if mask is not None and mask.requires_grad:  # read once for all heads, its gradient in each
        stored = prod(n for n, step in zip(mask.shape, mask.stride(), strict=True) if step)
        mask_elements = stored + (mask.numel() if direction == "backward" else 0)
    made = attention(
        direction,
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        head_dim,
        causal=causal,
        masked=mask is not None and "hidden" not in slower,
        dtype=call.product_dtype,
        algorithm=algorithm,
        value_dim=v.shape[-1],
        mask_elements=mask_elements,
        **OpContext(
            op=call.name.replace("wattloop.attention", "aten.scaled_dot_product_attention"),
            phase=call.phase,
            module=call.module,
            inputs=place["inputs"],
            outputs=tuple(shape for shape in place["outputs"] if prod(shape)),
        ),
    )
    return replace(made, detail={**made.detail, **dict.fromkeys(slower, True)}) if slower else made


def _rnn(call: Call) -> list[Operation]:
    direction = "backward" if call.name.endswith("_backward") else "forward"
    cell, hidden, layers, bidirectional, batch_first, biased = call.args[-7:-1]
    training = call.args[-1]
    x = call.args[0] if direction == "forward" else call.args[1]
    seq, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    place = call.place
    made = rnn(
        direction,
        cell,
        layers,
        x.shape[-1],
        hidden,
        batch,
        seq,
        bidirectional,
        call.product_dtype,
        biased=biased,
        training=training,
        **OpContext(
            op=call.name.replace("wattloop.rnn", "aten._cudnn_rnn"),
            phase=call.phase,
            module=call.module,
            inputs=place["inputs"],
            outputs=place["outputs"],
        ),
    )
    if not batch_first:
        return [made]
    # cuDNN wants the sequence first and the input dense.
    name = dtype_name(x.dtype)
    turned = copy(
        x.numel(), name, name, strided=True, **(call.part | OpContext(op="aten.contiguous"))
    )
    return [replace(turned, calls=1), made]


def _gates(call: Call) -> Operation:
    op = call.name.replace("wattloop.", "aten._thnn_fused_").replace("_gates", "_cell")
    place = call.place | OpContext(op=op)
    return elementwise(call.elements, 0, 0, call.dtype, flops_per_element=6.0, **place)


RULES: dict[str, Callable[[Call], Operation | list[Operation]]] = {
    "wattloop.attention": _attention,
    "wattloop.attention_backward": _attention,
    "wattloop.rnn": _rnn,
    "wattloop.rnn_backward": _rnn,
    **{
        f"wattloop.{cell}_gates{end}": _gates
        for cell in ("lstm", "gru")
        for end in ("", "_backward")
    },
}
