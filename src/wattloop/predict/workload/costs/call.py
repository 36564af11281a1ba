"""Call of an operation or module as input of cost rules, and how a cost becomes an Operation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

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


def make_operation(
    kind: Kind,
    op: str,
    dtype: str,
    context: OpContext,
    detail: Mapping[str, object],
    *,
    direction: str = "forward",
    **amounts: Any,
) -> Operation:
    """Return the operation as its shapes give it, with the values of the caller on top."""
    phase = Phase.FORWARD if direction == "forward" else Phase.BACKWARD
    own = {"op": op, "kind": kind, "phase": phase, "dtype": dtype, "detail": detail, **amounts}
    return Operation(**{**own, **context})


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of that arithmetic or storage type."""
    size = DTYPE_BYTES.get(dtype) or _STORED_BYTES.get(dtype)
    if size is None:
        known = ", ".join((*DTYPE_BYTES, *_STORED_BYTES))
        raise ConfigError(f"dtype '{dtype}' is not known; use one of {known}")
    return size


_STORED_BYTES = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
Shape = tuple[int, ...]


@dataclass
class Call:
    """One call; tensors have shapes and strides but no values.

    Attributes:
        name: such as `aten.addmm`, without the overload.
        func: the operation of torch.
        args, kwargs, result: of the call.
        phase, module: where it was called.
        precision: of the whole trace; float32 products are `tf32` under `tf32`.
    """

    name: str
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    phase: Phase
    module: str
    precision: str

    @cached_property
    def inputs(self) -> list[Any]:
        return tensors_among((*self.args, *self.kwargs.values()))

    @cached_property
    def outputs(self) -> list[Any]:
        return tensors_among((self.result,))

    @property
    def place(self) -> OpContext:
        """Return its context, with the shapes and bytes of its tensors."""
        return OpContext(
            op=self.name,
            phase=self.phase,
            module=self.module,
            inputs=tuple(tuple(each.shape) for each in self.inputs),
            outputs=tuple(tuple(each.shape) for each in self.outputs),
            bytes_read=float(sum(tensor_bytes(each) for each in self.inputs)),
            bytes_written=float(sum(tensor_bytes(each) for each in self.outputs)),
        )

    @property
    def part(self) -> OpContext:
        """Its context without shapes and bytes, for an operation that is part of this call."""
        return OpContext(op=self.name, phase=self.phase, module=self.module, calls=0)

    @cached_property
    def dtype(self) -> str:
        """Return the storage type of its first floating-point tensor, else of its first tensor."""
        for each in (*self.inputs, *self.outputs):
            if each.dtype.is_floating_point:
                return dtype_name(each.dtype)
        first = (*self.inputs, *self.outputs)
        return dtype_name(first[0].dtype) if first else "fp32"

    @property
    def product_dtype(self) -> str:
        return "tf32" if self.precision == "tf32" and self.dtype == "fp32" else self.dtype

    @property
    def elements(self) -> int:
        return max((each.numel() for each in (*self.inputs, *self.outputs)), default=0)

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True)
class ModuleCall:
    """Forward call of a module with its own rule, or its backward.

    Attributes:
        module: the module itself.
        path: where it is in the model.
        phase: forward or backward; the rule is asked for each.
        inputs, outputs: shapes of the tensors it was given and gave.
        dtype: of its first floating-point input.
        precision: of the whole trace.
    """

    module: Any
    path: str
    phase: Phase
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtype: str
    precision: str


def tensors_among(values: Sequence[Any]) -> list[Any]:
    """Return tensors in arguments and lists of arguments, each once."""
    import torch

    found: dict[int, Any] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple)):
            for each in tensors_among(value):
                found.setdefault(id(each), each)
    return list(found.values())


def tensor_bytes(tensor: Any) -> int:
    """Return the bytes in memory behind a tensor: broadcast elements count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or size == 0:
            elements *= size
    return int(elements * tensor.element_size())


def dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)


_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "complex64": "fp64",
    "complex128": "fp64",
}
