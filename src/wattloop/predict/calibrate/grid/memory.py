"""What moves bytes: norms, softmax, losses, elementwise, copies, reductions, lookups, pooling."""

import random
from collections.abc import Iterator

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.order import cases_of

__all__ = ["memory_families"]

BOTH = ("forward", "backward")
UNARY = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "hardswish", "relu6", "exp", "neg",
         "pow2", "rsqrt", "scale")  # fmt: skip
BINARY = ("add", "mul", "sub", "div")
COPIED: tuple[tuple[str, str], ...] = (
    ("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("bf16", "bf16"),
)  # fmt: skip
"""From which number format to which."""
GRADIENTS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "hardswish", "relu6")


def memory_families() -> list[list[Case]]:
    """One list of cases per family."""
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
