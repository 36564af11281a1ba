"""What every cost function takes beside its shapes, and how the two become an Operation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase


class OpContext(TypedDict, total=False):
    """Where an operation is called; and, where the caller knows better, what it moves."""

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
    """The operation as computed from its shapes, with what the caller says put over it."""
    return replace(default, detail=dict(detail), **place)


def element_bytes(dtype: str) -> int:
    """Bytes of one element of that arithmetic or storage type."""
    size = DTYPE_BYTES.get(dtype) or _STORED_BYTES.get(dtype)
    if size is None:
        known = ", ".join((*DTYPE_BYTES, *_STORED_BYTES))
        raise ConfigError(f"dtype '{dtype}' is not known; use one of {known}")
    return size


def phase_of(direction: str) -> Phase:
    """Gradients belong to the backward pass, unless the caller says otherwise."""
    return Phase.FORWARD if direction == "forward" else Phase.BACKWARD


def start(kind: Kind, op: str, dtype: str, direction: str = "forward") -> Operation:
    """An operation of which only the name and the arithmetic are known."""
    return Operation(op=op, kind=kind, phase=phase_of(direction), dtype=dtype)


_STORED_BYTES = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
