"""Work and occupancy of operations, from which energy is computed."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.constants import Values
from wattloop.predict.models.kernels.kernel_time import BLOCK, conv_dims, filled_share
from wattloop.predict.models.kernels.operation_table import Floats, OperationTable, size_of, unit_of
from wattloop.predict.workload.costs.compute import GATES
from wattloop.predict.workload.operation import Kind, Operation

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


_PRODUCTS = (Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN)


def work_of(table: OperationTable, total_s: Floats, values: Values, gpu: Gpu) -> Floats:
    """Return FLOPs by unit, bytes from memory and busy seconds; a row each, a column per operation.

    Busy is the time of a kernel beyond that of an empty one, which draws little power, times its
    occupancy.
    """
    families = np.array([name.partition(".")[0] for name in table.classes], dtype=np.str_)
    product = np.isin(table.kinds, [str(kind) for kind in _PRODUCTS]) & (families != "depthwise")
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
    """Return the share of each row's bytes that L2 has."""
    room = 2 * gpu.l2_bytes * values["stream.l2_share"]
    return values["stream.l2_use"] * np.clip(1 - table.bytes_moved / room, 0.0, 1.0)
