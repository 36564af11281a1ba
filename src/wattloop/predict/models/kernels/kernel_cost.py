"""Time of operations on the GPU by formula, and the work that energy is computed from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import Residuals, Values
from wattloop.predict.models.kernels.operation_table import (
    Floats,
    OperationTable,
    halvings_short,
    is_apart,
    size_of,
    unit_of,
)
from wattloop.predict.workload.costs.sequence import GATES
from wattloop.predict.workload.operation import MATRIX_KINDS, Kind, Operation

Rows = NDArray[np.intp]
"""Rows of a table, for which a function returns the seconds of one call of each."""

# Time of memory-bound operations: bytes over the bandwidth they reach.
#
#     time = bytes x ((1 - h) / (e B) + h / (s e B)),   h = share of the bytes found in L2
#
# B is the data sheet's bandwidth, e the class's efficiency, s how much quicker L2 is.


def stream_times(table: OperationTable, rows: Rows, values: Values, gpu: Gpu) -> Floats:
    names = [table.classes[i] for i in rows]
    seconds = bandwidth_seconds(table.bytes_moved[rows], values, gpu, names)
    return seconds + values.column("stream.start_s", names)


def bandwidth_seconds(moved: Floats, values: Values, gpu: Gpu, names: Sequence[str]) -> Floats:
    """Return the seconds to move so many bytes, with L2 hits."""
    speed = gpu.memory_bytes_s * values.column("stream.efficiency", names)
    room = gpu.l2_bytes * values["stream.l2_share"]
    hit = values["stream.l2_use"] * np.clip(1 - moved / (2 * room), 0.0, 1.0)
    return moved * ((1 - hit) + hit / values["stream.l2_speed"]) / speed


# Matrix products as tiles over the GPU's multiprocessors.
#
#     time = waves x (K-loop of one tile + prologue and epilogue),  waves = ceil(tiles / SMs)
#
# The library picks a tile shape (and a split of K when there are too few tiles); the model takes
# the fastest of a few, which the library's heuristics aim at.
TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
     (32, 64), (64, 32), (32, 32)],
    dtype=np.float64,
)  # fmt: skip
"""Rows and columns of the result that one multiprocessor computes at a time."""
SPLITS = np.array([1, 2, 4, 8, 16, 32], dtype=np.float64)
"""Splits of the K-loop, each for another multiprocessor."""
SMALLEST_K = 64.0
"""The K-loop is not split into shorter parts."""
SMALLEST_FILLING, SMALLEST_FILLING_K = 64.0, 256.0
"""Libraries do not use smaller tiles or shorter sums only to keep more multiprocessors busy."""


@dataclass(frozen=True, slots=True)
class ProductUnits:
    """Units that a product runs on, one value per row.

    Attributes:
        flops_s: peak times efficiency of the whole GPU.
        l2_bytes_s: L2 to the multiprocessors, all together.
        memory_bytes_s: achieved bandwidth of memory.
        tile_s: prologue and epilogue of a tile.
        splits: largest split of K.
        sms: multiprocessors.
    """

    flops_s: Floats
    l2_bytes_s: Floats
    memory_bytes_s: float
    tile_s: Floats
    splits: Floats
    sms: int


def product_seconds(dims: Floats, element_bytes: Floats, units: ProductUnits) -> Floats:
    """Seconds of each product of `dims` (B, M, N, K), without the minimum of a kernel."""
    if not len(dims):
        return np.zeros(0)
    b, m, n, k = (dims[:, i, None, None] for i in range(4))
    tile_m, tile_n = TILES[None, :, 0, None], TILES[None, :, 1, None]
    split = SPLITS[None, None, :]
    k_part = np.ceil(k / split)
    tiles = b * np.ceil(m / tile_m) * np.ceil(n / tile_n) * split
    sms = float(units.sms)
    waves = np.ceil(tiles / sms)
    size = element_bytes[:, None, None]
    arithmetic = 2 * tile_m * tile_n * k_part / (units.flops_s[:, None, None] / sms)
    # Fewer tiles than multiprocessors share the whole of L2's bandwidth.
    active = np.minimum(tiles, sms)
    loading = (tile_m + tile_n) * k_part * size / (units.l2_bytes_s[:, None, None] / active)
    partial_sums = np.where(split > 1, 2 * 4 * b * m * n * split, 0.0) / units.memory_bytes_s
    seconds = waves * (np.maximum(arithmetic, loading) + units.tile_s[:, None, None]) + partial_sums
    forbidden = (k_part < SMALLEST_K) | (split > units.splits[:, None, None])
    seconds = np.where((split > 1) & forbidden, np.inf, seconds)
    quickest: Floats = seconds.min(axis=(1, 2))
    return quickest


def filled_share(dims: Floats, sms: int) -> Floats:
    """Return the largest share of busy multiprocessors over tiles and splits, for (B, M, N, K)."""
    b, m, n, k = (dims[:, i, None, None] for i in range(4))
    large = TILES[TILES.min(axis=1) >= SMALLEST_FILLING]
    split = SPLITS[None, None, :]
    tiles = b * np.ceil(m / large[None, :, 0, None]) * np.ceil(n / large[None, :, 1, None]) * split
    shares = tiles / (np.ceil(tiles / sms) * sms)
    shares = np.where((split > 1) & (k / split < SMALLEST_FILLING_K), 0.0, shares)
    best: Floats = shares.max(axis=(1, 2))
    return best


SUM_BYTES = 4.0
"""Of one element of a sum."""


def product_times(table: OperationTable, rows: Rows, values: Values, gpu: Gpu) -> Floats:
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
    # The penalty is for the worst case, rows at any element; half of it for every second element.
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
        seconds += np.where(apart, twice, 0.0)  # written, then read for the sum
    return seconds


def conv_dims(dims: Floats, directions: NDArray[np.str_]) -> Floats:
    """Return (B, M, N, K) of the product that a pass of a convolution computes.

    `dims` are those of forward: (groups, pixels, C_out, C_in k_h k_w). The gradient of the input
    sums over C_out and the window, the gradient of the weight over the pixels.
    """
    b, m, n, k = dims.T
    data = np.stack([b, m, k, n], axis=1)
    weight = np.stack([b, n, k, m], axis=1)
    backward = (directions == "data")[:, None]
    return np.where(backward, data, np.where((directions == "weight")[:, None], weight, dims))


def peak_flops(gpu: Gpu, dtypes: NDArray[np.str_]) -> Floats:
    peaks = {dtype: _peak(gpu, dtype) for dtype in set(dtypes.tolist())}
    return np.array([peaks[dtype] for dtype in dtypes.tolist()], dtype=np.float64)


def _peak(gpu: Gpu, dtype: str) -> float:
    vector = gpu.vector_flops.get("fp32", 1e12)
    if dtype in gpu.matrix_flops:  # fp32 is among them on AMD only
        return gpu.matrix_flops[dtype]
    # Without matrix units for it, tf32 falls back to fp32 and bf16 is emulated at its rate.
    return gpu.vector_flops.get(dtype, vector)


BLOCK = 128.0
"""Queries (forward) or keys (backward) that one multiprocessor works on at a time."""
SINGLE_BLOCK = 64.0
"""The same for one query on a cache, chosen on decode steps (benchmarks/predict_generation.py).

