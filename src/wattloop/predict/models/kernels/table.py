"""The operations of a workload as arrays, so that every formula runs once for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase

__all__ = ["Floats", "OperationTable", "class_of", "family_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Columns over operations; views are left out, they cost the GPU nothing.

    Attributes:
        operations: the rows.
        classes: name of each row's class (see `class_of`).
        kinds, dtypes, directions: as text.
        flops, bytes_read, bytes_written, kernels: of one call.
        count: how many such calls one pass makes.
        element_bytes: of one operand.
        optimizer: True where the row belongs to the optimizer, which runs once per step.
    """

    operations: tuple[Operation, ...]
    classes: tuple[str, ...]
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
    def of(cls, operations: Sequence[Operation]) -> "OperationTable":
        """The table of those `operations` that run on the GPU."""
        rows = tuple(op for op in operations if op.kind is not Kind.VIEW and op.kernels > 0)
        return cls(
            operations=rows,
            classes=tuple(class_of(op) for op in rows),
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
        return _column([_number(self.operations[i].detail, key, missing) for i in rows])

    def rows_of(self, *kinds: Kind) -> NDArray[np.intp]:
        """Indices of the rows of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, [str(kind) for kind in kinds]))


def class_of(op: Operation) -> str:
    """What operations share constants: kind, what kernel family it takes, direction and dtype.

    The parts go from coarse to fine, so that a constant given for `norm` holds for every norm
    and one for `norm.batch.backward` overrides it.
    """
    direction = direction_of(op)
    detail = op.detail
    if op.kind is Kind.GEMM:
        return f"gemm.{op.dtype}"
    if op.kind is Kind.CONV:
        return f"{_conv_family(detail)}.{direction}.{op.dtype}"
    if op.kind is Kind.ATTENTION:
        return f"attention.{detail.get('algorithm', 'flash')}.{direction}.{op.dtype}"
    if op.kind is Kind.RNN:
        return f"rnn.{detail.get('cell', 'lstm')}.{direction}.{op.dtype}"
    if op.kind is Kind.NORM:
        return f"norm.{detail.get('norm', 'layer')}.{direction}.{op.dtype}"
    if op.kind is Kind.COPY:
        return f"copy.{'strided' if detail.get('strided') else 'plain'}.{op.dtype}"
    if op.kind is Kind.FOREACH:
        return f"foreach.{'fused' if detail.get('fused') else 'list'}"
    if op.kind in (Kind.SOFTMAX, Kind.LOSS, Kind.EMBEDDING):
        return f"{op.kind}.{direction}.{op.dtype}"
    return f"{op.kind}.{_function(op)}.{op.dtype}"


def family_of(name: str) -> str:
    """The class that stands in for an unmeasured one: the same kind and dtype, any function."""
    parts = name.split(".")
    return f"{parts[0]}.*.{parts[-1]}"


def direction_of(op: Operation) -> str:
    """`forward`, `backward`, `data` or `weight`; the phase where the detail says nothing."""
    said = op.detail.get("direction")
    if isinstance(said, str):
        return said
    return "backward" if op.phase is Phase.BACKWARD else "forward"


def _function(op: Operation) -> str:
    """`gelu_backward` of `aten.gelu_backward.default`; in place or not is the same work."""
    return op.op.removeprefix("aten.").split(".")[0].rstrip("_")


def _conv_family(detail: Mapping[str, object]) -> str:
    """`depthwise` when each group has one input channel, `grouped` for a few, else `conv`."""
    groups = _number(detail, "groups", 1.0)
    if groups <= 1:
        return "conv"
    return "depthwise" if _number(detail, "c_in", groups) <= groups else "grouped"


def _number(detail: Mapping[str, object], key: str, missing: float) -> float:
    value = detail.get(key, missing)
    if isinstance(value, (tuple, list)):  # a height, width pair: what matters is their product
        return float(np.prod([float(part) for part in value]))
    return float(value) if isinstance(value, (int, float)) else missing


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
