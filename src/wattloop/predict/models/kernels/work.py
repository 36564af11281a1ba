"""The work of operations that energy is charged for."""

import numpy as np

from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.workload.operation import Kind

__all__ = ["WORK", "work_of"]

UNITS = ("bf16", "fp16", "tf32", "fp32", "fp64")
WORK = (*(f"joule_per_flop.{unit}" for unit in UNITS), "joule_per_flop.vector", "joule_per_byte",
        "busy_w")  # fmt: skip
"""Names of the constants that the rows of `work_of` are multiplied with, under `power.`."""

_PRODUCTS = (Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN)


def work_of(table: OperationTable, total_s: Floats) -> Floats:
    """FLOPs by unit, bytes moved and busy seconds; one line each, one column per operation."""
    product = np.isin(table.kinds, [str(kind) for kind in _PRODUCTS])
    flops = table.flops * table.count
    lines = [np.where(product & (table.dtypes == unit), flops, 0.0) for unit in UNITS]
    lines.append(np.where(product, 0.0, flops))
    lines.append(table.bytes_moved * table.count)
    lines.append(total_s)
    return np.stack(lines) if len(table) else np.zeros((len(WORK), 0))