Microbenchmarks have no single queries. Those of 16 to 64 queries agree with `BLOCK`.
"""


def attention_times(table: OperationTable, rows: Rows, values: Values, gpu: Gpu) -> Floats:
    names = [table.classes[i].removeprefix("attention.") for i in rows]
    backward = table.directions[rows] == "backward"
    queries, keys = table.detail(rows, "q_len"), table.detail(rows, "kv_len")
    length = np.where(backward, keys, queries)
    block = np.where(~backward & (queries == 1), SINGLE_BLOCK, BLOCK)
    blocks = table.detail(rows, "batch") * table.detail(rows, "heads") * np.ceil(length / block)
    waves = np.ceil(blocks / gpu.sms)
    # A padded block costs as much as a full one.
    full = table.flops[rows] * (np.ceil(length / block) * block / length)
    units = np.array([unit_of(table.operations[i]) for i in rows], dtype=np.str_)
    speed = peak_flops(gpu, units) * values.column("attention.efficiency", names)
    seconds = waves * (
        full / blocks / (speed / gpu.sms) + values.column("attention.block_s", names)
    )
    for what in ("hidden", "dropout"):
        slower = table.detail(rows, what, 0.0) > 0
        seconds *= np.where(slower, values.column(f"attention.{what}", names), 1.0)
    moved = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["attention"] * len(rows))
    return np.maximum(seconds, moved)


# Time of recurrent layers as cuDNN runs them.
#
#     time = steps x product of one time step + products over all steps together
#
# A step multiplies the state (batch x hidden) with the gates' weights and has to wait for the step
# before; inputs, and in backward the gradients of weights and inputs, are products over the whole
# sequence.
def recurrent_times(table: OperationTable, rows: Rows, values: Values, gpu: Gpu) -> Floats:
    names = [table.classes[i].removeprefix("rnn.") for i in rows]
    speed = peak_flops(gpu, table.dtypes[rows]) * values.column("rnn.efficiency", names)
    step_s = values.column("rnn.step_s", names)
    batch, hidden, seq = (table.detail(rows, key) for key in ("batch", "hidden", "seq"))
    ways = 1 + table.detail(rows, "bidirectional", 0.0)
    stacks = table.detail(rows, "layers") * ways
    cells = [str(table.operations[i].detail.get("cell", "lstm")) for i in rows]
    wide = np.array([GATES.get(cell, 4) for cell in cells]) * hidden
    backward = table.directions[rows] == "backward"
    # Forward: state times weights; backward: gradient of the gates times transposed weights.
    n, k = np.where(backward, hidden, wide), np.where(backward, wide, hidden)
    dims = np.stack([np.ones(len(rows)), batch, n, k], axis=1)
    units = ProductUnits(
        flops_s=speed,
        l2_bytes_s=gpu.memory_bytes_s * values.column("product.l2_share", names),
        memory_bytes_s=gpu.memory_bytes_s * values["stream.efficiency"],
        tile_s=step_s,
        splits=np.full(len(rows), 4.0),
        sms=gpu.sms,
    )
    each = product_seconds(dims, table.element_bytes[rows], units)
    steps = seq * stacks
    alone = 2 * batch * wide * hidden * steps
    together = np.maximum(table.flops[rows] - alone, 0.0) / speed
    moved = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["rnn"] * len(rows))
    return np.maximum(steps * each + together, moved)


def depthwise_times(table: OperationTable, rows: Rows, values: Values, gpu: Gpu) -> Floats:
    names = [table.classes[i].removeprefix("depthwise.") for i in rows]
    speed = gpu.memory_bytes_s * values.column("depthwise.efficiency", names)
    start_s = values.column("depthwise.start_s", names)
    return table.bytes_moved[rows] / speed + start_s


TINY_SIDE = 4.0
"""Convolution results narrower than this, of this many pictures or more, differ from measured ones.
"""
MANY_PICTURES = 256


# Convolutions of many small pictures in fp32. cuDNN's kernel for the gradient of the input treats a
# picture of fewer than 4 x 4 pixels as one of 4 x 4. For many channels its forward pass transforms
# pictures of up to about 7 x 7 in blocks of one size. Time then follows pictures and channels:
#
#     least time = FLOP-equivalents x n x c_in x c_out / fp32 peak
#
# Read off some 40 microbenchmarks of 3 x 3 windows on an H200 (cuDNN 9.19), most within 10%. None
# has 4096 pictures of one pixel and 256 channels: that these are transformed, and 1024 pictures of
# 2 x 2 are not, was inferred from steps of ResNet-18 and ResNet-34, which do not test it therefore.
GRADIENT_FLOPS, TRANSFORM_FLOPS = 1040.0, 1556.0
FEWEST_CHANNELS, FEWEST_TRANSFORMED = 160, 256
"""Channels from which cuDNN chooses these kernels; gradients of larger strides have no others."""
FEWEST_PIXELS = 4096
"""Of all pictures together, for the transform."""
MANY_TRANSFORMED, TRANSFORMED_SIDE = 2048, 3
"""Pictures narrower than this side are transformed where there are so many."""


def small_picture_seconds(table: OperationTable, gpu: Gpu) -> Floats:
    seconds = np.zeros(len(table))
    for row in table.rows_of(Kind.CONV):
        op, direction = table.operations[row], table.directions[row]
        if op.dtype != "fp32" or direction == "weight" or size_of(op.detail, "groups") > 1:
            continue
        n, c_in, c_out, height, width = (
            size_of(op.detail, key) for key in ("n", "c_in", "c_out", "h", "w")
        )
        if size_of(op.detail, "k_h") != 3 or size_of(op.detail, "k_w") != 3 or n < MANY_PICTURES:
            continue
        stride = size_of(op.detail, "stride")
        if direction == "data":
            is_it = stride > 1 or min(c_in, c_out) >= FEWEST_CHANNELS
            flops = GRADIENT_FLOPS
        else:
            is_many = n * height * width >= FEWEST_PIXELS
            is_many &= n >= MANY_TRANSFORMED or height >= TRANSFORMED_SIDE
            is_many &= min(c_in, c_out) >= FEWEST_TRANSFORMED
            is_it, flops = is_many and stride == 1, TRANSFORM_FLOPS
        if is_it:
            seconds[row] = flops * n * c_in * c_out / _peak(gpu, "fp32")
    return seconds


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Times of one call of each row.

    Attributes:
        seconds: GPU time.
        compute: where it is not memory that bounds it.
        far: distance to the nearest microbenchmark: 0 at one, 1 out of reach.
    """

    seconds: Floats
    compute: NDArray[np.bool_]
    far: Floats


