"""Convolutions in large batches: of pictures that fill the GPU, and of tiny ones.

Networks made for 224 pixels are fed with 32 as well: their last layers then see pictures of one to
four pixels, thousands at a time, for which cuDNN picks kernels of another kind.
"""

import random
from collections.abc import Callable, Iterator

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.conv import DIRECTIONS, conv_row, fits
from wattloop.predict.calibrate.grid.order import cases_of

__all__ = ["batch_families"]

Row = dict[str, object]
TINY_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
TINY_BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
POWERS_OF_TWO = (64, 128, 256, 512, 1024, 2048)


def batch_families() -> list[list[Case]]:
    """One list of cases per kind of batch."""
    return [
        cases_of("kernels", "conv", _all_ways("tiny pictures", 130, _tiny)),
        cases_of("kernels", "conv", _all_ways("full batches", 90, _filling)),
        cases_of("kernels", "conv", _all_ways("thumbnails", 110, _thumbnail)),
        cases_of("kernels", "conv", _all_ways("powers of two", 50, _power_of_two)),
        cases_of("kernels", "conv", _all_ways("groups in batches", 60, _in_groups)),
        cases_of("kernels", "conv", _all_ways("channels last", 60, _channels_last)),
    ]


def _all_ways(name: str, number: int, draw: Callable[[random.Random], Row]) -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"{name} {dtype}")
        for row in (draw(pick) for _ in range(number)):
            if fits(row, dtype):
                for direction in DIRECTIONS:
                    yield {**row, "dtype": dtype, "direction": direction}


def _tiny(pick: random.Random) -> Row:
    """Blocks of residual networks near their end, and the first layer of any."""
    n = pick.choice(TINY_BATCHES)
    if pick.random() < 0.08:
        kernel = pick.choice((3, 5, 7))
        return conv_row(n, 3, pick.choice((16, 32, 64)), kernel, pick.choice((1, 2)), 32)
    side, width = pick.choice(TINY_SIDES), pick.choice(WIDTHS)
    stride = 1 if side == 1 else pick.choice((1, 1, 1, 2))
    if pick.random() < 0.65:
        return conv_row(n, width, stride * width, pick.choice((3, 3, 3, 5)), stride, side)
    narrow, wide = width, min(4 * width, 2048)
    return conv_row(
        n, *pick.choice(((narrow, wide), (wide, narrow), (width, width))), 1, stride, side
    )


def _filling(pick: random.Random) -> Row:
    """Wide where the picture is small, as networks are."""
    side = pick.choice((7, 14, 28, 28, 56, 56, 112, 112, 224))
    n = pick.choice((32, 64, 128, 256))
    widths = [c for c in WIDTHS if 16 * 112 // side // 2 <= c <= max(64, 128 * 112 // side // 2)]
    c_in, c_out = pick.choice(widths), pick.choice(widths)
    kernel = pick.choice((1, 3, 3))
    if pick.random() < 0.5:
        c_out = c_in
    return conv_row(n, c_in, c_out, kernel, pick.choice((1, 1, 1, 2)), side)


def _thumbnail(pick: random.Random) -> Row:
    """The same as networks for 224 pixels make of 32: sides and widths are powers of two."""
    n = pick.choice((256, 512, 1024, 2048, 4096))
    side = pick.choice((1, 1, 2, 2, 4, 4, 8))
    width = pick.choice([c for c in POWERS_OF_TWO if c <= 2048 // side or c == 64])
    other = pick.choice([c for c in POWERS_OF_TWO if width // 4 <= c <= 4 * width])
    stride = 1 if side == 1 else pick.choice((1, 1, 2))
    if pick.random() < 0.5:
        return conv_row(n, width, other, 1, stride, side)
    return conv_row(n, width, stride * width, 3, stride, side)


def _power_of_two(pick: random.Random) -> Row:
    """Larger pictures whose sides are powers of two."""
    side = pick.choice((16, 32, 64, 128, 256))
    widths = [c for c in WIDTHS if 1024 // side <= c <= max(64, 16384 // side)]
    c_in = pick.choice(widths)
    c_out = pick.choice((c_in, c_in, 2 * c_in, max(c_in // 2, 16)))
    n = pick.choice((8, 16, 32, 64, 128, 256, 512))
    return conv_row(n, c_in, c_out, pick.choice((1, 3, 3, 3)), pick.choice((1, 1, 1, 2)), side)


def _in_groups(pick: random.Random) -> Row:
    """A channel each mostly, else a few; tiny pictures among them."""
    side = pick.choice((1, 2, 4, 7, 8, 14, 16, 28, 56))
    n = pick.choice((8, 32, 64, 128) if side > 16 else (64, 256, 512, 2048, 4096))
    stride = 1 if side == 1 else pick.choice((1, 1, 2))
    if pick.random() < 0.7:
        width = pick.choice((64, 96, 128, 192, 256, 384, 512, 768, 960))
        kernel = pick.choice((3, 3, 5, 7))
        return {**conv_row(n, width, width, kernel, stride, side), "groups": width}
    groups, each = pick.choice((8, 16, 32)), pick.choice((4, 8, 16, 32))
    width = groups * each
    return {**conv_row(n, width, width, 3, stride, side), "groups": groups}


def _channels_last(pick: random.Random) -> Row:
    """As networks have them that mix layers of channels with convolutions: depthwise mostly."""
    side = pick.choice((7, 14, 28, 56))
    width = pick.choice(
        [c for c in (64, 96, 128, 192, 256, 384, 512, 768, 1024) if c * side < 12e3]
    )
    n = pick.choice((8, 16, 32, 64, 128))
    if pick.random() < 0.65:
        row = conv_row(n, width, width, pick.choice((3, 5, 7, 7)), pick.choice((1, 1, 1, 2)), side)
        return {**row, "groups": width, "channels_last": True}
    kernel = pick.choice((1, 2, 3))
    wide = pick.choice((width, 2 * width))
    row = conv_row(n, width, wide, kernel, 2 if kernel == 2 else pick.choice((1, 1, 2)), side)
    return {**row, "channels_last": True}
