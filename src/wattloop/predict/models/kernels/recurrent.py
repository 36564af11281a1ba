"""Time of recurrent layers as cuDNN runs them: products that wait for the step before."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.products import peak_flops
from wattloop.predict.models.kernels.streams import bandwidth_seconds
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind

__all__ = ["recurrent_times"]


def recurrent_times(
    table: OperationTable, values: Values, gpu: Gpu
) -> tuple[NDArray[np.intp], Floats]:
    """Rows of recurrent layers and the seconds of one call of each."""
    rows = table.rows_of(Kind.RNN)
    if not len(rows):
        return rows, np.zeros(0)
    names = [table.classes[i].removeprefix("rnn.") for i in rows]
    speed = peak_flops(gpu, table.dtypes[rows]) * values.column("rnn.efficiency", names)
    ways = 1 + table.detail(rows, "bidirectional", 0.0)
    steps = table.detail(rows, "seq") * table.detail(rows, "layers") * ways
    chain = steps * values.column("rnn.step_s", names)
    moved = bandwidth_seconds(table.bytes_moved[rows], values, gpu, ["rnn"] * len(rows))
    return rows, np.maximum(table.flops[rows] / speed, moved) + chain
