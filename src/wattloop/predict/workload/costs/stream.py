"""Operations that stream over their tensors once, and those that move nothing."""

from dataclasses import replace
from typing import Unpack

from wattloop.predict.workload.costs.context import OpContext, element_bytes, operation, start
from wattloop.predict.workload.operation import Kind, Operation


def elementwise(
    elements: int,
    tensors_read: float,
    tensors_written: float,
    dtype: str,
    *,
    flops_per_element: float = 1.0,
    **place: Unpack[OpContext],
) -> Operation:
    """One pass over tensors of `elements` each."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.ELEMENTWISE, "aten.add", dtype),
        flops=flops_per_element * elements,
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=float(size) * elements * tensors_written,
    )
    return operation(made, place, {"elements": elements})


def reduction(
    elements: int,
    results: int,
    dtype: str,
    *,
    tensors_read: float = 1.0,
    **place: Unpack[OpContext],
) -> Operation:
    """A sum, mean, maximum or norm of `elements` into `results`."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.REDUCTION, "aten.sum", dtype),
        flops=float(elements),
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=float(size) * results,
    )
    return operation(made, place, {"elements": elements})


def copy(
    elements: int, from_dtype: str, to_dtype: str, strided: bool, **place: Unpack[OpContext]
) -> Operation:
    """A copy, with a conversion where the types differ; `strided` when the layouts do."""
    made = replace(
        start(
            Kind.COPY,
            "aten._to_copy" if from_dtype != to_dtype else "aten.clone",
            to_dtype,
        ),
        bytes_read=float(element_bytes(from_dtype)) * elements,
        bytes_written=float(element_bytes(to_dtype)) * elements,
    )
    detail = {"elements": elements, "from_dtype": from_dtype, "strided": strided}
    return operation(made, place, detail)


def index(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """Gather or scatter of `elements`, one 64-bit index each."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.INDEX, "aten.index", dtype),
        bytes_read=float(size + 8) * elements,
        bytes_written=float(size) * elements,
    )
    return operation(made, place, {"elements": elements})


def random(
    elements: int, dtype: str, *, tensors_read: float = 0.0, **place: Unpack[OpContext]
) -> Operation:
    """Random numbers; a dropout reads its input and writes a mask of bytes beside the result."""
    size = element_bytes(dtype)
    mask = 1.0 if tensors_read else 0.0
    made = replace(
        start(Kind.RANDOM, "aten.native_dropout" if tensors_read else "aten.normal_", dtype),
        flops=10.0 * elements,
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=(float(size) + mask) * elements,
    )
    return operation(made, place, {"elements": elements})


def view(**place: Unpack[OpContext]) -> Operation:
    """Another look at the same memory: the host's time only."""
    made = replace(start(Kind.VIEW, "aten.view", "fp32"), kernels=0)
    return operation(made, place, {})


def other(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """An operation that has no rule: its tensors are read and written once."""
    made = replace(start(Kind.OTHER, "aten.unknown", dtype), ruled=False)
    return operation(made, place, {"elements": elements})
