"""GPU time of every operation of a table."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.kernels.attention import attention_times
from wattloop.predict.models.kernels.classes import size_of
from wattloop.predict.models.kernels.depthwise import depthwise_times
from wattloop.predict.models.kernels.products import product_times
from wattloop.predict.models.kernels.recurrent import recurrent_times
from wattloop.predict.models.kernels.residuals import Residuals
from wattloop.predict.models.kernels.streams import bandwidth_seconds, stream_times
from wattloop.predict.models.kernels.table import Floats, OperationTable
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.workload.operation import Kind, Operation

__all__ = ["Times", "calculated_times", "operation_times", "scale_scopes"]

TINY_SIDE = 4.0
"""Results of a convolution narrower than this, of this many pictures or more, are not like those
measured."""
MANY_PICTURES = 256


@dataclass(frozen=True, slots=True)
class Times:
    """Of one call of each row.

    Attributes:
        seconds: GPU time.
        compute: where it is not memory that bounds it.
        far: how far the nearest microbenchmark is: 0 right there, 1 out of reach.
    """

    seconds: Floats
    compute: NDArray[np.bool_]
    far: Floats


def operation_times(table: OperationTable, values: Values, residuals: Residuals, gpu: Gpu) -> Times:
    """Calculated times, corrected by what microbenchmarks of this GPU said of such operations."""
    times = calculated_times(table, values, gpu)
    factors, far = residuals.told(table)
    scale = np.exp(values.column("scale", scale_scopes(table)))
    floor = values["kernel.minimum_s"] * np.minimum(table.kernels, 1.0)
    return Times(np.maximum(times.seconds * factors * scale, floor), times.compute, far)


def calculated_times(table: OperationTable, values: Values, gpu: Gpu) -> Times:
    """Times by formula alone; each further kernel of a call takes at least the minimum."""
    seconds = np.zeros(len(table))
    compute = np.zeros(len(table), dtype=np.bool_)
    for part in (product_times, attention_times, recurrent_times, depthwise_times):
        rows, part_seconds = part(table, values, gpu)
        seconds[rows] = part_seconds
        names = ["product"] * len(rows)
        compute[rows] = part_seconds > 1.2 * bandwidth_seconds(
            table.bytes_moved[rows], values, gpu, names
        )
    rows, part_seconds = stream_times(table, values, gpu)
    seconds[rows] = part_seconds
    seconds += values["kernel.minimum_s"] * table.kernels
    return Times(seconds, compute, np.ones(len(table)))


def scale_scopes(table: OperationTable) -> list[str]:
    """Family and precision of each row, which training steps may give a factor: `conv.bf16`."""
    return [
        f"{'tiny' if is_tiny(op) else name.split('.')[0]}.{op.dtype}"
        for name, op in zip(table.classes, table.operations, strict=True)
    ]


def is_tiny(op: Operation) -> bool:
    """Windows over many pictures hardly larger than them: cuDNN's kernels are made for others."""
    if op.kind is not Kind.CONV or size_of(op.detail, "k_h") <= 1:
        return False
    if size_of(op.detail, "n") < MANY_PICTURES:
        return False
    side = size_of(op.detail, "h") / math.sqrt(size_of(op.detail, "stride"))
    return side < TINY_SIDE
