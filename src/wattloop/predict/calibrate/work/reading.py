"""Reductions, lookups in tables, pooling and indexing."""

from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.gradient import directed
from wattloop.predict.calibrate.work.params import Params

__all__ = ["embedding", "index", "pool", "reduction"]


def reduction(bench: Bench, p: Params) -> Work:
    """A sum, mean, largest value or norm over rows, columns, channels or everything."""
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


def embedding(bench: Bench, p: Params) -> Work:
    """A lookup; its gradient is a whole table, zeroed first."""
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


def pool(bench: Bench, p: Params) -> Work:
    """Largest or mean value of a window."""
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


def index(bench: Bench, p: Params) -> Work:
    """Rows picked by number, values masked."""
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
