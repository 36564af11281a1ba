"""Memory-bound operations: norms, softmax, losses, elementwise, copies, reductions, pools."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from wattloop.predict.calibrate.families.base import (
    BOTH,
    Family,
    Params,
    Row,
    directed,
    gradient_calls,
    row,
)
from wattloop.predict.calibrate.families.convolution import CHANNELS
from wattloop.predict.calibrate.families.product import TYPICAL_WIDTHS
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls, torch_dtypes
from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

DROP = 0.1


class Function(NamedTuple):
    """Elementwise function: its operator, tensors read and FLOPs of an element in a trace."""

    op: str
    reads: float = 1.0
    flops: float = 1.0
    arguments: tuple[Any, ...] = ()
    tanh: bool = False

    def call(self, torch: Any, x: Any, y: Any) -> Callable[[], Any]:
        """Return `op(x, ...)`, `op(x, y)` or, of a gradient, `op(gradient, x, ...)`."""
        op = getattr(torch.ops.aten, self.op)
        tensors = (y, x) if self.op.endswith("_backward") else (x, y)[: int(self.reads)]
        how = {"approximate": "tanh"} if self.tanh else {}
        return lambda: op(*tensors, *self.arguments, **how)


UNARY: Mapping[str, Function] = {
    "relu": Function("relu"),
    "gelu": Function("gelu", 1, 8),
    "gelu_tanh": Function("gelu", 1, 8, tanh=True),
    "silu": Function("silu", 1, 4),
    "tanh": Function("tanh", 1, 4),
    "sigmoid": Function("sigmoid", 1, 4),
    "hardswish": Function("hardswish", 1, 4),
    "relu6": Function("hardtanh", arguments=(0.0, 6.0)),
    "exp": Function("exp", 1, 4),
    "neg": Function("neg"),
    "pow2": Function("pow", arguments=(2,)),
    "rsqrt": Function("rsqrt", 1, 4),
    "scale": Function("mul", arguments=(0.125,)),
}
BINARY = {name: Function(name, 2) for name in ("add", "mul", "sub", "div")}
GRADIENTS: Mapping[str, Function] = {
    "relu_backward": Function("threshold_backward", 2, arguments=(0,)),
    "gelu_backward": Function("gelu_backward", 2, 8),
    "gelu_tanh_backward": Function("gelu_backward", 2, 16, tanh=True),
    "silu_backward": Function("silu_backward", 2, 8),
    "tanh_backward": Function("tanh_backward", 2, 8),
    "sigmoid_backward": Function("sigmoid_backward", 2, 8),
    "hardswish_backward": Function("hardswish_backward", 2, 8),
    "relu6_backward": Function("hardtanh_backward", 2, arguments=(0.0, 6.0)),
}
SPECIAL: Mapping[str, Function] = {
    "dropout_backward": Function("native_dropout_backward", 1.25, 2),
    "addcmul": Function("addcmul", 2, 2),
    "where": Function("where", 2.25),
    "fill": Function("zeros", 0, 0),
    "accumulate": Function("add", 2),
    "bias": Function("add"),
    "column": Function("add"),
}
"""Functions whose call needs more than their operands."""
FUNCTIONS: Mapping[str, Function] = {**UNARY, **BINARY, **GRADIENTS, **SPECIAL}


class Elementwise(Family):
    """One function of each element; `resident` keeps to inputs that then stay in the cache."""

    name = "elementwise"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_elementwise(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch, dtype = device.torch, device.precision(p.dtype)
        elements, columns, name = p.number("elements"), p.number("columns", 0), p.text("function")
        shape = (elements // columns, columns) if columns else (elements,)
        broadcast = {"bias": shape[1:], "column": (shape[0], 1)}

        def make() -> Callable[[], Any]:
            x = device.normal(shape, dtype)
            if name == "dropout":
                return lambda: torch.ops.aten.native_dropout(x, DROP, True)
            y = (
                None
                if name in (*UNARY, "fill")
                else device.normal(broadcast.get(name, shape), dtype)
            )
            if name not in SPECIAL:
                return FUNCTIONS[name].call(torch, x, y)
            mask = x > 0 if name in ("dropout_backward", "where") else None
            total: Any = torch.zeros_like(x) if name == "accumulate" else None
            calls: dict[str, Callable[[], Any]] = {
                "dropout_backward": lambda: torch.ops.aten.native_dropout_backward(
                    y, mask, 1 / (1 - DROP)
                ),
                "addcmul": lambda: torch.addcmul(x, x, y),
                "where": lambda: torch.where(mask, x, y),
                "fill": lambda: torch.zeros(shape, dtype=dtype, device=device.device),
                "accumulate": lambda: total.add_(y),
            }
            return calls.get(name, lambda: torch.add(x, y))

        most = 1 if p.flag("resident") else 48
        return device.sets(make, 3.0 * elements * dtype.itemsize, most=most)

    def operations(self, p: Params) -> tuple[Operation]:
        elements, name = p.number("elements"), p.text("function")
        if name == "dropout":
            return (costs.random(elements, p.dtype, tensors_read=1.0),)
        op, reads, flops, *_ = FUNCTIONS[name]
        made = costs.elementwise(
            elements, reads, 1.0, p.dtype, flops_per_element=float(flops), op=f"aten.{op}"
        )
        return (made,)


class Copy(Family):
    """Copies to another type or layout."""

    name = "copy"

    def rows(self) -> Iterable[Iterable[Row]]:
        return _copies(), _typical_copies()

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        dtype, to = device.precision(p.dtype), torch_dtypes(torch)[p.text("to")]
        layout = p.text("layout")
        sizes = [p.number("elements")] if layout == "same" else p.sizes("sizes")

        def make() -> Callable[[], Any]:
            x = device.normal(sizes, dtype)
            if layout == "same":
                return x.clone if to == dtype else (lambda: x.to(to))
            return self._copied(torch, layout, x)

        most = 1 if p.flag("resident") else 32
        return device.sets(make, 2.0 * math.prod(sizes) * dtype.itemsize, most=most)

    @staticmethod
    def _copied(torch: Any, layout: str, x: Any) -> Callable[[], Any]:
        if layout == "nchw":
            last = x.view(x.shape[0], *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)
            contiguous: Callable[[], Any] = last.contiguous
            return contiguous
        calls: dict[str, Callable[[], Any]] = {
            "heads": lambda: x.transpose(1, 2).contiguous(),
            "transpose": lambda: x.t().contiguous(),
            "nhwc": lambda: x.contiguous(memory_format=torch.channels_last),
            "cat": lambda: torch.cat((x, x), dim=1),
            "pad": lambda: torch.ops.aten.constant_pad_nd(x, (1, 1, 1, 1), 0.0),
            "slice": x[:, : x.shape[1] // 2].contiguous,
            "roll": lambda: torch.roll(x, (-3, -3), dims=(2, 3)),
        }
        return calls[layout]

    def operations(self, p: Params) -> tuple[Operation, ...]:
        layout = p.text("layout")
        if layout in ("cat", "pad", "slice", "roll", "transpose"):
            return ()  # traces name them separately; whole matrices are rarely transposed
        elements = p.number("elements") if layout == "same" else math.prod(p.sizes("sizes"))
        return (costs.copy(elements, p.dtype, p.text("to"), strided=layout != "same"),)


class Norm(Family):
    """Batch, layer, group and RMS norms in training; weights of a batch norm stay float32."""

    name = "norm"

    def rows(self) -> Iterable[Iterable[Row]]:
        return _norms(), _typical_norms()

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch, dtype = device.torch, device.precision(p.dtype)
        functional, kind = torch.nn.functional, p.text("norm")
        by_rows = kind in ("layer", "rms")
        width = p.number("columns" if by_rows else "channels")
        shape = (p.number("rows"), width) if by_rows else p.numbers("n", "channels", "side", "side")
        weight_dtype = torch.float32 if kind == "batch" else dtype
        mean = torch.zeros(width, device=device.device)
        variance = torch.ones(width, device=device.device)
        functions: dict[str, Callable[..., Any]] = {
            "batch": lambda x, w, b: functional.batch_norm(x, mean, variance, w, b, training=True),
            "group": lambda x, w, b: functional.group_norm(x, p.number("groups"), w, b),
            "layer": lambda x, w, b: functional.layer_norm(x, (width,), w, b),
            "rms": lambda x, w: functional.rms_norm(x, (width,), w),
        }

        def inputs() -> tuple[Any, ...]:
            number = 1 if kind == "rms" else 2
            weights = [device.normal((width,), weight_dtype) for _ in range(number)]
            return device.normal(shape, dtype), *weights

        set_bytes = 2.0 * math.prod(shape) * dtype.itemsize
        return gradient_calls(device, p.backward, functions[kind], inputs, set_bytes)

    def operations(self, p: Params) -> tuple[Operation]:
        kind = p.text("norm")
        if kind in ("layer", "rms"):
            rows, columns = p.numbers("rows", "columns")
        else:
            n, channels, side = p.numbers("n", "channels", "side")
            groups = p.number("groups", 1)
            rows, columns = n * side**2, channels
            if kind != "batch":
                rows, columns = n * groups, channels // groups * side**2
        return (costs.norm(p.text("direction"), kind, rows, columns, dtype=p.dtype),)


class Softmax(Family):
    """Softmax or log-softmax over the last dimension."""

    name = "softmax"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_softmax(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        dtype, shape = device.precision(p.dtype), p.numbers("rows", "columns")
        functional = device.torch.nn.functional
        function = functional.log_softmax if p.flag("log") else functional.softmax
        return gradient_calls(
            device,
            p.backward,
            lambda x: function(x, dim=-1),
            lambda: (device.normal(shape, dtype),),
            2.0 * math.prod(shape) * dtype.itemsize,
        )

    def operations(self, p: Params) -> tuple[Operation]:
        return (costs.softmax(p.text("direction"), *p.numbers("rows", "columns"), dtype=p.dtype),)


class Loss(Family):
    """Cross entropy (log-softmax and the loss), the loss alone, or the mean squared error."""

    name = "loss"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_losses(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        dtype, kind = device.precision(p.dtype), p.text("loss")
        rows, columns = p.numbers("rows", "columns")
        functional = device.torch.nn.functional

        def inputs() -> tuple[Any, ...]:
            x = device.normal((rows, columns), dtype)
            if kind != "mse":
                return x, device.whole(columns, (rows,))
            target = device.normal((rows, columns), dtype)
            target.constant = True
            return x, target

        functions = {
            "cross_entropy": functional.cross_entropy,
            "nll": functional.nll_loss,
            "mse": functional.mse_loss,
        }
        set_bytes = 2.0 * rows * columns * dtype.itemsize
        return gradient_calls(device, p.backward, functions[kind], inputs, set_bytes)

    def operations(self, p: Params) -> tuple[Operation, ...]:
        if p.text("loss") == "mse":
            return ()
        direction, shape = p.text("direction"), p.numbers("rows", "columns")
        alone = costs.loss(direction, *shape, dtype=p.dtype)
        if p.text("loss") == "nll":
            return (alone,)
        return costs.softmax(direction, *shape, dtype=p.dtype), alone


class Reduction(Family):
    """Sums, means, maxima and norms over rows, columns, channels or everything."""

    name = "reduction"

    def rows(self) -> Iterable[Iterable[Row]]:
        return _reductions(), _bias_gradients()

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch, dtype = device.torch, device.precision(p.dtype)
        rows, columns = p.numbers("rows", "columns")

        def make() -> Callable[[], Any]:
            x = device.normal((rows, columns), dtype)
            calls: dict[str, Callable[[], Any]] = {
                "rows": lambda: x.sum(0),
                "columns": lambda: x.sum(1),
                "all": x.sum,
                "mean_last": lambda: x.mean(-1),
                "max_last": lambda: torch.amax(x, -1),
                "norm": lambda: torch.linalg.vector_norm(x),
                "channels": lambda: x.view(p.number("n"), -1, columns).sum((0, 2)),
            }
            return calls[p.text("over")]

        return device.sets(make, rows * columns * dtype.itemsize, most=24)

    def operations(self, p: Params) -> tuple[Operation]:
        (rows, columns), over = p.numbers("rows", "columns"), p.text("over")
        results = {"rows": columns, "all": 1, "norm": 1, "channels": rows // p.number("n", 1)}
        ops = {"mean_last": "mean", "max_last": "amax", "norm": "linalg_vector_norm"}
        op = f"aten.{ops.get(over, 'sum')}"
        return (costs.reduction(rows * columns, results.get(over, rows), p.dtype, op=op),)


class Embedding(Family):
    """Lookups in a table; the gradient is a whole table, zeroed first."""

    name = "embedding"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_embeddings(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        aten = torch.ops.aten
        rows, columns, table_rows = p.numbers("rows", "columns", "table_rows")

        def make() -> Callable[[], Any]:
            places = device.whole(table_rows, (rows,))
            if not p.backward:
                table = device.normal((table_rows, columns), torch.float32)
                return lambda: aten.embedding(table, places)
            gradient = device.normal((rows, columns), torch.float32)
            return lambda: aten.embedding_dense_backward(gradient, places, table_rows, -1, False)

        return device.sets(make, rows * columns * 8.0, most=8)

    def operations(self, p: Params) -> tuple[Operation]:
        sizes = p.numbers("rows", "columns", "table_rows")
        return (costs.embedding(p.text("direction"), *sizes, dtype=p.dtype),)


class Pool(Family):
    """Maximum or mean pooling."""

    name = "pool"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_pools(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        functional, dtype = device.torch.nn.functional, device.precision(p.dtype)
        window, stride = p.numbers("window", "stride")
        shape = p.numbers("n", "channels", "side", "side")
        padding = window // 2 if window > 2 else 0
        functions: dict[str, Callable[[Any], Any]] = {
            "max": lambda x: functional.max_pool2d(x, window, stride, padding),
            "avg": lambda x: functional.avg_pool2d(x, window, stride),
            "adaptive": lambda x: functional.adaptive_avg_pool2d(x, 1),
        }
        return gradient_calls(
            device,
            p.backward,
            functions[p.text("pool")],
            lambda: (device.normal(shape, dtype),),
            math.prod(shape) * dtype.itemsize,
        )

    def operations(self, p: Params) -> tuple[Operation, ...]:
        kind, (window, stride, side) = p.text("pool"), p.numbers("window", "stride", "side")
        if kind == "adaptive":
            return ()  # a mean over the picture, in a trace as well
        planes = p.number("n") * p.number("channels")
        padding = window // 2 if kind == "max" and window > 2 else 0
        out = (side + 2 * padding - window) // stride + 1
        made = costs.pool(
            p.text("direction"), planes * side**2, planes * out**2, window=(window, window),
            stride=(stride, stride), dtype=p.dtype, indices=kind == "max",
        )  # fmt: skip
        return (made,)


class Index(Family):
    """Gathers of rows and masked values."""

    name = "index"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_indexing(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch, dtype = device.torch, device.precision(p.dtype)
        rows, columns = p.numbers("rows", "columns")

        def make() -> Callable[[], Any]:
            x = device.normal((rows, columns), dtype)
            places = device.whole(rows, (rows,))
            wide = places[:, None].expand(rows, columns)
            mask, total = x > 1, torch.zeros_like(x)
            calls: dict[str, Callable[[], Any]] = {
                "index_select": lambda: torch.index_select(x, 0, places),
                "gather": lambda: torch.gather(x, 0, wide),
                "masked_fill": lambda: x.masked_fill(mask, 0.0),
                "index_add": lambda: total.index_add_(0, places, x),
                "tril": lambda: torch.tril(x),
            }
            return calls[p.text("function")]

        return device.sets(make, 2.0 * rows * columns * dtype.itemsize, most=12)

    def operations(self, p: Params) -> tuple[Operation]:
        elements = p.number("rows") * p.number("columns")
        return (costs.index(elements, p.dtype, op=f"aten.{p.text('function')}"),)


def _elementwise() -> Iterator[Row]:
    sizes = [2**power for power in range(8, 30)] + [3 * 2**power for power in range(19, 27)]
    for dtype in ("fp32", "bf16"):
        for number, elements in enumerate(sizes):
            for resident in (False, True):
                if resident and elements > 2**26:
                    continue
                names = ["add", "gelu", *(("fill", "accumulate") if number % 2 == 0 else ())]
                others = (*UNARY, *BINARY, "dropout", "addcmul", "where")
                names += [name for i, name in enumerate(others) if (number + i) % 4 == 0]
                gradients = (*GRADIENTS, "dropout_backward")
                names += [name for i, name in enumerate(gradients) if (number + i) % 3 == 0]
                for name in names:
                    yield row(dtype=dtype, elements=elements, resident=resident, function=name)
        pick = random.Random(f"broadcast {dtype}")
        for _ in range(24):
            rows, columns = pick.choice((64, 512, 4096, 32768)), pick.choice((49, 768, 3072, 8192))
            resident = pick.random() < 0.3
            for name in ("bias", "column"):
                yield row(dtype=dtype, elements=rows * columns, resident=resident, function=name,
                          columns=columns)  # fmt: skip


def _copies() -> Iterator[Row]:
    for power in range(10, 30):
        for resident in (False, True) if power <= 26 else (False,):
            for dtype, to in (("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"),
                              ("bf16", "bf16")):  # fmt: skip
                if dtype != to or power % 2 == 0:
                    yield row(elements=2**power, resident=resident, layout="same", dtype=dtype,
                              to=to)  # fmt: skip
    pick = random.Random("copy")
    for dtype in ("fp32", "bf16"):
        for _ in range(26):
            batch, length = pick.choice((1, 8, 32, 128)), pick.choice((64, 197, 512, 1024))
            heads, head = pick.choice((8, 12, 16)), pick.choice((32, 64, 128))
            yield _copy(dtype, "heads", batch, length, heads, head)
        for _ in range(20):
            sizes = [pick.choice((64, 500, 1024, 4096, 16384)) for _ in range(2)]
            yield _copy(dtype, "transpose", *sizes)
        for _ in range(20):
            channels, side = pick.choice(((64, 56), (96, 56), (256, 28), (384, 14), (768, 7)))
            n = pick.choice((4, 32, 128))
            yield _copy(dtype, pick.choice(("nhwc", "nchw")), n, channels, side, side)
        for _ in range(24):
            n, channels = pick.choice((8, 64, 256)), pick.choice((64, 192, 512))
            layout = pick.choice(("cat", "cat", "pad", "slice", "roll"))
            yield _copy(dtype, layout, n, channels, 28, 28)


def _typical_copies() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical copy {dtype}")
        for _ in range(24):
            width = pick.choice((32, 64, 128))
            batch, length = pick.choice((4, 16, 64)), pick.choice((128, 197, 256, 512))
            yield _copy(dtype, "heads", batch, length, pick.choice((6, 8, 12, 16)), width)
            side = pick.choice((7, 14, 28, 56))
            channels = pick.choice((64, 96, 192, 384, 768))
            n = pick.choice((16, 64, 128))
            layout = pick.choice(("nhwc", "nchw", "cat", "pad", "slice", "roll"))
            yield _copy(dtype, layout, n, channels, side, side)


def _copy(dtype: str, layout: str, *sizes: int) -> Row:
    return row(dtype=dtype, to=dtype, layout=layout, sizes=list(sizes))


def _norms() -> Iterator[Row]:
    pick = random.Random("norm")
    for dtype in ("fp32", "bf16"):
        for _ in range(110):
            channels = pick.choice((16, 24, 32, 64, 96, 128, 144, 240, 256, 512, 960, 1024, 2048))
            side = pick.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 112, 112, 224))
            n = pick.choice((1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096))
            if 2e3 < n * channels * side * side < 4e8:
                yield from directed(dtype=dtype, norm="batch", n=n, channels=channels, side=side)
        for _ in range(60):
            rows = pick.choice((16, 128, 512, 1576, 2048, 8192, 16384, 50176, 200704))
            columns = pick.choice((64, 96, 128, 192, 312, 384, 512, 768, 1024, 1280, 2048, 4096))
            norm = pick.choice(("layer", "layer", "layer", "rms"))
            if rows * columns <= 4e8:
                yield from directed(dtype=dtype, norm=norm, rows=rows, columns=columns)
        for _ in range(14):
            n, channels = pick.choice((1, 8, 32)), pick.choice((64, 128, 320, 512))
            for direction in BOTH:
                yield row(dtype=dtype, norm="group", n=n, channels=channels, groups=32,
                          side=pick.choice((8, 16, 32, 64)), direction=direction)  # fmt: skip


def _typical_norms() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical norm {dtype}")
        for _ in range(90):
            side = pick.choice((4, 7, 8, 14, 16, 28, 32, 56, 112))
            channels = pick.choice([c for c in CHANNELS if c <= max(64, 8192 // side)])
            n = pick.choice((8, 16, 32, 64, 128, 256) if side > 32 else (16, 64, 128, 512, 1024))
            if n * channels * side * side < 4e8:
                yield from directed(dtype=dtype, norm="batch", n=n, channels=channels, side=side)


def _softmax() -> Iterator[Row]:
    pick = random.Random("softmax")
    for dtype in ("fp32", "bf16"):
        for _ in range(60):
            rows = pick.choice((64, 512, 2048, 8192, 32768, 98304, 393216))
            columns = pick.choice((10, 49, 64, 128, 197, 256, 512, 1024, 2048, 4096, 30522, 50257))
            if rows * columns <= 1.2e9:
                log = pick.random() < 0.4
                yield from directed(dtype=dtype, rows=rows, columns=columns, log=log)


def _losses() -> Iterator[Row]:
    for rows in (16, 64, 256, 1024, 4096, 8192, 16384, 32768):
        for columns in (2, 10, 1000, 10000, 30522, 32000, 33278, 50257, 128256):
            if rows * columns <= 9e8 and (columns > 1000) == (rows > 64):
                for loss in ("cross_entropy", "nll"):
                    yield from directed(dtype="fp32", rows=rows, columns=columns, loss=loss)
    for elements in (256, 4096, 2**20, 2**24):
        yield from directed(dtype="fp32", rows=elements, columns=1, loss="mse")


def _reductions() -> Iterator[Row]:
    pick = random.Random("reduction")
    for dtype in ("fp32", "bf16"):
        for _ in range(80):
            rows = pick.choice((8, 64, 512, 1576, 4096, 8192, 16384, 65536))
            columns = pick.choice((10, 49, 128, 768, 1000, 3072, 3136, 10001, 50257))
            if rows * columns <= 9e8:
                over = pick.choice(
                    ("rows", "rows", "columns", "all", "mean_last", "max_last", "norm")
                )
                yield row(dtype=dtype, rows=rows, columns=columns, over=over)
        for _ in range(20):
            n, channels = pick.choice((16, 64, 256)), pick.choice((64, 256, 1024))
            yield row(dtype=dtype, rows=n * channels, columns=14 * 14, over="channels", n=n)


def _bias_gradients() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical reduction {dtype}")
        for _ in range(50):
            rows = pick.choice((64, 512, 2048, 4096, 8192, 16384, 32768))
            columns = pick.choice((2, 10, 100, *TYPICAL_WIDTHS))
            yield row(dtype=dtype, rows=rows, columns=columns, over="rows")


def _embeddings() -> Iterator[Row]:
    pick = random.Random("embedding")
    for _ in range(60):
        rows = pick.choice((64, 512, 2048, 4096, 8192, 16384, 32768))
        columns = pick.choice((64, 128, 300, 512, 768, 1024, 2048))
        table_rows = pick.choice((2, 512, 1024, 10000, 30522, 33278, 50257, 128256))
        yield from directed(dtype="fp32", rows=rows, columns=columns, table_rows=table_rows)


def _pools() -> Iterator[Row]:
    pick = random.Random("pool")
    for dtype in ("fp32", "bf16"):
        for _ in range(44):
            pool, window, stride = pick.choice(
                (("max", 3, 2), ("max", 2, 2), ("avg", 2, 2), ("avg", 3, 2), ("adaptive", 1, 1))
            )
            channels, side = pick.choice(((64, 112), (128, 56), (256, 28), (512, 14), (2048, 7)))
            n = pick.choice((1, 8, 16, 64, 128, 256))
            yield from directed(dtype=dtype, pool=pool, window=window, stride=stride, n=n,
                                channels=channels, side=side)  # fmt: skip


def _indexing() -> Iterator[Row]:
    pick = random.Random("index")
    functions = ("index_select", "gather", "masked_fill", "index_add", "tril")
    for dtype in ("fp32", "bf16"):
        for _ in range(24):
            rows = pick.choice((64, 1024, 8192, 65536))
            columns = pick.choice((64, 300, 768, 2048))
            function = pick.choice(functions)
            yield row(dtype=dtype, rows=rows, columns=columns, function=function)
