"""What networks for pictures are made of, to be held for seconds: layers that fill the GPU, and
some that leave most of it idle.
"""

from collections.abc import Iterator

from wattloop.predict.calibrate.grid.conv import conv_row

__all__ = ["picture_layers"]

Row = tuple[str, dict[str, object]]

# n, c_in, c_out, kernel, side; directions
LAYERS = (
    ((128, 64, 64, 3, 56), ("forward", "weight")),
    ((128, 256, 64, 1, 56), ("forward", "data")),
    ((256, 512, 512, 3, 7), ("forward", "data")),
    ((64, 64, 64, 3, 224), ("forward", "weight")),
    ((2048, 256, 256, 3, 4), ("weight",)),
    ((4096, 64, 64, 3, 8), ("data",)),
)
SMALL = (4, 256, 256, 3, 14)
"""One product of it keeps a few of a hundred multiprocessors busy."""


def picture_layers() -> Iterator[Row]:
    """Convolutions, norms, activations, pooling and a change of layout."""
    for dtype in ("bf16", "tf32", "fp32"):
        for shape, directions in LAYERS:
            for direction in directions:
                yield _conv(shape, dtype, direction)
    for dtype in ("bf16", "fp32"):
        yield _conv(SMALL, dtype, "forward")
        for direction in ("forward", "backward"):
            yield _norm(dtype, (128, 64, 112), direction)
        yield _norm(dtype, (256, 2048, 7), "backward")
        for function in ("relu", "relu_backward"):
            yield "elementwise", {"dtype": dtype, "elements": 2**26, "resident": False,
                                  "function": function}  # fmt: skip
    yield "pool", {"dtype": "bf16", "pool": "max", "window": 3, "stride": 2, "n": 64,
                   "channels": 64, "side": 112, "direction": "backward"}  # fmt: skip
    yield "copy", {"dtype": "bf16", "to": "bf16", "layout": "nhwc", "sizes": [128, 256, 28, 28]}
    for dtype, m in (("bf16", 1024), ("tf32", 256)):
        yield "gemm", {"dtype": dtype, "b": 1, "m": m, "n": 1024, "k": 1024, "layout": "nt",
                       "bias": False}  # fmt: skip


def _conv(shape: tuple[int, int, int, int, int], dtype: str, direction: str) -> Row:
    n, c_in, c_out, kernel, side = shape
    row = conv_row(n, c_in, c_out, kernel, 1, side)
    return "conv", {**row, "padding": kernel // 2, "dtype": dtype, "direction": direction}


def _norm(dtype: str, shape: tuple[int, int, int], direction: str) -> Row:
    n, channels, side = shape
    return "norm", {"dtype": dtype, "norm": "batch", "n": n, "channels": channels, "side": side,
                    "direction": direction}  # fmt: skip
