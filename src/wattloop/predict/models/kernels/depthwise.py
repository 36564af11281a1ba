"""Time of depthwise convolutions: no product to speak of, only bytes, badly coalesced."""

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values

__all__ = ["depthwise_times"]


def depthwise_times(
    table: OperationTable, values: Values, gpu: Gpu
) -> tuple[NDArray[np.intp], Floats]:
    """Rows of depthwise convolutions and the seconds of one call of each."""
    rows = np.array(
        [i for i, name in enumerate(table.classes) if name.startswith("depthwise.")], dtype=np.intp
    )
    names = [table.classes[i].removeprefix("depthwise.") for i in rows]
    speed = gpu.memory_bytes_s * values.column("depthwise.efficiency", names)
    start_s = values.column("depthwise.start_s", names)
    return rows, table.bytes_moved[rows] / speed + start_s