def operation_times(
    table: OperationTable, values: Values, residuals: Residuals, gpu: Gpu
) -> OperationTimes:
    """Return calculated times, corrected by the residuals of this GPU's microbenchmarks."""
    times = calculated_times(table, values, gpu)
    factors, far = residuals.factors(table)
    scale = np.exp(values.column("scale", scale_scopes(table)))
    floor = values["kernel.minimum_s"] * np.minimum(table.kernels, 1.0)
    floor = np.maximum(floor, small_picture_seconds(table, gpu))
    return OperationTimes(np.maximum(times.seconds * factors * scale, floor), times.compute, far)


def calculated_times(table: OperationTable, values: Values, gpu: Gpu) -> OperationTimes:
    """Return times by formula alone; each further kernel of a call takes at least the minimum."""
    seconds = np.zeros(len(table))
    compute = np.zeros(len(table), dtype=np.bool_)
    families = np.array([name.split(".")[0] for name in table.classes], dtype=np.str_)
    streams = np.ones(len(table), dtype=np.bool_)
    for names, times in (
        (("gemm", "conv", "grouped"), product_times),
        (("attention",), attention_times),
        (("rnn",), recurrent_times),
        (("depthwise",), depthwise_times),
    ):
        rows = np.flatnonzero(np.isin(families, names))
        if not len(rows):
            continue
        seconds[rows] = times(table, rows, values, gpu)
        moved_s = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["product"] * len(rows))
        compute[rows] = seconds[rows] > 1.2 * moved_s
        streams[rows] = False
    rows = np.flatnonzero(streams)
    seconds[rows] = stream_times(table, rows, values, gpu)
    seconds += values["kernel.minimum_s"] * table.kernels
    return OperationTimes(seconds, compute, np.ones(len(table)))


