"""Which operations a microbenchmark of the suite ran, written as a trace would write them."""

import math
from collections.abc import Callable, Mapping

from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

__all__ = ["operations_of"]

Params = Mapping[str, object]


def operations_of(family: str, params: Params) -> tuple[Operation, ...]:
    """Operations of one call of the case; none when the family is not known."""
    make = _FAMILIES.get(family)
    return make(params) if make else ()


def _gemm(p: Params) -> tuple[Operation, ...]:
    b, m, n, k = (_int(p, name) for name in "bmnk")
    layout = str(p["layout"])
    return (costs.gemm(b, m, n, k, dtype=_dtype(p), layout=layout, bias=bool(p.get("bias"))),)


def _conv(p: Params) -> tuple[Operation, ...]:
    side = _int(p, "side")
    made = costs.conv(
        str(p["direction"]),
        _int(p, "n"),
        _int(p, "c_in"),
        (side,) if p.get("line") else (side, side),
        _int(p, "c_out"),
        _int(p, "k"),
        stride=_int(p, "stride"),
        padding=_int(p, "padding"),
        groups=_int(p, "groups"),
        dtype=_dtype(p),
        channels_last=bool(p.get("channels_last")),
        transposed=bool(p.get("transposed")),
    )
    return (made,)


def _attention(p: Params) -> tuple[Operation, ...]:
    dtype, masked = _dtype(p), bool(p.get("masked"))
    fused = "flash" if dtype in ("bf16", "fp16") and not masked else "efficient"
    made = costs.attention(
        str(p["direction"]),
        _int(p, "batch"),
        _int(p, "heads"),
        _int(p, "kv_heads", _int(p, "heads")),
        _int(p, "q_len"),
        _int(p, "kv_len"),
        _int(p, "head_dim"),
        causal=bool(p.get("causal")),
        masked=masked,
        dtype=dtype,
        algorithm=str(p.get("algorithm", fused)),
    )
    return (made,)


def _rnn(p: Params) -> tuple[Operation, ...]:
    made = costs.rnn(
        str(p["direction"]),
        str(p["cell"]),
        _int(p, "layers"),
        _int(p, "input"),
        _int(p, "hidden"),
        _int(p, "batch"),
        _int(p, "seq"),
        bool(p.get("bidirectional")),
        _dtype(p),
    )
    return (made,)


def _elementwise(p: Params) -> tuple[Operation, ...]:
    function, elements, dtype = str(p["function"]), _int(p, "elements"), _dtype(p)
    if function == "dropout":
        return (costs.random(elements, dtype, tensors_read=1.0),)
    op, reads, flops = _FUNCTIONS[function]
    made = costs.elementwise(elements, reads, 1.0, dtype, flops_per_element=flops, op=f"aten.{op}")
    return (made,)


def _copy(p: Params) -> tuple[Operation, ...]:
    layout = str(p["layout"])
    sizes = p.get("sizes")
    elements = math.prod(sizes) if isinstance(sizes, (list, tuple)) else _int(p, "elements")
    if layout in ("cat", "pad", "slice", "roll", "transpose"):
        return ()  # traces name them by themselves; whole matrices are hardly ever turned
    return (costs.copy(elements, _dtype(p), str(p["to"]), strided=layout != "same"),)


def _norm(p: Params) -> tuple[Operation, ...]:
    norm = str(p["norm"])
    if norm in ("layer", "rms"):
        rows, columns = _int(p, "rows"), _int(p, "columns")
    else:
        area = _int(p, "side") ** 2
        n, channels = _int(p, "n"), _int(p, "channels")
        groups = _int(p, "groups", 1)
        rows, columns = (n * area, channels) if norm == "batch" else (
            n * groups, channels // groups * area
        )  # fmt: skip
    return (costs.norm(str(p["direction"]), norm, rows, columns, dtype=_dtype(p)),)


def _softmax(p: Params) -> tuple[Operation, ...]:
    rows, columns = _int(p, "rows"), _int(p, "columns")
    return (costs.softmax(str(p["direction"]), rows, columns, dtype=_dtype(p)),)


def _loss(p: Params) -> tuple[Operation, ...]:
    rows, columns = _int(p, "rows"), _int(p, "columns")
    direction, dtype = str(p["direction"]), _dtype(p)
    if p["loss"] == "mse":
        return ()
    alone = costs.loss(direction, rows, columns, dtype=dtype)
    if p["loss"] == "nll":
        return (alone,)
    return (costs.softmax(direction, rows, columns, dtype=dtype), alone)


