"""Time of matrix products and convolutions."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.alignment import halvings_short
from wattloop.predict.models.kernels.classes import is_apart
from wattloop.predict.models.kernels.streams import bandwidth_seconds
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.tiles import ProductUnits, product_seconds
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind

__all__ = ["conv_dims", "peak_flops", "product_times"]

SUM_BYTES = 4.0
"""Of one element of a sum."""


def product_times(
    table: OperationTable, values: Values, gpu: Gpu
) -> tuple[NDArray[np.intp], Floats]:
    """Rows of products and dense convolutions, and the seconds of one call of each."""
    rows = np.array(
        [i for i, name in enumerate(table.classes) if name.split(".")[0] in _FAMILIES],
        dtype=np.intp,
    )
    names = [table.classes[i] for i in rows]
    dims = table.dims(rows)
    convs = table.kinds[rows] == str(Kind.CONV)
    directions = table.directions[rows]
    dims = np.where(convs[:, None], conv_dims(dims, directions), dims)
    peaks = peak_flops(gpu, table.dtypes[rows])
    units = ProductUnits(
        flops_s=peaks * values.column("product.efficiency", names),
        l2_bytes_s=gpu.memory_bytes_s * values.column("product.l2_share", names),
        memory_bytes_s=gpu.memory_bytes_s * values["stream.efficiency"],
        tile_s=values.column("product.tile_s", names),
        splits=values.column("product.splits", names),
        sms=gpu.sms,
    )
    size = table.element_bytes[rows]
    seconds = product_seconds(dims, size, units)
    # The penalty is for the worst case, rows that start at any element; half of it for every other.
    short = np.array([halvings_short(table.operations[i]) for i in rows]) / 3
    seconds *= np.where(convs, 1.0, values.column("product.misaligned", names) ** short)
    moved = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["product"] * len(rows))
    seconds = np.maximum(seconds, moved)
    channels_last = table.detail(rows, "channels_last", 0.0) > 0
    passes = values.column("product.layout_passes", names)
    seconds += np.where(convs & ~channels_last, passes * 2 * moved, 0.0)
    apart = np.array([is_apart(table.operations[i]) for i in rows], dtype=np.bool_)
    if apart.any():
        sums = np.prod([table.detail(rows, key) for key in ("n", "c_in", "c_out")], axis=0)
        twice = bandwidth_seconds(2 * SUM_BYTES * sums, values, gpu, ["product"] * len(rows))
        seconds += np.where(apart, twice, 0.0)  # written, then read to be added
    return rows, seconds


_FAMILIES = ("gemm", "conv", "grouped")


def conv_dims(dims: Floats, directions: NDArray[np.str_]) -> Floats:
    """(B, M, N, K) of the product that a pass of a convolution really is.

    `dims` are those of forward: (groups, pixels, C_out, C_in k_h k_w). The gradient of the input
    sums over C_out and the window, the gradient of the weight over the pixels.
    """
    b, m, n, k = dims.T
    data = np.stack([b, m, k, n], axis=1)
    weight = np.stack([b, n, k, m], axis=1)
    backward = (directions == "data")[:, None]
    return np.where(backward, data, np.where((directions == "weight")[:, None], weight, dims))


def peak_flops(gpu: Gpu, dtypes: NDArray[np.str_]) -> Floats:
    """Peak of the units that a product of each dtype runs on."""
    peaks = {dtype: _peak(gpu, dtype) for dtype in set(dtypes.tolist())}
    return np.array([peaks[dtype] for dtype in dtypes.tolist()], dtype=np.float64)


def _peak(gpu: Gpu, dtype: str) -> float:
    vector = gpu.vector_flops.get("fp32", 1e12)
    if dtype in gpu.matrix_flops:  # fp32 is among them on AMD only
        return gpu.matrix_flops[dtype]
    # Without matrix units for it, tf32 falls back to fp32 and bf16 is emulated at its rate.
    return gpu.vector_flops.get(dtype, vector)
