"""Context of a cost function: phase, module and type of the call, merged into an Operation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase


class OpContext(TypedDict, total=False):
    """Location of a call; and, where the caller knows better, the bytes it moves."""

    op: str
    phase: Phase
    module: str
    count: int
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    flops: float
    bytes_read: float
    bytes_written: float
    kernels: int
    calls: int


def operation(
    default: Operation,
    place: OpContext,
    detail: Mapping[str, object],
) -> Operation:
    """Return the operation computed from its shapes, with the caller's values on top."""
    return replace(default, detail=dict(detail), **place)


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of that arithmetic or storage type."""
    size = DTYPE_BYTES.get(dtype) or _STORED_BYTES.get(dtype)
    if size is None:
        known = ", ".join((*DTYPE_BYTES, *_STORED_BYTES))
        raise ConfigError(f"dtype '{dtype}' is not known; use one of {known}")
    return size


def phase_of(direction: str) -> Phase:
    """Return the backward phase for gradients, unless the caller states another."""
    return Phase.FORWARD if direction == "forward" else Phase.BACKWARD


def start(kind: Kind, op: str, dtype: str, direction: str = "forward") -> Operation:
    """Return an operation with only name and arithmetic."""
    return Operation(op=op, kind=kind, phase=phase_of(direction), dtype=dtype)


_STORED_BYTES = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