def _reduction(p: Params) -> tuple[Operation, ...]:
    rows, columns, over = _int(p, "rows"), _int(p, "columns"), str(p["over"])
    results = {"rows": columns, "all": 1, "norm": 1, "channels": rows // _int(p, "n", 1)}
    op = {"mean_last": "mean", "max_last": "amax", "norm": "linalg_vector_norm"}.get(over, "sum")
    made = costs.reduction(rows * columns, results.get(over, rows), _dtype(p), op=f"aten.{op}")
    return (made,)


def _embedding(p: Params) -> tuple[Operation, ...]:
    rows, columns, table = (_int(p, name) for name in ("rows", "columns", "table_rows"))
    return (costs.embedding(str(p["direction"]), rows, columns, table, dtype=_dtype(p)),)


def _pool(p: Params) -> tuple[Operation, ...]:
    kind, window, stride, side = (
        str(p["pool"]), _int(p, "window"), _int(p, "stride"), _int(p, "side")
    )  # fmt: skip
    planes = _int(p, "n") * _int(p, "channels")
    padding = window // 2 if kind == "max" and window > 2 else 0
    out = 1 if kind == "adaptive" else (side + 2 * padding - window) // stride + 1
    if kind == "adaptive":
        return ()  # a mean over the picture, in a trace as well
    made = costs.pool(
        str(p["direction"]), planes * side**2, planes * out**2, window=(window, window),
        stride=(stride, stride), dtype=_dtype(p), indices=kind == "max",
    )  # fmt: skip
    return (made,)


def _index(p: Params) -> tuple[Operation, ...]:
    elements = _int(p, "rows") * _int(p, "columns")
    return (costs.index(elements, _dtype(p), op=f"aten.{p['function']}"),)


def _optimizer(p: Params) -> tuple[Operation, ...]:
    tensors, elements = _int(p, "tensors"), _int(p, "elements")
    sizes = [elements // tensors] * tensors
    if "function" not in p:
        return costs.optimizer_step(str(p["optimizer"]), sizes, style=str(p["style"]))
    reads, writes = _LISTS[str(p["function"])]
    made = costs.foreach(
        "adamw", tensors, elements, fused=False, lists_read=reads, lists_written=writes,
        sizes=sizes,
    )  # fmt: skip
    return (made,)


_FAMILIES: Mapping[str, Callable[[Params], tuple[Operation, ...]]] = {
    "gemm": _gemm,
    "conv": _conv,
    "attention": _attention,
    "rnn": _rnn,
    "elementwise": _elementwise,
    "copy": _copy,
    "norm": _norm,
    "softmax": _softmax,
    "loss": _loss,
    "reduction": _reduction,
    "embedding": _embedding,
    "pool": _pool,
    "index": _index,
    "optimizer": _optimizer,
}

_FUNCTIONS: Mapping[str, tuple[str, float, float]] = {
    **{name: (name, 1.0, 1.0) for name in ("relu", "neg")},
    **{name: (name, 1.0, 4.0) for name in ("silu", "tanh", "sigmoid", "hardswish", "exp", "rsqrt")},
    "gelu": ("gelu", 1.0, 8.0),
    "gelu_tanh": ("gelu", 1.0, 8.0),
    "relu6": ("hardtanh", 1.0, 1.0),
    "pow2": ("pow", 1.0, 1.0),
    "scale": ("mul", 1.0, 1.0),
    **{name: (name, 2.0, 1.0) for name in ("add", "sub", "mul", "div")},
    "addcmul": ("addcmul", 2.0, 2.0),
    "where": ("where", 2.25, 1.0),
    "fill": ("zeros", 0.0, 0.0),
    "accumulate": ("add", 2.0, 1.0),
    "bias": ("add", 1.0, 1.0),
    "column": ("add", 1.0, 1.0),
    "relu_backward": ("threshold_backward", 2.0, 1.0),
    "relu6_backward": ("hardtanh_backward", 2.0, 1.0),
    "gelu_tanh_backward": ("gelu_backward", 2.0, 16.0),
    "dropout_backward": ("native_dropout_backward", 1.25, 2.0),
    **{f"{name}_backward": (f"{name}_backward", 2.0, 8.0)
       for name in ("gelu", "silu", "tanh", "sigmoid", "hardswish")},
}  # fmt: skip
"""Function of the suite -> the operator's name, tensors read, FLOPs of an element."""

_LISTS: Mapping[str, tuple[int, int]] = {
    "mul_scalar": (1, 1), "add_scalar": (1, 1), "sqrt": (1, 1), "zero": (0, 1), "add_list": (2, 1),
    "lerp": (2, 1), "div_list": (2, 1), "addcmul": (3, 1), "addcdiv": (3, 1),
}  # fmt: skip
"""List operation -> lists read and written."""


def _int(p: Params, name: str, missing: int | None = None) -> int:
    value = p.get(name, missing)
    if not isinstance(value, (int, float)):
        raise ValueError(f"'{name}' is {value!r}, not a number")
    return int(value)


def _dtype(p: Params) -> str:
    return str(p.get("dtype", "fp32"))
