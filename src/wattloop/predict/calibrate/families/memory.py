"""Memory-bound cases: norms, softmax, losses, elementwise, copies, reductions, lookups, pooling."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wattloop.predict.calibrate.case import CalibrationCase, Params, cases_of
from wattloop.predict.calibrate.device import CalibrationDevice, KernelCalls, torch_dtypes


def directed(
    bench: CalibrationDevice,
    backward: bool,
    function: Callable[..., Any],
    inputs: Callable[[], Sequence[Any]],
    set_bytes: float,
) -> KernelCalls:
    """Return the function on fresh inputs, or its gradient with a retained graph.

    All floating-point inputs get a gradient except those with an attribute `constant`.
    """
    torch = bench.torch

    def make() -> Callable[[], Any]:
        values = inputs()
        if not backward:
            return lambda: _forward(torch, function, values)
        leaves = [_leaf(value) for value in values]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.enable_grad():
            result = function(*leaves)
        gradient = bench.normal(tuple(result.shape), result.dtype)
        return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    return bench.sets(make, set_bytes, most=6 if backward else 24)


def _forward(torch: Any, function: Callable[..., Any], values: Sequence[Any]) -> Any:
    with torch.no_grad():
        return function(*values)


def _leaf(value: Any) -> Any:
    """Return a leaf that requires a gradient, unless it holds integers or is marked constant."""
    if not value.dtype.is_floating_point or getattr(value, "constant", False):
        return value
    return value.detach().requires_grad_()


def norm(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a batch, layer, group or RMS norm in training; weights of a batch norm stay float32."""
    functional = bench.torch.nn.functional
    dtype = bench.precision(p.text("dtype"))
    kind = p.text("norm")
    shape: tuple[int, ...]
    if kind in ("layer", "rms"):
        width = p.number("columns")
        shape = (p.number("rows"), width)
    else:
        width = p.number("channels")
        shape = (p.number("n"), width, p.number("side"), p.number("side"))
    weight_dtype = bench.torch.float32 if kind == "batch" else dtype
    mean = bench.torch.zeros(width, device=bench.device)
    variance = bench.torch.ones(width, device=bench.device)

    def function(x: Any, weight: Any, *bias: Any) -> Any:
        if kind == "batch":
            return functional.batch_norm(x, mean, variance, weight, *bias, training=True)
        if kind == "group":
            return functional.group_norm(x, p.number("groups"), weight, *bias)
        if kind == "layer":
            return functional.layer_norm(x, (width,), weight, *bias)
        return functional.rms_norm(x, (width,), weight)

    def inputs() -> tuple[Any, ...]:
        weights = [bench.normal((width,), weight_dtype) for _ in range(1 if kind == "rms" else 2)]
        return bench.normal(shape, dtype), *weights

    size = bench.torch.empty((), dtype=dtype).element_size()
    set_bytes = 2.0 * bench.torch.Size(shape).numel() * size
    return directed(bench, p.text("direction") == "backward", function, inputs, set_bytes)


