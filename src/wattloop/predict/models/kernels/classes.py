"""Which operations share constants."""

import math
from collections.abc import Mapping

from wattloop.predict.workload.operation import Kind, Operation, Phase

__all__ = [
    "class_of",
    "direction_of",
    "family_of",
    "is_apart",
    "is_persistent",
    "size_of",
    "unit_of",
]

MOST_PERSISTENT = 128
"""Hidden units up to which it does so, as seen on an H200 with cuDNN 9.19."""
FEWEST_APART = 512
"""Pictures of one pixel from which on it makes a product for each, seen there as well."""


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
        return _conv_class(op, direction)
    if op.kind is Kind.ATTENTION:
        return f"attention.{detail.get('algorithm', 'flash')}.{direction}.{unit_of(op)}"
    if op.kind is Kind.RNN:
        manner = "persistent" if is_persistent(op) else "stepwise"
        return f"rnn.{manner}.{detail.get('cell', 'lstm')}.{direction}.{op.dtype}"
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


def is_persistent(op: Operation) -> bool:
    """Whether cuDNN keeps a recurrent layer's weights in registers, in one kernel for all steps."""
    if op.kind is not Kind.RNN or op.dtype not in ("fp32", "tf32"):
        return False
    return size_of(op.detail, "hidden") <= MOST_PERSISTENT


def is_apart(op: Operation) -> bool:
    """Whether cuDNN makes the gradient of a weight for each picture alone and then adds them up.

    It does so in tf32 for windows of one pixel over pictures of one pixel, such as the last layers
    of a network for 224 pixels that is fed with 32: a gigabyte of sums instead of one product.
    """
    if op.kind is not Kind.CONV or op.dtype != "tf32" or direction_of(op) != "weight":
        return False
    single = all(size_of(op.detail, key) == 1 for key in ("h", "w", "k_h", "k_w", "groups"))
    return single and size_of(op.detail, "n") >= FEWEST_APART


def unit_of(op: Operation) -> str:
    """What really computes: depthwise convolutions and attention of fp32 tensors never use tf32."""
    if op.dtype != "tf32" or op.kind not in (Kind.CONV, Kind.ATTENTION):
        return op.dtype
    depthwise = op.kind is Kind.CONV and _conv_family(op.detail) == "depthwise"
    return "fp32" if depthwise or op.kind is Kind.ATTENTION else op.dtype


def direction_of(op: Operation) -> str:
    """`forward`, `backward`, `data` or `weight`; the phase where the detail says nothing."""
    said = op.detail.get("direction")
    if isinstance(said, str):
        # Transposed convolutions are the others' gradients of the input, and the other way round.
        swapped = {"forward": "data", "data": "forward"} if op.detail.get("transposed") else {}
        return swapped.get(said, said)
    return "backward" if op.phase is Phase.BACKWARD else "forward"


def _function(op: Operation) -> str:
    """`gelu_backward` of `aten.gelu_backward.default`; in place or not is the same work."""
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
    """A number of a detail; of a height, width pair their product."""
    value = detail.get(key, missing)
    if isinstance(value, (tuple, list)):
        return float(math.prod(float(part) for part in value))
    return float(value) if isinstance(value, (int, float)) else missing