def scale_scopes(table: OperationTable) -> list[str]:
    """Return family and precision of each row, for factors from training steps: `conv.bf16`."""
    return [
        f"{'tiny' if is_tiny(op) else name.split('.')[0]}."
        f"{unit_of(op) if op.kind is Kind.RNN else op.dtype}"
        for name, op in zip(table.classes, table.operations, strict=True)
    ]


def is_tiny(op: Operation) -> bool:
    """Return whether windows over many pictures are hardly smaller than these."""
    if op.kind is not Kind.CONV or size_of(op.detail, "k_h") <= 1:
        return False
    if size_of(op.detail, "n") < MANY_PICTURES:
        return False
    side = size_of(op.detail, "h") / math.sqrt(size_of(op.detail, "stride"))
    return side < TINY_SIDE


# Occupancy. A product has as many tiles as its result needs, times the splits of its sum; the last
# wave may be incomplete. torch's batch norms give each channel to one multiprocessor. Other
# memory-bound operations fill the GPU, unless they take no longer than an empty kernel.
LEAST = 0.02


def occupancy_of(table: OperationTable, gpu: Gpu) -> Floats:
    """Return the share of busy multiprocessors of each row, the mean over its waves."""
    shares = np.ones(len(table))
    products = np.flatnonzero(
        [name.split(".")[0] in ("gemm", "conv", "grouped") for name in table.classes]
    )
    if len(products):
        dims = table.dims(products)
        convs = table.kinds[products] == str(Kind.CONV)
        real = conv_dims(dims, table.directions[products])
        shares[products] = filled_share(np.where(convs[:, None], real, dims), gpu.sms)
    rnn = table.rows_of(Kind.RNN)
    if len(rnn):
        steps = [_time_step(table.operations[i], str(table.directions[i])) for i in rnn]
        shares[rnn] = filled_share(np.array(steps), gpu.sms)
    for i in table.rows_of(Kind.ATTENTION):
        shares[i] = _waves(_blocks(table.operations[i], str(table.directions[i])), gpu.sms)
    for i in table.rows_of(Kind.NORM):
        if table.classes[i].startswith("norm.batch"):
            shares[i] = min(size_of(table.operations[i].detail, "columns") / gpu.sms, 1.0)
    return np.clip(shares, LEAST, 1.0)


