"""Operations that pass over their tensors once: cost, and rules by name, torch's tags or bytes."""

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any, Unpack

from wattloop.predict.workload.costs.call import (
    Call,
    OpContext,
    dtype_name,
    element_bytes,
    make_operation,
    tensor_bytes,
)
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
    """Return one pass over tensors of `elements` each."""
    size = float(element_bytes(dtype))
    return make_operation(
        Kind.ELEMENTWISE,
        "aten.add",
        dtype,
        place,
        {"elements": elements},
        flops=flops_per_element * elements,
        bytes_read=size * elements * tensors_read,
        bytes_written=size * elements * tensors_written,
    )


def reduction(
    elements: int,
    results: int,
    dtype: str,
    *,
    tensors_read: float = 1.0,
    **place: Unpack[OpContext],
) -> Operation:
    """Return a sum, mean, maximum or norm of `elements` into `results`."""
    size = float(element_bytes(dtype))
    return make_operation(
        Kind.REDUCTION,
        "aten.sum",
        dtype,
        place,
        {"elements": elements},
        flops=float(elements),
        bytes_read=size * elements * tensors_read,
        bytes_written=size * results,
    )


def copy(
    elements: int, from_dtype: str, to_dtype: str, strided: bool, **place: Unpack[OpContext]
) -> Operation:
    """Return a copy, with a conversion where the types differ; `strided` when the layouts do."""
    return make_operation(
        Kind.COPY,
        "aten._to_copy" if from_dtype != to_dtype else "aten.clone",
        to_dtype,
        place,
        {"elements": elements, "from_dtype": from_dtype, "strided": strided},
        bytes_read=float(element_bytes(from_dtype)) * elements,
        bytes_written=float(element_bytes(to_dtype)) * elements,
    )


