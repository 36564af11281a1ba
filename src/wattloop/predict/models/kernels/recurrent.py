"""Time of recurrent layers as cuDNN runs them.

    time = steps x product of one time step + products over all steps together

A step multiplies the state (batch x hidden) with the gates' weights and has to wait for the step
before; inputs, and in backward the gradients of weights and inputs, are products over the whole
sequence.
"""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.products import peak_flops
from wattloop.predict.models.kernels.streams import bandwidth_seconds
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.tiles import ProductUnits, product_seconds
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.costs.recurrent import GATES
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
    step_s = values.column("rnn.step_s", names)
    batch, hidden, seq = (table.detail(rows, key) for key in ("batch", "hidden", "seq"))
    ways = 1 + table.detail(rows, "bidirectional", 0.0)
    stacks = table.detail(rows, "layers") * ways
    cells = [str(table.operations[i].detail.get("cell", "lstm")) for i in rows]
    wide = np.array([GATES.get(cell, 4) for cell in cells]) * hidden
    backward = table.directions[rows] == "backward"
    # Forward: state times weights; backward: gradient of the gates times weights turned around.
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
    return rows, np.maximum(steps * each + together, moved)
