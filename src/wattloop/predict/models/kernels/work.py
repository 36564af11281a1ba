"""The work of operations that energy is charged for."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.classes import unit_of
from wattloop.predict.models.kernels.occupancy import occupancy_of
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind

__all__ = ["MEMORY", "WORK", "work_of"]

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
"""Part of a small kernel's time in which the GPU is more than waiting."""

_PRODUCTS = (Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN)


def work_of(table: OperationTable, total_s: Floats, values: Values, gpu: Gpu) -> Floats:
    """FLOPs by unit, bytes from memory and busy seconds; a line each, a column per operation.

    Busy is what a kernel takes beyond the time of an empty one, which draws next to nothing, as
    far as it fills the GPU.
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
    """Which busy watts a class of operations draws."""
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
    """Share of each row's bytes that L2 has."""
    room = 2 * gpu.l2_bytes * values["stream.l2_share"]
    return values["stream.l2_use"] * np.clip(1 - table.bytes_moved / room, 0.0, 1.0)