def index(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """Return a gather or scatter of `elements`, one 64-bit index each."""
    size = element_bytes(dtype)
    return make_operation(
        Kind.INDEX,
        "aten.index",
        dtype,
        place,
        {"elements": elements},
        bytes_read=float(size + 8) * elements,
        bytes_written=float(size) * elements,
    )


def random(
    elements: int, dtype: str, *, tensors_read: float = 0.0, **place: Unpack[OpContext]
) -> Operation:
    """Return random numbers; a dropout reads its input and writes a byte mask with the result."""
    size = float(element_bytes(dtype))
    return make_operation(
        Kind.RANDOM,
        "aten.native_dropout" if tensors_read else "aten.normal_",
        dtype,
        place,
        {"elements": elements},
        flops=10.0 * elements,
        bytes_read=size * elements * tensors_read,
        bytes_written=(size + (1.0 if tensors_read else 0.0)) * elements,
    )


def view(**place: Unpack[OpContext]) -> Operation:
    """Return a view of the same memory: only the host's time."""
    return make_operation(Kind.VIEW, "aten.view", "fp32", place, {}, kernels=0)


def other(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """Return an operation without a rule: its tensors are read and written once."""
    return make_operation(
        Kind.OTHER, "aten.unknown", dtype, place, {"elements": elements}, ruled=False
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = _words("""
detach alias lift_fresh lift _unsafe_view _reshape_alias view _view_copy reshape empty
empty_like empty_strided new_empty new_empty_strided resize resize_ set_ _local_scalar_dense
is_same_size sym_size sym_stride sym_numel _version as_strided unsafe_split
unsafe_split_with_sizes resize_as empty_permuted
""")
FILLS = _words("""
zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange zero fill
linspace logspace eye scalar_tensor tril_indices triu_indices _efficientzerotensor
""")
REDUCTIONS = _words("""
sum mean amax amin max min argmax argmin any all prod norm linalg_vector_norm var var_mean std
std_mean logsumexp cumsum cumprod cummax cummin count_nonzero aminmax median nansum
logcumsumexp _log_softmax_sum trace bincount histc equal dist nanmedian mode _is_all_true
_is_any_true _logcumsumexp _cummax_helper _cummin_helper
""")
COPIES = _words("""
clone copy _to_copy cat stack constant_pad_nd repeat roll flip reflection_pad1d
reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col
col2im tril triu contiguous pixel_shuffle pixel_unshuffle channel_shuffle as_strided_scatter
select_scatter slice_scatter diagonal_scatter expand_copy permute_copy diag_embed block_diag
rot90 _pad_circular split_with_sizes_copy unbind_copy
""")
INTO_ZEROS = _words("""
slice_backward select_backward diagonal_backward unfold_backward as_strided_backward
""")
INDEXINGS = _words("""
index index_put _index_put_impl _unsafe_index _unsafe_index_put index_select index_add
index_copy index_fill gather scatter scatter_add scatter_reduce take put masked_select nonzero
repeat_interleave masked_scatter take_along_dim _embedding_bag grid_sampler_2d grid_sampler_3d
grid_sampler_2d_backward embedding_bag index_reduce _embedding_bag_forward_only
""")
SORTS = _words("""
sort topk argsort kthvalue unique _unique2 unique_dim randperm msort unique_consecutive
""")
RANDOMS = _words("""
native_dropout bernoulli uniform normal rand randn rand_like randn_like randint randint_like
exponential multinomial random log_normal cauchy geometric _fused_dropout
""")
SAMPLINGS = _words("""
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa _weight_norm_interface glu celu lerp isin
_cdist_forward _fused_moving_avg_obs_fq_helper masked_fill floor_divide
bucketize searchsorted complex polar hardswish log_sigmoid_forward _prelu_kernel rsub addr
affine_grid_generator _masked_scale rrelu_with_noise max_unpool2d max_unpool3d
""")
Rule = Callable[[Call], Operation | Sequence[Operation]]


def rule_of(call: Call) -> Rule:
    """Return the rule of an operation without its own."""
    known = _KNOWN.get(call.func)
    if known is None:
        known = _KNOWN[call.func] = _find(call)
    return known


def _find(call: Call) -> Rule:
    import torch

    base = call.name.removeprefix("aten.")
    for known, rule in _NAMED:
        if base in known or base.rstrip("_") in known:
            return rule
    if not call.name.startswith("aten."):
        return _view if getattr(call.func, "is_view", False) else _other
    variants = (call.func, *_out_of_place(base))
    if any(getattr(each, "is_view", False) for each in variants):
        return _view
    if any(torch.Tag.pointwise in each.tags for each in variants):
        return _elementwise
    if base.startswith("_foreach_"):
        return _lists
    if base.endswith("_backward"):
        return _gradient
    return _other


def _out_of_place(base: str) -> tuple[Any, ...]:
    """Return the out-of-place variant: torch tags some operations only in that form."""
    import torch

    packet = getattr(torch.ops.aten, base[:-1], None) if base.endswith("_") else None
    if packet is None:
        return ()
    return tuple(getattr(packet, each) for each in packet.overloads())


def _view(call: Call) -> Operation:
    place = call.place
    return view(
        op=place["op"], phase=place["phase"], module=place["module"], inputs=place["inputs"]
    )


def _elementwise(call: Call) -> Operation:
    return elementwise(
        call.elements,
        0,
        0,
        call.dtype,
        flops_per_element=_FLOPS.get(call.name.removeprefix("aten.").rstrip("_"), 1.0),
        **_moved(call),
    )


def _gradient(call: Call) -> Operation:
    """Return the gradient of a streaming operation, which streams too."""
    return elementwise(call.elements, 0, 0, call.dtype, flops_per_element=2.0, **call.place)


def _fill(call: Call) -> Operation:
    place = call.place | OpContext(bytes_read=0.0)
    elements = max((each.numel() for each in call.outputs), default=0)
    return elementwise(elements, 0, 1, call.dtype, flops_per_element=0.0, **place)


def _reduction(call: Call) -> Operation:
    return reduction(call.elements, 0, call.dtype, **_moved(call))


def _copy(call: Call) -> Operation:
    source = call.inputs[-1] if call.name == "aten.copy_" else call.inputs[0]
    target = call.outputs[0]
    place = call.place
    if call.name == "aten.copy_":
        place["bytes_read"] = float(tensor_bytes(source))
    same = source.shape == target.shape
    return copy(
        target.numel(),
        dtype_name(source.dtype),
        dtype_name(target.dtype),
        strided=same and source.stride() != target.stride(),
        **place,
    )


def _into_zeros(call: Call) -> Operation:
    """Return the gradient of a slice: zeros of the whole size, then a copy into the slice."""
    grad, whole = call.inputs[0], call.outputs[0]
    name = dtype_name(grad.dtype)
    bytes_written = float(tensor_bytes(whole) + tensor_bytes(grad))
    place = call.place | OpContext(bytes_written=bytes_written, kernels=2)
    return copy(whole.numel(), name, name, strided=True, **place)


def _index(call: Call) -> Operation:
    """Return the gathered or scattered elements, not the whole tensor."""
    out = call.outputs[0] if call.outputs else call.inputs[0]
    indices = [each for each in call.inputs if not each.dtype.is_floating_point]
    picked = max((each.numel() for each in indices), default=out.numel())
    size = out.element_size()
    gathers = not any(part in call.name for part in ("put", "scatter", "add", "index_copy"))
    moved = out.numel() if gathers else _values(call)
    index_bytes = sum(tensor_bytes(each) for each in indices)
    adds = not gathers and "index_copy" not in call.name  # index_copy_ does not read its target
    place = call.place | OpContext(
        bytes_read=float(moved * size * (2 if adds else 1) + index_bytes),
        bytes_written=float(moved * size),
    )
    return index(max(moved, picked), call.dtype, **place)


def _values(call: Call) -> int:
    """Return the elements put into a tensor: those of the last floating-point argument."""
    values = [each for each in call.inputs[1:] if each.dtype.is_floating_point]
    return int(values[-1].numel()) if values else int(call.elements)


def _sort(call: Call) -> Operation:
    # A radix sort passes four times over keys of 32 bits; 16 bits take two.
    passes = 2 if call.dtype in {"bf16", "fp16"} else 4
    place = call.place
    place["bytes_read"] = passes * place.get("bytes_read", 0.0)
    place["bytes_written"] = passes * place.get("bytes_written", 0.0)
    return index(call.elements, call.dtype, **(place | OpContext(kernels=passes + 2)))


def _random(call: Call) -> Operation:
    place = call.place
    if call.name != "aten.native_dropout":
        place["bytes_read"] = 0.0
    return random(call.elements, call.dtype, **place)


def _fourier(call: Call) -> Operation:
    """Return real or complex transforms along one or more axes."""
    axes = call.args[1]
    whole = max((*call.inputs, *call.outputs), key=lambda each: each.numel())
    length = prod(whole.shape[axis] for axis in axes)
    flops = 5.0 * log2(max(length, 2))
    place = call.place | OpContext(kernels=len(axes))
    # Each axis is a pass over the data.
    place["bytes_read"] = len(axes) * place.get("bytes_read", 0.0)
    place["bytes_written"] = len(axes) * place.get("bytes_written", 0.0)
    return elementwise(whole.numel(), 0, 0, call.dtype, flops_per_element=flops, **place)


def _lists(call: Call) -> Operation:
    from wattloop.predict.workload.costs.optimizer import foreach

    tensors = call.args[0] if call.args and isinstance(call.args[0], (list, tuple)) else ()
    elements = sum(each.numel() for each in tensors)
    return foreach(
        "",
        len(tensors),
        elements,
        fused=False,
        dtype=call.dtype,
        sizes=[each.numel() for each in tensors],
        **_moved(call),
    )


def _other(call: Call) -> Operation:
    return other(call.elements, call.dtype, **_moved(call))


def _moved(call: Call) -> OpContext:
    """Return shapes and bytes; a tensor changed in place is read and written."""
    place = call.place
    if not call.outputs and call.name.endswith("_"):
        place["bytes_written"] = place.get("bytes_read", 0.0)
    return place


_KNOWN: dict[Any, Rule] = {}
_FLOPS = {
    "gelu": 10.0,
    "gelu_backward": 14.0,
    "silu": 5.0,
    "silu_backward": 8.0,
    "tanh": 6.0,
    "sigmoid": 4.0,
    "erf": 6.0,
    "exp": 2.0,
    "pow": 4.0,
    "mish": 9.0,
    "hardswish": 5.0,
    "log_sigmoid_forward": 5.0,
    "addcmul": 3.0,
    "addcdiv": 3.0,
    "lerp": 3.0,
}
"""Pointwise operations of more than one FLOP an element, by their formula."""
_NAMED: tuple[tuple[frozenset[str], Rule], ...] = (
    (VIEWS, _view),
    (FILLS, _fill),
    (REDUCTIONS, _reduction),
    (COPIES, _copy),
    (INTO_ZEROS, _into_zeros),
    (INDEXINGS, _index),
    (SORTS, _sort),
    (RANDOMS, _random),
    (SAMPLINGS, _elementwise),
    (frozenset({"_fft_r2c", "_fft_c2c", "_fft_c2r"}), _fourier),
    (frozenset({"native_dropout_backward"}), _gradient),
)
