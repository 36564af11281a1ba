"""Random cases with typical shapes: the suite is densest where training happens."""

import random
from collections.abc import Iterator

from wattloop.predict.calibrate.case import CalibrationCase, cases_of
from wattloop.predict.calibrate.families.convolution import DIRECTIONS, conv_row, fits
from wattloop.predict.calibrate.families.product import gemm_fits, gemm_row

Row = dict[str, object]
BOTH = ("forward", "backward")
CHANNELS = (16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 480, 512,
            640, 728, 768, 960, 1024, 1280, 1536, 2048)  # fmt: skip
WIDTHS = (128, 192, 256, 320, 384, 480, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 2048, 2560,
          3072, 4096)  # fmt: skip


def typical_families() -> list[list[CalibrationCase]]:
    """Return one list of cases per family."""
    return [
        cases_of("kernels", "conv", _convolutions()),
        cases_of("kernels", "conv", _groups()),
        cases_of("kernels", "gemm", _linear()),
        cases_of("kernels", "norm", _norms()),
        cases_of("kernels", "rnn", _recurrent()),
        cases_of("kernels", "reduction", _reductions()),
        cases_of("kernels", "copy", _copies()),
        cases_of("kernels", "optimizer", _lists()),
    ]


def _convolutions() -> Iterator[Row]:
    """Return layers that are wide where the image is small, as in networks; 1x1 and 3x3 mostly."""
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"typical conv {dtype}")
        for _ in range(170):
            side = pick.choice((4, 7, 8, 14, 16, 28, 32, 56, 64, 112))
            widest = min(2048, max(64, 8192 // side))
            channels = [c for c in CHANNELS if c <= widest]
            c_in, c_out = pick.choice(channels), pick.choice(channels)
            kernel = pick.choice((1, 1, 1, 3, 3, 3, 5))
            stride = pick.choice((1, 1, 1, 2))
            n = pick.choice((8, 16, 32, 64, 128, 256) if side > 32 else (16, 64, 128, 256, 1024))
            row = conv_row(n, c_in, c_out, kernel, stride, side)
            if fits(row, dtype):
                for direction in DIRECTIONS:
                    yield {**row, "dtype": dtype, "direction": direction}


def _groups() -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"typical groups {dtype}")
        for _ in range(36):
            width = pick.choice((4, 8, 16, 24, 32, 48))
            groups = pick.choice((2, 4, 8, 16, 32))
            row = conv_row(
                pick.choice((8, 16, 32, 64, 128)), width * groups, width * groups,
                3, pick.choice((1, 1, 2)), pick.choice((7, 14, 28, 56)),
            )  # fmt: skip
            for direction in DIRECTIONS:
                yield {**row, "groups": groups, "dtype": dtype, "direction": direction}


def _linear() -> Iterator[Row]:
    """Return forward, data and weight gradient of linear layers."""
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"typical linear {dtype}")
        for _ in range(110):
            tokens = pick.choice(
                (32, 64, 128, 256, 512, 1024, 2048, 3152, 4096, 8192, 12608, 16384)
            )
            inputs, outputs = pick.choice(WIDTHS), pick.choice(WIDTHS)
            rows = (
                gemm_row(dtype, (1, tokens, outputs, inputs), "nt", bias=pick.random() < 0.6),
                gemm_row(dtype, (1, tokens, inputs, outputs), "nn", bias=False),
                gemm_row(dtype, (1, outputs, inputs, tokens), "tn", bias=False),
            )
            yield from (row for row in rows if gemm_fits(row))


def _norms() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical norm {dtype}")
        for _ in range(90):
            side = pick.choice((4, 7, 8, 14, 16, 28, 32, 56, 112))
            channels = pick.choice([c for c in CHANNELS if c <= max(64, 8192 // side)])
            n = pick.choice((8, 16, 32, 64, 128, 256) if side > 32 else (16, 64, 128, 512, 1024))
            if n * channels * side * side < 4e8:
                for direction in BOTH:
                    yield {"dtype": dtype, "norm": "batch", "n": n, "channels": channels,
                           "side": side, "direction": direction}  # fmt: skip


def _recurrent() -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"typical rnn {dtype}")
        for _ in range(45):
            hidden = pick.choice((64, 128, 200, 256, 300, 400, 512, 650, 1024))
            batch = pick.choice((16, 32, 64, 128, 256, 512, 1024))
            if dtype == "fp32" and hidden * hidden * batch > 1e8:
                continue
            for direction in BOTH:
                yield {"dtype": dtype, "cell": pick.choice(("lstm", "gru")), "hidden": hidden,
                       "layers": pick.choice((1, 2, 3)), "input": pick.choice((32, 128, hidden)),
                       "batch": batch, "seq": pick.choice((20, 35, 50, 64, 100, 128)),
                       "bidirectional": False, "direction": direction}  # fmt: skip


def _reductions() -> Iterator[Row]:
    """Return gradients of biases: sums over rows."""
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical reduction {dtype}")
        for _ in range(50):
            yield {"dtype": dtype, "rows": pick.choice((64, 512, 2048, 4096, 8192, 16384, 32768)),
                   "columns": pick.choice((2, 10, 100, *WIDTHS)), "over": "rows"}  # fmt: skip


def _copies() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        pick = random.Random(f"typical copy {dtype}")
        for _ in range(24):
            width = pick.choice((32, 64, 128))
            sizes = [pick.choice((4, 16, 64)), pick.choice((128, 197, 256, 512)),
                     pick.choice((6, 8, 12, 16)), width]  # fmt: skip
            yield {"dtype": dtype, "to": dtype, "layout": "heads", "sizes": sizes}
            side = pick.choice((7, 14, 28, 56))
            channels = pick.choice((64, 96, 192, 384, 768))
            image = [pick.choice((16, 64, 128)), channels, side, side]
            layout = pick.choice(("nhwc", "nchw", "cat", "pad", "slice", "roll"))
            yield {"dtype": dtype, "to": dtype, "layout": layout, "sizes": image}


def _lists() -> Iterator[Row]:
    pick = random.Random("typical lists")
    functions = ("mul_scalar", "add_list", "addcmul", "addcdiv", "lerp", "sqrt", "div_list")
    for _ in range(70):
        tensors = pick.choice((8, 30, 60, 100, 150, 200, 300))
        each = pick.choice((256, 1024, 4096, 2**14, 2**16, 2**18, 2**19, 2**20))
        if tensors * each <= 4e8:
            row: Row = {"tensors": tensors, "elements": tensors * each}
            yield {**row, "function": pick.choice(functions)}
            if pick.random() < 0.3:
                name = pick.choice(("adamw", "adamw", "sgd", "adam"))
                yield {**row, "optimizer": name, "style": pick.choice(("foreach", "fused"))}
