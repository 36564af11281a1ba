"""Convolutions as networks use them, each direction apart, with the algorithm cuDNN picks."""

import random
from collections.abc import Iterator

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.order import cases_of

__all__ = ["DIRECTIONS", "conv_cases", "conv_row", "fits"]

SLOWEST_S = 0.02
FLOPS_S = {"fp32": 30e12, "tf32": 150e12, "bf16": 250e12}
LARGEST_ELEMENTS = 8e8
DIRECTIONS = ("forward", "data", "weight")

# c_in, c_out, kernel, stride, side
IMAGE = (
    (3, 64, 7, 2, 224), (3, 32, 3, 2, 224), (3, 64, 3, 1, 224), (64, 64, 3, 1, 224),
    (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56),
    (512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (256, 256, 3, 1, 14), (256, 256, 3, 2, 28),
    (1024, 256, 1, 1, 14), (256, 1024, 1, 1, 14), (512, 512, 3, 1, 7), (2048, 512, 1, 1, 7),
    (512, 2048, 1, 1, 7), (1024, 2048, 1, 2, 14), (128, 128, 3, 1, 112), (256, 256, 3, 1, 56),
    (512, 512, 3, 1, 28), (512, 512, 3, 1, 14), (32, 64, 3, 1, 112), (96, 32, 1, 1, 56),
    (16, 96, 1, 1, 112), (24, 144, 1, 1, 56), (144, 24, 1, 1, 56), (32, 192, 1, 1, 28),
    (192, 32, 1, 1, 28), (64, 384, 1, 1, 14), (384, 64, 1, 1, 14), (576, 96, 1, 1, 14),
    (96, 576, 1, 1, 14), (960, 160, 1, 1, 7), (160, 960, 1, 1, 7), (320, 1280, 1, 1, 7),
    (128, 32, 3, 1, 56), (128, 32, 3, 1, 28), (128, 32, 3, 1, 14), (352, 128, 1, 1, 28),
    (736, 128, 1, 1, 14), (512, 256, 1, 1, 28), (40, 240, 1, 1, 28), (672, 112, 1, 1, 14),
    (1152, 192, 1, 1, 7), (96, 192, 2, 2, 56), (192, 384, 2, 2, 28), (384, 768, 2, 2, 14),
    (48, 48, 5, 1, 56), (192, 64, 5, 1, 28), (64, 128, 5, 2, 56), (3, 96, 11, 4, 224),
    (128, 64, 3, 1, 128), (64, 32, 3, 1, 256), (1024, 512, 3, 1, 16), (512, 1024, 3, 1, 16),
    (64, 1, 1, 1, 224), (80, 80, 3, 1, 35), (17, 33, 3, 1, 61), (192, 224, 3, 1, 35),
)  # fmt: skip
SMALL = (
    (3, 64, 3, 1, 32), (3, 16, 3, 1, 32), (64, 64, 3, 1, 32), (64, 128, 3, 2, 32),
    (128, 128, 3, 1, 16), (128, 256, 3, 2, 16), (256, 256, 3, 1, 8), (256, 512, 3, 2, 8),
    (512, 512, 3, 1, 4), (64, 128, 1, 2, 32), (256, 512, 1, 2, 8), (16, 16, 3, 1, 32),
    (32, 32, 3, 1, 16), (64, 64, 3, 1, 8), (1, 32, 3, 1, 28), (32, 64, 3, 1, 26),
    (3, 6, 5, 1, 32), (6, 16, 5, 1, 14), (64, 256, 1, 1, 32), (256, 64, 1, 1, 32),
    (512, 128, 1, 1, 16), (1024, 256, 1, 1, 8), (512, 2048, 1, 1, 4), (160, 160, 3, 1, 32),
    (320, 320, 3, 1, 16),
)  # fmt: skip
PATCHES = ((3, 768, 16, 16, 224), (3, 96, 4, 4, 224), (3, 384, 16, 16, 224), (3, 192, 8, 8, 64),
           (3, 1024, 14, 14, 224), (3, 768, 32, 32, 224))  # fmt: skip
DEPTHWISE = tuple(
    (c, k, s, side)
    for c, side in ((32, 112), (64, 112), (96, 112), (128, 56), (144, 56), (192, 28), (240, 28),
                    (256, 28), (384, 14), (480, 14), (512, 14), (576, 14), (672, 14), (960, 7),
                    (1024, 7), (1152, 7), (96, 56), (192, 56), (768, 7), (64, 32), (256, 8))
    for k, s in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
)  # fmt: skip
GROUPED = (
    (128, 128, 3, 1, 56, 32), (256, 256, 3, 2, 56, 32), (256, 256, 3, 1, 28, 32),
    (512, 512, 3, 1, 14, 32), (1024, 1024, 3, 1, 7, 32), (48, 48, 3, 2, 112, 3),
    (104, 104, 3, 1, 28, 13), (208, 208, 3, 1, 14, 26), (440, 440, 3, 1, 7, 55),
    (64, 64, 3, 1, 56, 4), (160, 160, 3, 1, 28, 10), (400, 400, 3, 1, 14, 25),
    (240, 240, 1, 1, 28, 3), (256, 256, 1, 1, 28, 4), (768, 768, 3, 1, 14, 8),
)  # fmt: skip
TRANSPOSED = (
    (1024, 512, 2, 2, 14), (512, 256, 2, 2, 28), (256, 128, 2, 2, 56), (128, 64, 2, 2, 112),
    (512, 256, 4, 2, 8), (256, 128, 4, 2, 16), (128, 64, 4, 2, 32), (64, 3, 4, 2, 32),
    (256, 256, 3, 2, 14), (100, 512, 4, 1, 1),
)  # fmt: skip
LINES = ((64, 64, 3, 1, 1024), (128, 128, 5, 1, 512), (256, 256, 3, 2, 1024), (80, 384, 3, 1, 3000),
         (1, 64, 80, 4, 16000), (512, 512, 9, 1, 256), (9, 64, 3, 1, 128))  # fmt: skip


def conv_cases() -> list[Case]:
    """Dense, patch, depthwise, grouped, transposed and one-dimensional ones."""
    rows = [
        {**row, "dtype": dtype, "direction": direction}
        for dtype in ("fp32", "tf32", "bf16")
        for row in _shapes(dtype)
        for direction in DIRECTIONS
        if fits(row, dtype)
    ]
    return cases_of("kernels", "conv", rows)


def _shapes(dtype: str) -> Iterator[dict[str, object]]:
    pick = random.Random(f"conv {dtype}")
    yield from _dense(pick)
    for c, k, s, side in DEPTHWISE:
        n = pick.choice((1, 4, 8, 16, 32, 64, 128, 256))
        yield {**conv_row(n, c, c, k, s, side), "groups": c}
    for c_in, c_out, k, s, side, groups in GROUPED:
        for n in pick.sample((4, 16, 32, 64, 128, 256), 2):
            yield {**conv_row(n, c_in, c_out, k, s, side), "groups": groups}
    for c_in, c_out, k, s, side in TRANSPOSED:
        for n in pick.sample((2, 8, 16, 32, 64, 128), 2):
            padding = 1 if k > 2 and s > 1 else 0
            yield {**conv_row(n, c_in, c_out, k, s, side), "transposed": True, "padding": padding}
    for c_in, c_out, k, s, length in LINES:
        for n in pick.sample((1, 8, 32, 128), 2):
            yield {**conv_row(n, c_in, c_out, k, s, length), "line": True}
    yield from _channels_last(pick)


def _dense(pick: random.Random) -> Iterator[dict[str, object]]:
    for shapes, batches in (
        (IMAGE, (1, 4, 8, 16, 32, 64, 128, 256)),
        (SMALL, (16, 64, 128, 256, 512, 1024, 2048, 4096)),
    ):
        for c_in, c_out, k, s, side in shapes:
            for n in pick.sample(batches, 3):
                yield conv_row(n, c_in, c_out, k, s, side)
    for c_in, c_out, k, s, side in PATCHES:
        for n in pick.sample((1, 8, 16, 64, 128, 256), 3):
            yield {**conv_row(n, c_in, c_out, k, s, side), "padding": 0}


def _channels_last(pick: random.Random) -> Iterator[dict[str, object]]:
    for c_in, c_out, k, s, side in pick.sample(IMAGE + SMALL, 24):
        n = pick.choice((8, 32, 64, 128, 256))
        yield {**conv_row(n, c_in, c_out, k, s, side), "channels_last": True}
    for c, k, s, side in pick.sample(DEPTHWISE, 8):
        row = conv_row(pick.choice((16, 64, 128)), c, c, k, s, side)
        yield {**row, "groups": c, "channels_last": True}


def conv_row(n: int, c_in: int, c_out: int, k: int, s: int, side: int) -> dict[str, object]:
    """A dense convolution of an image, padded to keep its size unless it is cut into patches."""
    return {
        "n": n,
        "c_in": c_in,
        "c_out": c_out,
        "k": k,
        "stride": s,
        "side": side,
        "padding": 0 if k == s else k // 2,
        "groups": 1,
        "transposed": False,
        "line": False,
        "channels_last": False,
    }


def fits(row: dict[str, object], dtype: str) -> bool:
    """Whether it is quick and small enough to be measured."""
    names = ("n", "c_in", "c_out", "k", "stride", "side", "groups")
    n, c_in, c_out, k, stride, side, groups = (int(str(row[name])) for name in names)
    power = 1 if row["line"] else 2
    out = side * stride if row["transposed"] else max(side // stride, 1)
    positions = n * (side if row["transposed"] else out) ** power
    flops = 2.0 * positions * c_out * c_in / groups * k**power
    elements = max(n * c_in * side**power, n * c_out * out**power)
    return bool(flops / FLOPS_S[dtype] <= SLOWEST_S and elements <= LARGEST_ELEMENTS)
