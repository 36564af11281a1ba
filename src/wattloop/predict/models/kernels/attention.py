"""Time of attention as one kernel: blocks of queries over the multiprocessors."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.classes import unit_of
from wattloop.predict.models.kernels.products import peak_flops
from wattloop.predict.models.kernels.streams import bandwidth_seconds
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind

__all__ = ["attention_times"]

BLOCK = 128.0
"""Queries (forward) or keys (backward) that one multiprocessor works on at a time."""


def attention_times(
    table: OperationTable, values: Values, gpu: Gpu
) -> tuple[NDArray[np.intp], Floats]:
    """Rows of attention and the seconds of one call of each."""
    rows = table.rows_of(Kind.ATTENTION)
    if not len(rows):
        return rows, np.zeros(0)
    names = [table.classes[i].removeprefix("attention.") for i in rows]
    backward = table.directions[rows] == "backward"
    queries, keys = table.detail(rows, "q_len"), table.detail(rows, "kv_len")
    length = np.where(backward, keys, queries)
    blocks = table.detail(rows, "batch") * table.detail(rows, "heads") * np.ceil(length / BLOCK)
    waves = np.ceil(blocks / gpu.sms)
    # A block padded to full size does the work of a full one.
    full = table.flops[rows] * (np.ceil(length / BLOCK) * BLOCK / length)
    units = np.array([unit_of(table.operations[i]) for i in rows], dtype=np.str_)
    speed = peak_flops(gpu, units) * values.column("attention.efficiency", names)
    seconds = waves * (
        full / blocks / (speed / gpu.sms) + values.column("attention.block_s", names)
    )
    moved = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["attention"] * len(rows))
    return rows, np.maximum(seconds, moved)