def softmax(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a softmax or log-softmax over the last dimension."""
    dtype = bench.precision(p.text("dtype"))
    shape = (p.number("rows"), p.number("columns"))
    functional = bench.torch.nn.functional
    function = functional.log_softmax if p.flag("log") else functional.softmax
    size = bench.torch.empty((), dtype=dtype).element_size()
    return directed(
        bench,
        p.text("direction") == "backward",
        lambda x: function(x, dim=-1),
        lambda: (bench.normal(shape, dtype),),
        2.0 * shape[0] * shape[1] * size,
    )


def loss(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build cross entropy (log-softmax and the loss), the loss alone, or the mean squared error."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    rows, columns, kind = p.number("rows"), p.number("columns"), p.text("loss")
    functional = torch.nn.functional

    def inputs() -> tuple[Any, ...]:
        x = bench.normal((rows, columns), dtype)
        if kind == "mse":
            target = bench.normal((rows, columns), dtype)
            target.constant = True
            return x, target
        return x, bench.whole(columns, (rows,))

    functions = {
        "cross_entropy": functional.cross_entropy,
        "nll": functional.nll_loss,
        "mse": functional.mse_loss,
    }
    size = torch.empty((), dtype=dtype).element_size()
    set_bytes = 2.0 * rows * columns * size
    return directed(bench, p.text("direction") == "backward", functions[kind], inputs, set_bytes)


DROP = 0.1


def build_elementwise(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build one function; `resident` keeps to one set of inputs, which then stays in the cache."""
    dtype = bench.precision(p.text("dtype"))
    elements, columns = p.number("elements"), p.number("columns", 0)
    shape = (elements // columns, columns) if columns else (elements,)
    function = p.text("function")

    def make() -> Callable[[], Any]:
        return _call(bench, function, shape, dtype)

    size = bench.torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, 3.0 * elements * size, most=1 if p.flag("resident") else 48)


def _call(
    bench: CalibrationDevice, function: str, shape: tuple[int, ...], dtype: Any
) -> Callable[[], Any]:
    torch = bench.torch
    aten = torch.ops.aten
    x = bench.normal(shape, dtype)
    unary: dict[str, Callable[[], Any]] = {
        "relu": lambda: torch.relu(x),
        "gelu": lambda: aten.gelu(x),
        "gelu_tanh": lambda: aten.gelu(x, approximate="tanh"),
        "silu": lambda: aten.silu(x),
        "tanh": lambda: torch.tanh(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "hardswish": lambda: aten.hardswish(x),
        "relu6": lambda: aten.hardtanh(x, 0.0, 6.0),
        "exp": lambda: torch.exp(x),
        "neg": lambda: torch.neg(x),
        "pow2": lambda: torch.pow(x, 2),
        "rsqrt": lambda: torch.rsqrt(x),
        "scale": lambda: torch.mul(x, 0.125),
        "dropout": lambda: aten.native_dropout(x, DROP, True),
        "fill": lambda: torch.zeros(shape, dtype=dtype, device=bench.device),
    }
    if function in unary:
        return unary[function]
    if function in ("bias", "column"):
        other = bench.normal((shape[1],) if function == "bias" else (shape[0], 1), dtype)
        return lambda: torch.add(x, other)
    y = bench.normal(shape, dtype)
    if function == "accumulate":
        total = torch.zeros_like(y)
        return lambda: total.add_(y)
    return _of_two(bench, function, x, y)


def _of_two(bench: CalibrationDevice, function: str, x: Any, y: Any) -> Callable[[], Any]:
    torch = bench.torch
    aten = torch.ops.aten
    if function in ("dropout_backward", "where"):
        mask = x > 0
        if function == "where":
            return lambda: torch.where(mask, x, y)
        return lambda: aten.native_dropout_backward(y, mask, 1 / (1 - DROP))
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, y),
        "sub": lambda: torch.sub(x, y),
        "mul": lambda: torch.mul(x, y),
        "div": lambda: torch.div(x, y),
        "addcmul": lambda: torch.addcmul(x, x, y),
        "relu_backward": lambda: aten.threshold_backward(y, x, 0),
        "gelu_backward": lambda: aten.gelu_backward(y, x),
        "gelu_tanh_backward": lambda: aten.gelu_backward(y, x, approximate="tanh"),
        "silu_backward": lambda: aten.silu_backward(y, x),
        "tanh_backward": lambda: aten.tanh_backward(y, x),
        "sigmoid_backward": lambda: aten.sigmoid_backward(y, x),
        "hardswish_backward": lambda: aten.hardswish_backward(y, x),
        "relu6_backward": lambda: aten.hardtanh_backward(y, x, 0.0, 6.0),
    }
    return calls[function]


