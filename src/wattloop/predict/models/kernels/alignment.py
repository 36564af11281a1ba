"""Whether the rows of a product's operands start at addresses that kernels like."""

import math

from wattloop.predict.workload.operation import DTYPE_BYTES, Operation

__all__ = ["halvings_short"]

ALIGNED_BYTES = 16
"""Matrix units load rows that start at multiples of this at full speed."""


def halvings_short(op: Operation) -> int:
    """How many halvings of 16 bytes the worst row begins at: 0 is aligned, 3 any bf16 element.

    What counts is the length of a stored row: of both operands, as the layout says, and of the
    result.
    """
    _, m, n, k = op.dims or (1, 8, 8, 8)
    layout = str(op.detail.get("layout", "nn"))
    lengths = (m if layout[:1] == "t" else k, k if layout[1:] == "t" else n, n)
    size = DTYPE_BYTES.get(op.dtype, 4)
    worst = min(math.gcd(length * size, ALIGNED_BYTES) for length in lengths)
    return int(math.log2(ALIGNED_BYTES / worst))
