"""Convolutions: each direction, large batches, and layers that fill the GPU."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wattloop.predict.calibrate.families.base import Family, Params, Row, directed, row
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

SLOWEST_S = 0.02
FLOPS_S = {"fp32": 30e12, "tf32": 150e12, "bf16": 250e12}
LARGEST_ELEMENTS = 8e8
DIRECTIONS = ("forward", "data", "weight")
CHANNELS = (16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 480, 512,
            640, 728, 768, 960, 1024, 1280, 1536, 2048)  # fmt: skip
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


class Convolution(Family):
    """Forward passes, gradients of the input (`data`) and gradients of the weight."""

    name = "conv"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (
            _all_ways("conv", _shapes),
            _all_ways("typical conv", _sampled(170, _typical)),
            _all_ways("typical groups", _sampled(36, _typical_groups)),
            _all_ways("tiny pictures", _sampled(130, _tiny)),
            _all_ways("full batches", _sampled(90, _filling)),
            _all_ways("thumbnails", _sampled(110, _thumbnail)),
            _all_ways("powers of two", _sampled(50, _power_of_two)),
            _all_ways("groups in batches", _sampled(60, _in_groups)),
            _all_ways("channels last", _sampled(60, _channels_last_batches)),
        )

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        dtype = device.precision(p.dtype)
        dims = 1 if p.flag("line") else 2
        n, c_in, c_out, groups = p.numbers("n", "c_in", "c_out", "groups")
        kernel, stride, padding, side = (
            [p.number(name)] * dims for name in ("k", "stride", "padding", "side")
        )
        transposed, direction = p.flag("transposed"), p.text("direction")
        channels = (c_in, c_out // groups) if transposed else (c_out, c_in // groups)
        data_shape, weight_shape = (n, c_in, *side), (*channels, *kernel)
        settings = (stride, padding, [1] * dims, transposed, [0] * dims, groups)
        mask = [direction == "data", direction == "weight", False]
        aten = torch.ops.aten
        out = aten.convolution(
            torch.empty(data_shape, device="meta"),
            torch.empty(weight_shape, device="meta"),
            None,
            *settings,
        )

        def tensor(shape: tuple[int, ...]) -> Any:
            made = device.normal(shape, dtype)
            last = p.flag("channels_last")
            return made.contiguous(memory_format=torch.channels_last) if last else made

        def make() -> Callable[[], Any]:
            data, weight = tensor(data_shape), tensor(weight_shape)
            if direction == "forward":
                return lambda: aten.convolution(data, weight, None, *settings)
            gradient = tensor(tuple(out.shape))
            return lambda: aten.convolution_backward(gradient, data, weight, None, *settings, mask)

        set_bytes = (torch.Size(data_shape).numel() + out.numel()) * dtype.itemsize
        return device.sets(make, set_bytes, most=4 if p.flag("channels_last") else 12)

    def operations(self, p: Params) -> tuple[Operation]:
        n, c_in, c_out, kernel, side = p.numbers("n", "c_in", "c_out", "k", "side")
        made = costs.conv(
            p.text("direction"),
            n,
            c_in,
            (side,) if p.flag("line") else (side, side),
            c_out,
            kernel,
            stride=p.number("stride"),
            padding=p.number("padding"),
            groups=p.number("groups"),
            dtype=p.dtype,
            channels_last=p.flag("channels_last"),
            transposed=p.flag("transposed"),
        )
        return (made,)


def _all_ways(name: str, draw: Callable[[random.Random], Iterable[Row]]) -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16"):
        for each in draw(random.Random(f"{name} {dtype}")):
            if _fits(each, dtype):
                yield from directed({**each, "dtype": dtype}, directions=DIRECTIONS)


def _sampled(
    number: int, draw: Callable[[random.Random], Row]
) -> Callable[[random.Random], Iterable[Row]]:
    return lambda pick: (draw(pick) for _ in range(number))


def _shapes(pick: random.Random) -> Iterator[Row]:
    """Yield dense, patch, depthwise, grouped, transposed and one-dimensional convolutions."""
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


def _dense(pick: random.Random) -> Iterator[Row]:
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


def _channels_last(pick: random.Random) -> Iterator[Row]:
    for c_in, c_out, k, s, side in pick.sample(IMAGE + SMALL, 24):
        n = pick.choice((8, 32, 64, 128, 256))
        yield {**conv_row(n, c_in, c_out, k, s, side), "channels_last": True}
    for c, k, s, side in pick.sample(DEPTHWISE, 8):
        row = conv_row(pick.choice((16, 64, 128)), c, c, k, s, side)
        yield {**row, "groups": c, "channels_last": True}


def conv_row(n: int, c_in: int, c_out: int, k: int, s: int, side: int) -> Row:
    """Return a dense convolution of an image, padded to keep its size unless it is cut into
    patches.
    """
    return row(n=n, c_in=c_in, c_out=c_out, k=k, stride=s, side=side, groups=1,
               padding=0 if k == s else k // 2, transposed=False, line=False,
               channels_last=False)  # fmt: skip


def _fits(row: Row, dtype: str) -> bool:
    """Return whether it is quick and small enough to be measured."""
    names = ("n", "c_in", "c_out", "k", "stride", "side", "groups")
    n, c_in, c_out, k, stride, side, groups = Params(row).numbers(*names)
    power = 1 if row["line"] else 2
    out = side * stride if row["transposed"] else max(side // stride, 1)
    positions = n * (side if row["transposed"] else out) ** power
    flops = 2.0 * positions * c_out * c_in / groups * k**power
    elements = max(n * c_in * side**power, n * c_out * out**power)
    return bool(flops / FLOPS_S[dtype] <= SLOWEST_S and elements <= LARGEST_ELEMENTS)


def _typical(pick: random.Random) -> Row:
    """Return a layer that is wide where the image is small, as in networks; 1x1 or 3x3 mostly."""
    side = pick.choice((4, 7, 8, 14, 16, 28, 32, 56, 64, 112))
    channels = [c for c in CHANNELS if c <= min(2048, max(64, 8192 // side))]
    c_in, c_out = pick.choice(channels), pick.choice(channels)
    kernel = pick.choice((1, 1, 1, 3, 3, 3, 5))
    stride = pick.choice((1, 1, 1, 2))
    n = pick.choice((8, 16, 32, 64, 128, 256) if side > 32 else (16, 64, 128, 256, 1024))
    return conv_row(n, c_in, c_out, kernel, stride, side)


def _typical_groups(pick: random.Random) -> Row:
    width = pick.choice((4, 8, 16, 24, 32, 48))
    groups = pick.choice((2, 4, 8, 16, 32))
    n, channels = pick.choice((8, 16, 32, 64, 128)), width * groups
    stride, side = pick.choice((1, 1, 2)), pick.choice((7, 14, 28, 56))
    return {**conv_row(n, channels, channels, 3, stride, side), "groups": groups}


# Networks made for 224 pixels are also used with 32. Their last layers then process thousands of
# pictures of one to four pixels, for which cuDNN picks other kernels.

TINY_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
TINY_BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
POWERS_OF_TWO = (64, 128, 256, 512, 1024, 2048)


def _tiny(pick: random.Random) -> Row:
    """Return blocks of residual networks near their end, and the first layer of any."""
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
    side = pick.choice((7, 14, 28, 28, 56, 56, 112, 112, 224))
    n = pick.choice((32, 64, 128, 256))
    widths = [c for c in WIDTHS if 16 * 112 // side // 2 <= c <= max(64, 128 * 112 // side // 2)]
    c_in, c_out = pick.choice(widths), pick.choice(widths)
    kernel = pick.choice((1, 3, 3))
    if pick.random() < 0.5:
        c_out = c_in
    return conv_row(n, c_in, c_out, kernel, pick.choice((1, 1, 1, 2)), side)


def _thumbnail(pick: random.Random) -> Row:
    """Layers of 224-pixel networks with 32 pixels: sides and widths are powers of two."""
    n = pick.choice((256, 512, 1024, 2048, 4096))
    side = pick.choice((1, 1, 2, 2, 4, 4, 8))
    width = pick.choice([c for c in POWERS_OF_TWO if c <= 2048 // side or c == 64])
    other = pick.choice([c for c in POWERS_OF_TWO if width // 4 <= c <= 4 * width])
    stride = 1 if side == 1 else pick.choice((1, 1, 2))
    if pick.random() < 0.5:
        return conv_row(n, width, other, 1, stride, side)
    return conv_row(n, width, stride * width, 3, stride, side)


def _power_of_two(pick: random.Random) -> Row:
    side = pick.choice((16, 32, 64, 128, 256))
    widths = [c for c in WIDTHS if 1024 // side <= c <= max(64, 16384 // side)]
    c_in = pick.choice(widths)
    c_out = pick.choice((c_in, c_in, 2 * c_in, max(c_in // 2, 16)))
    n = pick.choice((8, 16, 32, 64, 128, 256, 512))
    return conv_row(n, c_in, c_out, pick.choice((1, 3, 3, 3)), pick.choice((1, 1, 1, 2)), side)


def _in_groups(pick: random.Random) -> Row:
    """Return grouped cases: mostly one channel each, else a few; tiny pictures among them."""
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


def _channels_last_batches(pick: random.Random) -> Row:
    """Return channels-last cases, mostly depthwise, as in networks that mix both layer kinds."""
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