def build_copy(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a copy; `layout` names the change."""
    torch = bench.torch
    dtype, to = bench.precision(p.text("dtype")), torch_dtypes(torch)[p.text("to")]
    layout = p.text("layout")
    sizes = [p.number("elements")] if layout == "same" else p.numbers("sizes")

    def make() -> Callable[[], Any]:
        x = bench.normal(sizes, dtype)
        if layout == "same":
            return x.clone if to == dtype else (lambda: x.to(to))
        return _laid(torch, layout, x)

    size = torch.empty((), dtype=dtype).element_size()
    most = 1 if p.flag("resident") else 32
    return bench.sets(make, 2.0 * math.prod(sizes) * size, most=most)


def _laid(torch: Any, layout: str, x: Any) -> Callable[[], Any]:
    if layout == "heads":
        return lambda: x.transpose(1, 2).contiguous()
    if layout == "transpose":
        return lambda: x.t().contiguous()
    if layout == "nhwc":
        return lambda: x.contiguous(memory_format=torch.channels_last)
    if layout == "nchw":
        last = x.permute(0, 2, 3, 1).reshape(x.shape).view(
            x.shape[0], x.shape[2], x.shape[3], x.shape[1]
        ).permute(0, 3, 1, 2)  # fmt: skip
        last_copy: Callable[[], Any] = last.contiguous
        return last_copy
    if layout == "cat":
        return lambda: torch.cat((x, x), dim=1)
    if layout == "pad":
        return lambda: torch.ops.aten.constant_pad_nd(x, (1, 1, 1, 1), 0.0)
    if layout == "slice":
        half: Callable[[], Any] = x[:, : x.shape[1] // 2].contiguous
        return half
    return lambda: torch.roll(x, (-3, -3), dims=(2, 3))


def reduction(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a sum, mean, maximum or norm over rows, columns, channels or everything."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    rows, columns, over = p.number("rows"), p.number("columns"), p.text("over")

    def make() -> Callable[[], Any]:
        x = bench.normal((rows, columns), dtype)
        if over == "channels":
            x = x.view(p.number("n"), -1, columns)
        calls: dict[str, Callable[[], Any]] = {
            "rows": lambda: x.sum(0),
            "columns": lambda: x.sum(1),
            "all": x.sum,
            "mean_last": lambda: x.mean(-1),
            "max_last": lambda: torch.amax(x, -1),
            "norm": lambda: torch.linalg.vector_norm(x),
            "channels": lambda: x.sum((0, 2)),
        }
        return calls[over]

    size = torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, rows * columns * size, most=24)


def embedding(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a lookup; its gradient is a whole table, zeroed first."""
    torch = bench.torch
    rows, columns, table_rows = (p.number(name) for name in ("rows", "columns", "table_rows"))

    def make() -> Callable[[], Any]:
        places = bench.whole(table_rows, (rows,))
        if p.text("direction") == "forward":
            table = bench.normal((table_rows, columns), torch.float32)
            return lambda: torch.ops.aten.embedding(table, places)
        gradient = bench.normal((rows, columns), torch.float32)
        return lambda: torch.ops.aten.embedding_dense_backward(
            gradient, places, table_rows, -1, False
        )

    return bench.sets(make, rows * columns * 8.0, most=8)


def pool(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build maximum or mean pooling."""
    functional = bench.torch.nn.functional
    dtype = bench.precision(p.text("dtype"))
    window, stride, kind = p.number("window"), p.number("stride"), p.text("pool")
    shape = (p.number("n"), p.number("channels"), p.number("side"), p.number("side"))
    functions: dict[str, Callable[[Any], Any]] = {
        "max": lambda x: functional.max_pool2d(x, window, stride, window // 2 if window > 2 else 0),
        "avg": lambda x: functional.avg_pool2d(x, window, stride),
        "adaptive": lambda x: functional.adaptive_avg_pool2d(x, 1),
    }
    size = bench.torch.empty((), dtype=dtype).element_size()
    return directed(
        bench,
        p.text("direction") == "backward",
        functions[kind],
        lambda: (bench.normal(shape, dtype),),
        bench.torch.Size(shape).numel() * size,
    )


def index(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build gathers of rows and masked values."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    rows, columns, function = p.number("rows"), p.number("columns"), p.text("function")

    def make() -> Callable[[], Any]:
        x = bench.normal((rows, columns), dtype)
        places = bench.whole(rows, (rows,))
        wide = places[:, None].expand(rows, columns)
        mask = x > 1
        total = torch.zeros_like(x)
        calls: dict[str, Callable[[], Any]] = {
            "index_select": lambda: torch.index_select(x, 0, places),
            "gather": lambda: torch.gather(x, 0, wide),
            "masked_fill": lambda: x.masked_fill(mask, 0.0),
            "index_add": lambda: total.index_add_(0, places, x),
            "tril": lambda: torch.tril(x),
        }
        return calls[function]

    size = torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, 2.0 * rows * columns * size, most=12)


BOTH = ("forward", "backward")
UNARY = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "hardswish", "relu6", "exp", "neg",
         "pow2", "rsqrt", "scale")  # fmt: skip
BINARY = ("add", "mul", "sub", "div")
COPIED: tuple[tuple[str, str], ...] = (
    ("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("bf16", "bf16"),
)  # fmt: skip
"""Source and target number formats."""
GRADIENTS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "hardswish", "relu6")


def memory_families() -> list[list[CalibrationCase]]:
    """Return one list of cases per family."""
    return [
        cases_of("kernels", "elementwise", _elementwise()),
        cases_of("kernels", "copy", _copies()),
        cases_of("kernels", "norm", _norms()),
        cases_of("kernels", "softmax", _softmax()),
        cases_of("kernels", "loss", _losses()),
        cases_of("kernels", "reduction", _reductions()),
        cases_of("kernels", "embedding", _embeddings()),
        cases_of("kernels", "pool", _pools()),
        cases_of("kernels", "index", _indexing()),
    ]


def _elementwise() -> Iterator[dict[str, object]]:
    sizes = [2**power for power in range(8, 30)] + [3 * 2**power for power in range(19, 27)]
    for dtype in ("fp32", "bf16"):
        for number, elements in enumerate(sizes):
            for resident in (False, True):
                if resident and elements > 2**26:
                    continue
                row = {"dtype": dtype, "elements": elements, "resident": resident}
                yield {**row, "function": "add"}
                yield {**row, "function": "gelu"}
                for count, name in enumerate((*UNARY, *BINARY, "dropout", "addcmul", "where")):
                    if (number + count) % 4 == 0:
                        yield {**row, "function": name}
                for count, name in enumerate((*GRADIENTS, "dropout")):
                    if (number + count) % 3 == 0:
                        yield {**row, "function": f"{name}_backward"}
                if number % 2 == 0:
                    yield {**row, "function": "fill"}
                    yield {**row, "function": "accumulate"}
        pick = random.Random(f"broadcast {dtype}")
        for _ in range(24):
            rows, columns = pick.choice((64, 512, 4096, 32768)), pick.choice((49, 768, 3072, 8192))
            row = {"dtype": dtype, "resident": pick.random() < 0.3, "elements": rows * columns}
            yield {**row, "function": "bias", "columns": columns}
            yield {**row, "function": "column", "columns": columns}


def _copies() -> Iterator[dict[str, object]]:
    for power in range(10, 30):
        for resident in (False, True):
            if resident and power > 26:
                continue
            row = {"elements": 2**power, "resident": resident, "layout": "same"}
            for dtype, to in COPIED:
                if dtype != to or power % 2 == 0:
                    yield {**row, "dtype": dtype, "to": to}
    pick = random.Random("copy")
    for dtype in ("fp32", "bf16"):
        for _ in range(26):
            batch, length = pick.choice((1, 8, 32, 128)), pick.choice((64, 197, 512, 1024))
            heads, head = pick.choice((8, 12, 16)), pick.choice((32, 64, 128))
            sizes = [batch, length, heads, head]
            yield {"dtype": dtype, "to": dtype, "layout": "heads", "sizes": sizes}
        for _ in range(20):
            sizes = [pick.choice((64, 500, 1024, 4096, 16384)) for _ in range(2)]
            yield {"dtype": dtype, "to": dtype, "layout": "transpose", "sizes": sizes}
        for _ in range(20):
            channels, side = pick.choice(((64, 56), (96, 56), (256, 28), (384, 14), (768, 7)))
            sizes = [pick.choice((4, 32, 128)), channels, side, side]
            layout = pick.choice(("nhwc", "nchw"))
            yield {"dtype": dtype, "to": dtype, "layout": layout, "sizes": sizes}
        for _ in range(24):
            sizes = [pick.choice((8, 64, 256)), pick.choice((64, 192, 512)), 28, 28]
            layout = pick.choice(("cat", "cat", "pad", "slice", "roll"))
            yield {"dtype": dtype, "to": dtype, "layout": layout, "sizes": sizes}


def _norms() -> Iterator[dict[str, object]]:
    pick = random.Random("norm")
    for dtype in ("fp32", "bf16"):
        for _ in range(110):
            channels = pick.choice((16, 24, 32, 64, 96, 128, 144, 240, 256, 512, 960, 1024, 2048))
            side = pick.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 112, 112, 224))
            n = pick.choice((1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096))
            if not 2e3 < n * channels * side * side < 4e8:
                continue
            for direction in BOTH:
                yield {"dtype": dtype, "norm": "batch", "n": n, "channels": channels, "side": side,
                       "direction": direction}  # fmt: skip
        for _ in range(60):
            rows = pick.choice((16, 128, 512, 1576, 2048, 8192, 16384, 50176, 200704))
            columns = pick.choice((64, 96, 128, 192, 312, 384, 512, 768, 1024, 1280, 2048, 4096))
            norm = pick.choice(("layer", "layer", "layer", "rms"))
            if rows * columns > 4e8:
                continue
            for direction in BOTH:
                yield {"dtype": dtype, "norm": norm, "rows": rows, "columns": columns,
                       "direction": direction}  # fmt: skip
        for _ in range(14):
            n, channels = pick.choice((1, 8, 32)), pick.choice((64, 128, 320, 512))
            for direction in BOTH:
                yield {"dtype": dtype, "norm": "group", "n": n, "channels": channels,
                       "side": pick.choice((8, 16, 32, 64)), "groups": 32,
                       "direction": direction}  # fmt: skip


def _softmax() -> Iterator[dict[str, object]]:
    pick = random.Random("softmax")
    for dtype in ("fp32", "bf16"):
        for _ in range(60):
            rows = pick.choice((64, 512, 2048, 8192, 32768, 98304, 393216))
            columns = pick.choice((10, 49, 64, 128, 197, 256, 512, 1024, 2048, 4096, 30522, 50257))
            if rows * columns > 1.2e9:
                continue
            log = pick.random() < 0.4
            for direction in BOTH:
                yield {"dtype": dtype, "rows": rows, "columns": columns, "log": log,
                       "direction": direction}  # fmt: skip


def _losses() -> Iterator[dict[str, object]]:
    for dtype in ("fp32", "bf16"):
        for rows in (16, 64, 256, 1024, 4096, 8192, 16384, 32768):
            for columns in (2, 10, 1000, 10000, 30522, 32000, 33278, 50257, 128256):
                if rows * columns > 9e8 or (columns > 1000) != (rows > 64) or dtype == "bf16":
                    continue
                for loss in ("cross_entropy", "nll"):
                    for direction in BOTH:
                        yield {"dtype": dtype, "rows": rows, "columns": columns, "loss": loss,
                               "direction": direction}  # fmt: skip
    for elements in (256, 4096, 2**20, 2**24):
        for direction in BOTH:
            yield {"dtype": "fp32", "rows": elements, "columns": 1, "loss": "mse",
                   "direction": direction}  # fmt: skip


def _reductions() -> Iterator[dict[str, object]]:
    pick = random.Random("reduction")
    for dtype in ("fp32", "bf16"):
        for _ in range(80):
            rows = pick.choice((8, 64, 512, 1576, 4096, 8192, 16384, 65536))
            columns = pick.choice((10, 49, 128, 768, 1000, 3072, 3136, 10001, 50257))
            if rows * columns > 9e8:
                continue
            over = pick.choice(("rows", "rows", "columns", "all", "mean_last", "max_last", "norm"))
            yield {"dtype": dtype, "rows": rows, "columns": columns, "over": over}
        for _ in range(20):
            n, channels, side = pick.choice((16, 64, 256)), pick.choice((64, 256, 1024)), 14
            yield {"dtype": dtype, "rows": n * channels, "columns": side * side, "over": "channels",
                   "n": n}  # fmt: skip


def _embeddings() -> Iterator[dict[str, object]]:
    pick = random.Random("embedding")
    for _ in range(60):
        rows = pick.choice((64, 512, 2048, 4096, 8192, 16384, 32768))
        columns = pick.choice((64, 128, 300, 512, 768, 1024, 2048))
        table_rows = pick.choice((2, 512, 1024, 10000, 30522, 33278, 50257, 128256))
        for direction in BOTH:
            yield {"dtype": "fp32", "rows": rows, "columns": columns, "table_rows": table_rows,
                   "direction": direction}  # fmt: skip


def _pools() -> Iterator[dict[str, object]]:
    pick = random.Random("pool")
    for dtype in ("fp32", "bf16"):
        for _ in range(44):
            pool, window, stride = pick.choice(
                (("max", 3, 2), ("max", 2, 2), ("avg", 2, 2), ("avg", 3, 2), ("adaptive", 1, 1))
            )
            channels, side = pick.choice(((64, 112), (128, 56), (256, 28), (512, 14), (2048, 7)))
            n = pick.choice((1, 8, 16, 64, 128, 256))
            for direction in BOTH:
                yield {"dtype": dtype, "pool": pool, "window": window, "stride": stride, "n": n,
                       "channels": channels, "side": side, "direction": direction}  # fmt: skip


def _indexing() -> Iterator[dict[str, object]]:
    pick = random.Random("index")
    for dtype in ("fp32", "bf16"):
        for _ in range(24):
            rows = pick.choice((64, 1024, 8192, 65536))
            columns = pick.choice((64, 300, 768, 2048))
            function = pick.choice(("index_select", "gather", "masked_fill", "index_add", "tril"))
            yield {"dtype": dtype, "rows": rows, "columns": columns, "function": function}
