"""Matrix products: shapes of linear layers, vocabularies and attention, and random ones."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wattloop.predict.calibrate.families.base import Family, Params, Row, row
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

SLOWEST_S = 0.025
"""Slower products are left out."""
FLOPS_S = {"fp32": 45e12, "tf32": 350e12, "bf16": 650e12, "fp16": 650e12}
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
LARGEST_BYTES = 4e9
TOKENS = (1, 8, 64, 128, 256, 512, 1024, 1576, 2048, 4096, 8192, 16384, 32768)
WIDTHS = (
    (128, 128), (128, 512), (256, 1024), (300, 1200), (312, 1248), (384, 384), (384, 1536),
    (512, 512), (512, 2048), (640, 2560), (768, 768), (768, 2304), (768, 3072), (1024, 1024),
    (1024, 4096), (1280, 5120), (1600, 6400), (2048, 2048), (2048, 256), (2048, 5632),
    (4096, 4096), (4096, 11008), (25088, 4096), (4096, 10), (512, 1000), (2048, 1000), (768, 2),
    (100, 10), (784, 512), (9216, 4096),
)  # fmt: skip
TYPICAL_WIDTHS = (128, 192, 256, 320, 384, 480, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 2048,
                  2560, 3072, 4096)  # fmt: skip
VOCABULARY = (10000, 30522, 32000, 32128, 33278, 50257, 50265, 50272, 128256)
ROUND = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536,
         2048, 2304, 3072, 4096, 5120, 8192, 11008, 16384, 32768)  # fmt: skip
ODD = (1, 3, 7, 10, 27, 33, 49, 77, 100, 127, 147, 197, 257, 300, 333, 577, 783, 1000, 1001, 1537,
       2049, 3137, 4100, 6277, 10001, 18522, 30522, 33278, 50257)  # fmt: skip


class Product(Family):
    """Products of two matrices, or of many small ones; `t` in the layout is transposed."""

    name = "gemm"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (filter(_fits, rows) for rows in (_matrices(), _batched(), _typical_layers()))

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        dtype = device.precision(p.dtype)
        b, m, n, k = p.numbers(*"bmnk")
        torch = device.torch

        def operand(rows: int, columns: int, transposed: bool) -> Any:
            shape = (columns, rows) if transposed else (rows, columns)
            tensor = device.normal((b, *shape) if b > 1 else shape, dtype)
            return tensor.transpose(-1, -2) if transposed else tensor

        def make() -> Callable[[], Any]:
            first = operand(m, k, p.text("layout")[0] == "t")
            second = operand(k, n, p.text("layout")[1] == "t")
            if p.flag("bias"):
                bias = device.normal((n,), dtype)
                return lambda: torch.addmm(bias, first, second)
            multiply = torch.bmm if b > 1 else torch.mm
            return lambda: multiply(first, second)

        return device.sets(make, b * (m * k + k * n + m * n) * dtype.itemsize, most=16)

    def operations(self, p: Params) -> tuple[Operation]:
        layout, bias = p.text("layout"), p.flag("bias")
        return (costs.gemm(*p.numbers(*"bmnk"), dtype=p.dtype, layout=layout, bias=bias),)


def gemm_row(
    dtype: str, m: int, n: int, k: int, layout: str, bias: bool = False, b: int = 1
) -> Row:
    return row(dtype=dtype, b=b, m=m, n=n, k=k, layout=layout, bias=bias)


def _fits(row: Row) -> bool:
    """Return whether it is quick and small enough to be measured."""
    dtype, (b, m, n, k) = str(row["dtype"]), Params(row).numbers(*"bmnk")
    quick = 2.0 * b * m * n * k / FLOPS_S[dtype] <= SLOWEST_S
    return quick and b * (m * k + k * n + m * n) * BYTES[dtype] <= LARGEST_BYTES


def _matrices() -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        yield from _random(dtype, 60 if dtype == "fp16" else 230)
        yield from list(_layers(dtype))[:: 6 if dtype == "fp16" else 1]


def _batched() -> Iterator[Row]:
    """Yield products of many small matrices, as in attention without a fused kernel."""
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"bmm {dtype}")
        for _ in range(110):
            length = pick.choice((16, 49, 50, 64, 128, 196, 197, 256, 384, 512, 1024, 2048))
            head = pick.choice((24, 32, 64, 64, 80, 96, 128))
            batch = pick.choice((1, 8, 12, 16, 48, 96, 128, 192, 256, 384, 768, 1536, 3072))
            scores, values = (length, length, head), (length, head, length)
            shape, layout = pick.choice(
                ((scores, "nt"), (values, "nn"), (values, "tn"), (scores, "nn"))
            )
            yield gemm_row(dtype, *shape, layout, b=batch)


def _layers(dtype: str) -> Iterator[Row]:
    """Yield forward, data and weight gradients of linear layers and output vocabularies."""
    pick = random.Random(f"layers {dtype}")
    heads = [(t, w) for t in (256, 1024, 2048, 8192, 16384) for w in (128, 400, 768, 1024, 2048)]
    shapes = [(t, *w) for t in TOKENS for w in pick.sample(WIDTHS, 9)]
    shapes += [(t, w, v) for v in VOCABULARY for t, w in pick.sample(heads, 4)]
    for tokens, inputs, outputs in shapes:
        yield gemm_row(dtype, tokens, outputs, inputs, "nt", pick.random() < 0.6)
        if pick.random() < 0.7:
            yield gemm_row(dtype, tokens, inputs, outputs, "nn")
        if pick.random() < 0.7:
            yield gemm_row(dtype, outputs, inputs, tokens, "tn")


def _random(dtype: str, number: int) -> Iterator[Row]:
    pick = random.Random(f"random {dtype}")
    for _ in range(number):
        odd = pick.random() < 0.35
        m, n, k = (pick.choice(ODD if odd and pick.random() < 0.6 else ROUND) for _ in range(3))
        layout = pick.choice(("nt", "nn", "tn"))
        yield gemm_row(dtype, m, n, k, layout, layout == "nt" and pick.random() < 0.4)


def _typical_layers() -> Iterator[Row]:
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"typical linear {dtype}")
        for _ in range(110):
            tokens = pick.choice(
                (32, 64, 128, 256, 512, 1024, 2048, 3152, 4096, 8192, 12608, 16384)
            )
            inputs, outputs = pick.choice(TYPICAL_WIDTHS), pick.choice(TYPICAL_WIDTHS)
            yield gemm_row(dtype, tokens, outputs, inputs, "nt", pick.random() < 0.6)
            yield gemm_row(dtype, tokens, inputs, outputs, "nn")
            yield gemm_row(dtype, outputs, inputs, tokens, "tn")
