"""Matrix-product cases: shapes of linear layers, vocabularies and attention, and random ones."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from wattloop.predict.calibrate.case import CalibrationCase, Params, cases_of
from wattloop.predict.calibrate.device import CalibrationDevice, KernelCalls


def build_gemm(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a product; `t` in the layout is a transposed operand."""
    dtype = bench.precision(p.text("dtype"))
    b, m, n, k = (p.number(name) for name in "bmnk")
    torch = bench.torch

    def operand(rows: int, columns: int, transposed: bool) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        tensor = bench.normal((b, *shape) if b > 1 else shape, dtype)
        return tensor.transpose(-1, -2) if transposed else tensor

    def make() -> Callable[[], Any]:
        first = operand(m, k, p.text("layout")[0] == "t")
        second = operand(k, n, p.text("layout")[1] == "t")
        if p.flag("bias"):
            bias = bench.normal((n,), dtype)
            return lambda: torch.addmm(bias, first, second)
        return (lambda: torch.bmm(first, second)) if b > 1 else (lambda: torch.mm(first, second))

    size = torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, b * (m * k + k * n + m * n) * size, most=16)


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
VOCABULARY = (10000, 30522, 32000, 32128, 33278, 50257, 50265, 50272, 128256)
ROUND = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536,
         2048, 2304, 3072, 4096, 5120, 8192, 11008, 16384, 32768)  # fmt: skip
ODD = (1, 3, 7, 10, 27, 33, 49, 77, 100, 127, 147, 197, 257, 300, 333, 577, 783, 1000, 1001, 1537,
       2049, 3137, 4100, 6277, 10001, 18522, 30522, 33278, 50257)  # fmt: skip


def gemm_cases() -> list[CalibrationCase]:
    """Return products of two matrices by precision, layout and bias."""
    rows: list[dict[str, object]] = []
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        kept = _random(dtype, 60 if dtype == "fp16" else 230)
        every = 6 if dtype == "fp16" else 1
        kept.extend(list(_layers(dtype))[::every])
        rows.extend(row for row in kept if gemm_fits(row))
    return cases_of("kernels", "gemm", rows)


def batched_cases() -> list[CalibrationCase]:
    """Return products of many small matrices, as in attention without a fused kernel."""
    rows: list[dict[str, object]] = []
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"bmm {dtype}")
        for _ in range(110):
            length = pick.choice((16, 49, 50, 64, 128, 196, 197, 256, 384, 512, 1024, 2048))
            head = pick.choice((24, 32, 64, 64, 80, 96, 128))
            batch = pick.choice((1, 8, 12, 16, 48, 96, 128, 192, 256, 384, 768, 1536, 3072))
            m, n, k, layout = pick.choice(
                (
                    (length, length, head, "nt"),
                    (length, head, length, "nn"),
                    (length, head, length, "tn"),
                    (length, length, head, "nn"),
                )
            )
            rows.append(gemm_row(dtype, (batch, m, n, k), layout, bias=False))
    return cases_of("kernels", "gemm", [row for row in rows if gemm_fits(row)])


def _layers(dtype: str) -> Iterator[dict[str, object]]:
    """Forward, data gradient and weight gradient of linear layers and output vocabularies."""
    pick = random.Random(f"layers {dtype}")
    shapes = [(t, *w) for t in TOKENS for w in pick.sample(WIDTHS, 9)]
    shapes += [(t, w, v) for v in VOCABULARY for t, w in _heads(pick)]
    for tokens, inputs, outputs in shapes:
        yield gemm_row(dtype, (1, tokens, outputs, inputs), "nt", bias=pick.random() < 0.6)
        if pick.random() < 0.7:
            yield gemm_row(dtype, (1, tokens, inputs, outputs), "nn", bias=False)
        if pick.random() < 0.7:
            yield gemm_row(dtype, (1, outputs, inputs, tokens), "tn", bias=False)


def _heads(pick: random.Random) -> list[tuple[int, int]]:
    every = [(t, w) for t in (256, 1024, 2048, 8192, 16384) for w in (128, 400, 768, 1024, 2048)]
    return pick.sample(every, 4)


def _random(dtype: str, number: int) -> list[dict[str, object]]:
    pick = random.Random(f"random {dtype}")
    rows = []
    for _ in range(number):
        odd = pick.random() < 0.35
        m, n, k = (pick.choice(ODD if odd and pick.random() < 0.6 else ROUND) for _ in range(3))
        layout = pick.choice(("nt", "nn", "tn"))
        bias = layout == "nt" and pick.random() < 0.4
        rows.append(gemm_row(dtype, (1, m, n, k), layout, bias=bias))
    return rows


def gemm_row(
    dtype: str, bmnk: tuple[int, int, int, int], layout: str, *, bias: bool
) -> dict[str, object]:
    b, m, n, k = bmnk
    return {"dtype": dtype, "b": b, "m": m, "n": n, "k": k, "layout": layout, "bias": bias}


def gemm_fits(row: dict[str, object]) -> bool:
    """Return whether it is quick and small enough to be measured."""
    b, m, n, k = (int(str(row[name])) for name in "bmnk")
    seconds = 2.0 * b * m * n * k / FLOPS_S[str(row["dtype"])]
    return (
        seconds <= SLOWEST_S
        and b * (m * k + k * n + m * n) * BYTES[str(row["dtype"])] <= LARGEST_BYTES
    )
