"""Kernels to hold for seconds, so that their power settles."""

from collections.abc import Iterator

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.layers import picture_layers

__all__ = ["power_cases"]


def power_cases() -> list[Case]:
    """All kinds and precisions, from small to saturating; idle and mostly idle among them."""
    rows = [
        *_products(),
        *_convolutions(),
        *_moving(),
        *_sequences(),
        *_duty(),
        *picture_layers(),
    ]
    return [Case("power", family, params) for family, params in _strided(rows)]


def _strided(
    rows: list[tuple[str, dict[str, object]]],
) -> Iterator[tuple[str, dict[str, object]]]:
    """Every seventh first, so that a short run sees all kinds."""
    for start in (0, 3, 6, 2, 5, 1, 4):
        yield from rows[start::7]


def _products() -> Iterator[tuple[str, dict[str, object]]]:
    for dtype in ("bf16", "tf32", "fp32"):
        for m, n, k, layout in (
            (8192, 8192, 8192, "nt"),
            (4096, 4096, 4096, "nn"),
            (16384, 768, 768, "nt"),
            (16384, 3072, 768, "nt"),
            (768, 3072, 16384, "tn"),
            (2048, 1024, 1024, "nt"),
            (512, 512, 512, "nt"),
            (16, 4096, 4096, "nt"),
            (4096, 50257, 768, "nt"),
        ):
            if dtype == "fp32" and (m, n) in ((16384, 768), (4096, 50257)):
                continue
            yield "gemm", {"dtype": dtype, "b": 1, "m": m, "n": n, "k": k, "layout": layout,
                           "bias": False}  # fmt: skip
    for dtype in ("bf16", "fp32"):
        yield "gemm", {"dtype": dtype, "b": 384, "m": 512, "n": 512, "k": 64, "layout": "nt",
                       "bias": False}  # fmt: skip


def _convolutions() -> Iterator[tuple[str, dict[str, object]]]:
    def row(n: int, c: int, k: int, side: int, groups: int) -> dict[str, object]:
        return {"n": n, "c_in": c, "c_out": c, "k": k, "stride": 1, "side": side,
                "padding": k // 2, "groups": groups, "transposed": False, "line": False,
                "channels_last": False}  # fmt: skip

    for dtype in ("bf16", "tf32", "fp32"):
        for direction in ("forward", "data", "weight"):
            yield "conv", {**row(64, 256, 3, 14, 1), "dtype": dtype, "direction": direction}
        yield "conv", {**row(64, 128, 3, 56, 1), "dtype": dtype, "direction": "forward"}
        yield "conv", {**row(64, 256, 1, 28, 1), "dtype": dtype, "direction": "forward"}
    for dtype in ("bf16", "fp32"):
        for direction in ("forward", "data", "weight"):
            yield "conv", {**row(64, 144, 3, 56, 144), "dtype": dtype, "direction": direction}


def _moving() -> Iterator[tuple[str, dict[str, object]]]:
    for dtype in ("fp32", "bf16"):
        for function in ("add", "gelu", "gelu_backward", "dropout"):
            yield "elementwise", {"dtype": dtype, "elements": 2**27, "resident": False,
                                  "function": function}  # fmt: skip
        yield "elementwise", {"dtype": dtype, "elements": 2**21, "resident": True,
                              "function": "add"}  # fmt: skip
        for direction in ("forward", "backward"):
            yield "norm", {"dtype": dtype, "norm": "batch", "n": 64, "channels": 256, "side": 56,
                           "direction": direction}  # fmt: skip
    for direction in ("forward", "backward"):
        yield "norm", {"dtype": "fp32", "norm": "layer", "rows": 16384, "columns": 768,
                       "direction": direction}  # fmt: skip
    yield "elementwise", {"dtype": "fp32", "elements": 2**27, "resident": False, "function": "fill"}
    yield "copy", {"dtype": "fp32", "to": "bf16", "elements": 2**27, "resident": False,
                   "layout": "same"}  # fmt: skip
    yield "copy", {"dtype": "bf16", "to": "bf16", "layout": "transpose", "sizes": [16384, 4096]}
    yield "softmax", {"dtype": "fp32", "rows": 98304, "columns": 512, "log": False,
                      "direction": "forward"}  # fmt: skip
    yield "loss", {"dtype": "fp32", "rows": 8192, "columns": 50257, "loss": "cross_entropy",
                   "direction": "backward"}  # fmt: skip
    yield "reduction", {"dtype": "fp32", "rows": 16384, "columns": 3072, "over": "rows"}
    yield "pool", {"dtype": "fp32", "pool": "max", "window": 3, "stride": 2, "n": 64,
                   "channels": 64, "side": 112, "direction": "backward"}  # fmt: skip
    for style in ("foreach", "fused"):
        yield "optimizer", {"optimizer": "adamw", "style": style, "tensors": 40,
                            "elements": 40 * 2**22}  # fmt: skip


def _sequences() -> Iterator[tuple[str, dict[str, object]]]:
    for dtype in ("bf16", "tf32", "fp32"):
        for direction in ("forward", "backward"):
            yield "attention", {"dtype": dtype, "batch": 8, "heads": 16, "q_len": 1024,
                                "kv_len": 1024, "head_dim": 64, "causal": True, "masked": False,
                                "direction": direction}  # fmt: skip
        yield "rnn", {"dtype": dtype, "cell": "lstm", "layers": 2, "input": 128, "hidden": 512,
                      "batch": 512, "seq": 60, "bidirectional": False,
                      "direction": "forward"}  # fmt: skip
    for cell, hidden, batch in (("lstm", 256, 4096), ("lstm", 1024, 64), ("gru", 256, 512)):
        for dtype in ("bf16", "tf32", "fp32"):
            yield "rnn", {"dtype": dtype, "cell": cell, "layers": 2, "input": 128,
                          "hidden": hidden, "batch": batch, "seq": 60, "bidirectional": False,
                          "direction": "forward"}  # fmt: skip


def _duty() -> Iterator[tuple[str, dict[str, object]]]:
    """Shares of the time that the GPU works; the rest it waits for the host."""
    product = {"dtype": "bf16", "b": 1, "m": 4096, "n": 4096, "k": 4096, "layout": "nn",
               "bias": False}  # fmt: skip
    add = {"dtype": "fp32", "elements": 2**25, "resident": False, "function": "add"}
    yield "idle", {}
    for share in (0.1, 0.25, 0.5, 0.75):
        yield "gemm", {**product, "duty": share}
    for share in (0.1, 0.3, 0.6):
        yield "elementwise", {**add, "duty": share}
    yield "elementwise", {"dtype": "fp32", "elements": 1024, "resident": True, "function": "add"}
