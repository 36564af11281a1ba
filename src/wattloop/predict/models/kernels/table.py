"""The operations of a workload as arrays, so that every formula runs once for all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.models.kernels.classes import direction_of, size_of
from wattloop.predict.models.kernels.features import features_of
from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase

__all__ = ["Floats", "OperationTable", "cost_key"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Columns over operations; views are left out, they cost the GPU nothing.

    Attributes:
        operations: the rows; operations that are alike are one row.
        classes: name of each row's class (see `class_of`).
        places: where each row lies in its class (see `features_of`).
        kinds, dtypes, directions: as text.
        flops, bytes_read, bytes_written, kernels: of one call.
        count: how many such calls one pass makes.
        element_bytes: of one operand.
        optimizer: True where the row belongs to the optimizer, which runs once per step.
    """

    operations: tuple[Operation, ...]
    classes: tuple[str, ...]
    places: tuple[tuple[float, ...], ...]
    kinds: NDArray[np.str_]
    dtypes: NDArray[np.str_]
    directions: NDArray[np.str_]
    flops: Floats
    bytes_read: Floats
    bytes_written: Floats
    kernels: Floats
    count: Floats
    element_bytes: Floats
    optimizer: NDArray[np.bool_]

    @classmethod
    def of(cls, operations: Sequence[Operation], *, merge: bool = True) -> "OperationTable":
        """The table of those `operations` that run on the GPU."""
        rows = tuple(op for op in operations if op.kind is not Kind.VIEW and op.kernels > 0)
        if merge:
            rows = _merged(rows)
        features = [features_of(op) for op in rows]
        return cls(
            operations=rows,
            classes=tuple(name for name, _ in features),
            places=tuple(place for _, place in features),
            kinds=np.array([str(op.kind) for op in rows], dtype=np.str_),
            dtypes=np.array([op.dtype for op in rows], dtype=np.str_),
            directions=np.array([direction_of(op) for op in rows], dtype=np.str_),
            flops=_column([op.flops for op in rows]),
            bytes_read=_column([op.bytes_read for op in rows]),
            bytes_written=_column([op.bytes_written for op in rows]),
            kernels=_column([op.kernels for op in rows]),
            count=_column([op.count for op in rows]),
            element_bytes=_column([DTYPE_BYTES.get(op.dtype, 4) for op in rows]),
            optimizer=np.array([op.phase is Phase.OPTIMIZER for op in rows], dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def bytes_moved(self) -> Floats:
        """Bytes read and written by one call of each row."""
        return self.bytes_read + self.bytes_written

    def dims(self, rows: NDArray[np.intp]) -> Floats:
        """(B, M, N, K) of the rows, one line each; ones where an operation has none."""
        return np.array(
            [self.operations[i].dims or (1, 1, 1, 1) for i in rows], dtype=np.float64
        ).reshape(len(rows), 4)

    def detail(self, rows: NDArray[np.intp], key: str, missing: float = 1.0) -> Floats:
        """A number of each row's `detail`; `missing` where it is not said."""
        return _column([size_of(self.operations[i].detail, key, missing) for i in rows])

    def rows_of(self, *kinds: Kind) -> NDArray[np.intp]:
        """Indices of the rows of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, [str(kind) for kind in kinds]))


def cost_key(op: Operation) -> tuple[object, ...]:
    """Operations with the same key cost the same, wherever in the model they are."""
    return (op.op, op.phase, op.dtype, op.dims, op.flops, op.bytes_read, op.bytes_written,
            op.kernels, *op.detail.values())  # fmt: skip


def _merged(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Operations that cost the same as one, wherever in the model they are."""
    first: dict[tuple[object, ...], Operation] = {}
    count: dict[tuple[object, ...], int] = {}
    for op in operations:
        key = cost_key(op)
        first.setdefault(key, op)
        count[key] = count.get(key, 0) + op.count
    return tuple(replace(op, count=count[key]) for key, op in first.items())


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