def _time_step(op: Operation, direction: str) -> tuple[float, float, float, float]:
    """Return (B, M, N, K) of the product that a recurrent layer computes in each time step."""
    hidden = size_of(op.detail, "hidden")
    wide = GATES.get(str(op.detail.get("cell", "lstm")), 4) * hidden
    n, k = (hidden, wide) if direction == "backward" else (wide, hidden)
    return 1.0, size_of(op.detail, "batch"), n, k


def _blocks(op: Operation, direction: str) -> float:
    length = size_of(op.detail, "kv_len" if direction == "backward" else "q_len")
    heads = size_of(op.detail, "batch") * size_of(op.detail, "heads")
    return heads * float(np.ceil(length / BLOCK))


def _waves(blocks: float, sms: int) -> float:
    return blocks / (float(np.ceil(blocks / sms)) * sms)


UNITS = ("bf16", "fp16", "tf32", "fp32", "fp64")
BUSY = ("product", "rnn", "norm", "norm.batch", "stream", "stream.strided", "stream.depthwise",
        "stream.grouped", "stream.pool")  # fmt: skip
MEMORY = "joule_per_byte"
WORK = (
    *(f"joule_per_flop.{unit}" for unit in UNITS),
    "joule_per_flop.vector",
    MEMORY,
    *(f"busy_w.{part}" for part in BUSY),
)
"""Names of the constants that the lines of `work_of` are multiplied with, under `power.`."""
LEAST_BUSY = 0.1
"""Least active share of a small kernel's time."""


def work_of(table: OperationTable, total_s: Floats, values: Values, gpu: Gpu) -> Floats:
    """Return FLOPs by unit, bytes from memory and busy seconds; a row each, a column per operation.

    Busy is the time of a kernel beyond that of an empty one, which draws little power, times its
    occupancy.
    """
    families = np.array([name.partition(".")[0] for name in table.classes], dtype=np.str_)
    product = np.isin(table.kinds, [str(kind) for kind in MATRIX_KINDS]) & (families != "depthwise")
    flops = table.flops * table.count
    units = np.array([unit_of(op) for op in table.operations], dtype=np.str_)
    lines = [np.where(product & (units == unit), flops, 0.0) for unit in UNITS]
    lines.append(np.where(product, 0.0, flops))
    lines.append(table.bytes_moved * table.count * (1 - _cached(table, values, gpu)))
    empty_s = values["kernel.minimum_s"] * table.kernels * table.count
    busy_s = np.maximum(total_s - empty_s, LEAST_BUSY * total_s) * occupancy_of(table, gpu)
    part = np.array([_part(name) for name in table.classes], dtype=np.str_)
    lines += [np.where(part == name, busy_s, 0.0) for name in BUSY]
    return np.stack(lines) if len(table) else np.zeros((len(WORK), 0))


def _part(name: str) -> str:
    """Return the name of the busy power of a class of operations."""
    family, _, rest = name.partition(".")
    if family in ("gemm", "conv", "attention"):
        return "product"
    if family in ("depthwise", "grouped", "pool"):
        return f"stream.{family}"
    if family == "norm":
        return "norm.batch" if rest.startswith("batch") else "norm"
    if family == "copy" and rest.startswith("strided"):
        return "stream.strided"
    return "rnn" if family == "rnn" else "stream"


def _cached(table: OperationTable, values: Values, gpu: Gpu) -> NDArray[np.float64]:
    room = 2 * gpu.l2_bytes * values["stream.l2_share"]
    return values["stream.l2_use"] * np.clip(1 - table.bytes_moved / room, 0.0, 1.0)
