"""Recurrent layers as cuDNN runs them: one call for all layers and steps."""

from dataclasses import replace
from typing import Unpack

from wattloop.predict.workload.costs.place import Place, element_bytes, operation, start
from wattloop.predict.workload.operation import Kind, Operation

__all__ = ["GATES", "rnn", "rnn_reserve_elements", "rnn_weights"]

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
    **place: Unpack[Place],
) -> Operation:
    """All layers of a recurrent network over a sequence, forward or backward.

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
    """Number of weights of all layers."""
    ways = 2 if bidirectional else 1
    per_row = layers * (hidden + (2 if biased else 0)) + input_size + (layers - 1) * hidden * ways
    return GATES[cell] * hidden * ways * per_row


def rnn_reserve_elements(
    cell: str, layers: int, hidden: int, batch: int, seq: int, bidirectional: bool
) -> int:
    """Elements kept for the backward pass: each gate, and the state of the cell."""
    ways = 2 if bidirectional else 1
    return (GATES[cell] + 1) * layers * ways * batch * seq * hidden
