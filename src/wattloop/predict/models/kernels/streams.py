"""Time of memory-bound operations: bytes over the bandwidth they reach.

    time = bytes x ((1 - h) / (e B) + h / (s e B)),   h = share of the bytes found in L2

B is the data sheet's bandwidth, e the class's efficiency, s how much quicker L2 is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values

__all__ = ["bandwidth_seconds", "stream_times"]

_OTHERS = ("gemm", "conv", "grouped", "attention", "rnn", "depthwise")


def stream_times(
    table: OperationTable, values: Values, gpu: Gpu
) -> tuple[NDArray[np.intp], Floats]:
    """Rows of memory-bound operations and the seconds of one call of each."""
    rows = np.array(
        [i for i, name in enumerate(table.classes) if name.split(".")[0] not in _OTHERS],
        dtype=np.intp,
    )
    names = [table.classes[i] for i in rows]
    seconds = bandwidth_seconds(table.bytes_moved[rows], values, gpu, names)
    return rows, seconds + values.column("stream.start_s", names)


def bandwidth_seconds(moved: Floats, values: Values, gpu: Gpu, names: Sequence[str]) -> Floats:
    """Seconds to move so many bytes, with what L2 keeps of them."""
    speed = gpu.memory_bytes_s * values.column("stream.efficiency", names)
    room = gpu.l2_bytes * values["stream.l2_share"]
    hit = values["stream.l2_use"] * np.clip(1 - moved / (2 * room), 0.0, 1.0)
    return moved * ((1 - hit) + hit / values["stream.l2_speed"]) / speed
