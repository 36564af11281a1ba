"""Table of a workload's operations as arrays: their classes, features and counts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase

ALIGNED_BYTES = 16
"""Matrix units load rows that start at multiples of this at full speed."""


def halvings_short(op: Operation) -> int:
    """Return the halvings of 16 bytes at which the worst row begins: 0 is aligned, 3 any bf16
    element.

    The length of a stored row matters: of both operands, by the layout, and of the result.
    """
    _, m, n, k = op.dims or (1, 8, 8, 8)
    layout = str(op.detail.get("layout", "nn"))
    lengths = (m if layout[:1] == "t" else k, k if layout[1:] == "t" else n, n)
    size = DTYPE_BYTES.get(op.dtype, 4)
    worst = min(math.gcd(length * size, ALIGNED_BYTES) for length in lengths)
    return int(math.log2(ALIGNED_BYTES / worst))


MOST_PERSISTENT = 128
"""Largest hidden size for persistent kernels, observed on an H200 with cuDNN 9.19."""
FEWEST_APART = 512
"""Least number of one-pixel pictures for separate products, observed there as well."""


def class_of(op: Operation) -> str:
    """Return the class with common constants: kind, kernel family, direction and dtype.

    The parts go from general to specific: a constant for `norm` applies to every norm, and one for
    `norm.batch.backward` overrides it.
    """
    direction = direction_of(op)
    detail = op.detail
    if "form" in detail:
        return f"fused.{detail['form']}.{op.dtype}"
    if op.kind is Kind.GEMM:
        return f"gemm.{op.dtype}"
    if op.kind is Kind.CONV:
        return _conv_class(op, direction)
    if op.kind is Kind.ATTENTION:
        return f"attention.{detail.get('algorithm', 'flash')}.{direction}.{unit_of(op)}"
    if op.kind is Kind.RNN:
        manner = "persistent" if is_persistent(op) else "stepwise"
        # Step by step, cuDNN's kernels of both half types are alike.
        dtype = op.dtype if manner == "persistent" else unit_of(op)
        return f"rnn.{manner}.{detail.get('cell', 'lstm')}.{direction}.{dtype}"
    if op.kind is Kind.FOREACH:
        return f"foreach.{'fused' if detail.get('fused') else 'list'}"
    names = {
        Kind.NORM: f"norm.{detail.get('norm', 'layer')}.{direction}",
        Kind.COPY: f"copy.{'strided' if detail.get('strided') else 'plain'}",
    }
    if op.kind in names:
        return f"{names[op.kind]}.{op.dtype}"
    if op.kind in (Kind.SOFTMAX, Kind.LOSS, Kind.EMBEDDING):
        return f"{op.kind}.{direction}.{op.dtype}"
    return f"{op.kind}.{_function(op)}.{op.dtype}"


def family_of(name: str) -> str:
    """Return the class for an unmeasured one: the same kind and dtype, any function."""
    parts = name.split(".")
    return f"{parts[0]}.*.{parts[-1]}"


def is_persistent(op: Operation) -> bool:
    """Return whether cuDNN keeps a recurrent layer's weights in registers, in one kernel for all
    steps.
    """
    if op.kind is not Kind.RNN or op.dtype not in ("fp32", "tf32", "fp16"):
        return False
    return size_of(op.detail, "hidden") <= MOST_PERSISTENT


def is_apart(op: Operation) -> bool:
    """Return whether cuDNN computes the gradient of a weight per picture and then adds them up.

    It does so in tf32 for windows of one pixel over pictures of one pixel, such as the last layers
    of a 224-pixel network with 32 pixels: a gigabyte of sums instead of one product.
    """
    if op.kind is not Kind.CONV or op.dtype != "tf32" or direction_of(op) != "weight":
        return False
    single = all(size_of(op.detail, key) == 1 for key in ("h", "w", "k_h", "k_w", "groups"))
    return single and size_of(op.detail, "n") >= FEWEST_APART


def unit_of(op: Operation) -> str:
    """Return the unit: depthwise convolutions and attention of fp32 tensors never use tf32.

    Recurrent layers in fp16, as under autocast, are those of bf16.
    """
    if op.kind is Kind.RNN and op.dtype == "fp16":
        return "bf16"
    if op.dtype != "tf32" or op.kind not in (Kind.CONV, Kind.ATTENTION):
        return op.dtype
    depthwise = op.kind is Kind.CONV and _conv_family(op.detail) == "depthwise"
    return "fp32" if depthwise or op.kind is Kind.ATTENTION else op.dtype


def direction_of(op: Operation) -> str:
    """Return `forward`, `backward`, `data` or `weight`; the phase without a detail."""
    said = op.detail.get("direction")
    if isinstance(said, str):
        # Transposed convolutions are the input gradients of others, and vice versa.
        swapped = {"forward": "data", "data": "forward"} if op.detail.get("transposed") else {}
        return swapped.get(said, said)
    return "backward" if op.phase is Phase.BACKWARD else "forward"


def _function(op: Operation) -> str:
    """`gelu_backward` of `aten.gelu_backward.default`; in-place variants are the same work."""
    return op.op.removeprefix("aten.").split(".")[0].rstrip("_")


def _conv_class(op: Operation, direction: str) -> str:
    family = _conv_family(op.detail)
    if is_apart(op):
        return f"{family}.apart.{op.dtype}"
    return f"{family}.{direction}.{unit_of(op) if family == 'depthwise' else op.dtype}"


def _conv_family(detail: Mapping[str, object]) -> str:
    """`depthwise` when each group has one input channel, `grouped` for a few, else `conv`."""
    groups = size_of(detail, "groups")
    if groups <= 1:
        return "conv"
    return "depthwise" if size_of(detail, "c_in", groups) <= groups else "grouped"


def size_of(detail: Mapping[str, object], key: str, missing: float = 1.0) -> float:
    """Return a number of a detail; of a height, width pair their product."""
    value = detail.get(key, missing)
    if isinstance(value, (tuple, list)):
        return float(math.prod(float(part) for part in value))
    return float(value) if isinstance(value, (int, float)) else missing


FLAG = 3.0
"""Distance between two values of a flag, in doublings of a size."""


def features_of(op: Operation) -> tuple[str, tuple[float, ...]]:
    """Return the group of comparable operations, and the position in it; one unit is a doubling."""
    return class_of(op), _PLACES.get(op.kind, _by_bytes)(op)


def _gemm(op: Operation) -> tuple[float, ...]:
    b, m, n, k = op.dims or (1, 1, 1, 1)
    layout = str(op.detail.get("layout", "nn"))
    return (
        *(_log2(size) for size in (b, m, n, k)),
        FLAG * (layout[:1] == "t"),
        FLAG * (layout[1:] == "t"),
        FLAG * halvings_short(op),
    )


def _conv(op: Operation) -> tuple[float, ...]:
    d = op.detail
    groups = size_of(d, "groups")
    return (
        _log2(size_of(d, "n")),
        _log2(size_of(d, "h") * size_of(d, "w")) / 2,
        _log2(size_of(d, "c_in") / groups),
        _log2(size_of(d, "c_out") / groups),
        _log2(groups),
        2 * _log2(size_of(d, "k_h") * size_of(d, "k_w")) / 2,
        FLAG * _log2(size_of(d, "stride")) / 2,
        FLAG * (size_of(d, "dilation") > 1),
        2 * FLAG * bool(d.get("channels_last")),
        FLAG * bool(d.get("transposed")),
        _log2(op.flops),
    )


def _attention(op: Operation) -> tuple[float, ...]:
    d = op.detail
    heads = size_of(d, "heads")
    return (
        _log2(size_of(d, "batch") * heads),
        _log2(size_of(d, "q_len")),
        _log2(size_of(d, "kv_len")),
        2 * _log2(size_of(d, "head_dim")),
        _log2(heads / size_of(d, "kv_heads", heads)) / 2,
        FLAG * bool(d.get("causal")),
        FLAG * bool(d.get("masked")),
    )


def _rnn(op: Operation) -> tuple[float, ...]:
    d = op.detail
    return (
        *(_log2(size_of(d, key)) for key in ("batch", "seq", "input", "hidden", "layers")),
        FLAG * bool(d.get("bidirectional")),
    )


def _rows_columns(op: Operation) -> tuple[float, ...]:
    d = op.detail
    columns = size_of(d, "columns")
    odd = bool(columns % (16 / DTYPE_BYTES.get(op.dtype, 4)))
    return (_log2(size_of(d, "rows")), _log2(columns), FLAG * odd)


def _reduction(op: Operation) -> tuple[float, ...]:
    return (_log2(op.bytes_read), _log2(op.bytes_written))


def _foreach(op: Operation) -> tuple[float, ...]:
    tensors = size_of(op.detail, "tensors")
    return (
        _log2(op.bytes_moved),
        _log2(tensors),
        _log2(op.kernels),
        op.bytes_read / op.bytes_moved,
    )


def _by_bytes(op: Operation) -> tuple[float, ...]:
    return (_log2(op.bytes_moved),)


_PLACES: Mapping[Kind, Callable[[Operation], tuple[float, ...]]] = {
    Kind.GEMM: _gemm,
    Kind.CONV: _conv,
    Kind.ATTENTION: _attention,
    Kind.RNN: _rnn,
    Kind.NORM: _rows_columns,
    Kind.SOFTMAX: _rows_columns,
    Kind.LOSS: _rows_columns,
    Kind.EMBEDDING: _rows_columns,
    Kind.REDUCTION: _reduction,
    Kind.FOREACH: _foreach,
}


def _log2(size: float) -> float:
    return math.log2(max(size, 1e-3))


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Columns over operations; views are left out, because they cost the GPU nothing.

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
        return self.bytes_read + self.bytes_written

    def dims(self, rows: NDArray[np.intp]) -> Floats:
        """Return (B, M, N, K) of the rows; ones where an operation has none."""
        return np.array(
            [self.operations[i].dims or (1, 1, 1, 1) for i in rows], dtype=np.float64
        ).reshape(len(rows), 4)

    def detail(self, rows: NDArray[np.intp], key: str, missing: float = 1.0) -> Floats:
        """Return a number of each row's `detail`; `missing` where it is absent."""
        return _column([size_of(self.operations[i].detail, key, missing) for i in rows])

    def rows_of(self, *kinds: Kind) -> NDArray[np.intp]:
        return np.flatnonzero(np.isin(self.kinds, [str(kind) for kind in kinds]))


def cost_key(op: Operation) -> tuple[object, ...]:
    """Return a key that is equal for operations of equal cost, anywhere in the model."""
    return (op.op, op.phase, op.dtype, op.dims, op.flops, op.bytes_read, op.bytes_written,
            op.kernels, *op.detail.values())  # fmt: skip


def _merged(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Merge operations of equal cost, anywhere in the model."""
    first: dict[tuple[object, ...], Operation] = {}
    count: dict[tuple[object, ...], int] = {}
    for op in operations:
        key = cost_key(op)
        first.setdefault(key, op)
        count[key] = count.get(key, 0) + op.count
    return tuple(replace(op, count=count[key]) for key, op in first.items())


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
