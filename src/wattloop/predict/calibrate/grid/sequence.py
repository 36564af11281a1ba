"""Attention as one kernel, and cuDNN's recurrent layers."""

import random

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.order import cases_of

__all__ = ["attention_cases", "rnn_cases"]

MOST_SCORES = {"fp32": 4e9, "tf32": 4e9, "bf16": 2e10, "fp16": 2e10}
"""Scores (pairs of positions over all heads): about 20 ms."""
MOST_CELLS = 6e11
"""Multiply-adds of one recurrent layer stack."""


def attention_cases() -> list[Case]:
    """Forward and backward by precision, head size, length, causal, masked."""
    rows: list[dict[str, object]] = []
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        pick = random.Random(f"attention {dtype}")
        lengths = (16, 49, 64, 128, 197, 256, 384, 512, 577, 1024, 2048, 4096, 8192)
        for _ in range(30 if dtype == "fp16" else 120):
            head = pick.choice((32, 64, 64, 64, 80, 96, 128, 128, 256))
            q_len = pick.choice(lengths)
            kv_len = q_len if pick.random() < 0.9 else pick.choice(lengths)
            heads = pick.choice((1, 4, 6, 8, 12, 16, 32))
            batch = pick.choice((1, 2, 4, 8, 16, 32, 64, 128, 256))
            causal = q_len == kv_len and pick.random() < 0.45
            masked = not causal and pick.random() < 0.35
            if not 2e4 < batch * heads * q_len * kv_len <= MOST_SCORES[dtype]:
                continue
            row = {
                "dtype": dtype, "batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len,
                "head_dim": head, "causal": causal, "masked": masked,
            }  # fmt: skip
            rows += [{**row, "direction": direction} for direction in ("forward", "backward")]
    return cases_of("kernels", "attention", rows)


def rnn_cases() -> list[Case]:
    """LSTM and GRU by layers, sizes, batch and length."""
    rows: list[dict[str, object]] = []
    for dtype in ("fp32", "tf32", "bf16"):
        pick = random.Random(f"rnn {dtype}")
        while len(rows) < 120 * (1 + ("fp32", "tf32", "bf16").index(dtype)):
            hidden = pick.choice((32, 64, 128, 200, 256, 512, 650, 1024, 1500))
            row: dict[str, object] = {
                "dtype": dtype,
                "cell": pick.choice(("lstm", "lstm", "gru")),
                "layers": pick.choice((1, 2, 2, 3, 4)),
                "input": pick.choice((7, 16, 64, 128, 256, 512, hidden)),
                "hidden": hidden,
                "batch": pick.choice((1, 8, 16, 20, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
                "seq": pick.choice((10, 24, 35, 60, 64, 100, 128, 200, 256, 512)),
                "bidirectional": pick.random() < 0.15,
            }
            if _cells(row) > MOST_CELLS or (dtype == "fp32" and _cells(row) > MOST_CELLS / 5):
                continue
            rows += [{**row, "direction": direction} for direction in ("forward", "backward")]
    return cases_of("kernels", "rnn", rows)


def _cells(row: dict[str, object]) -> float:
    hidden, batch, seq, layers = (
        int(str(row[name])) for name in ("hidden", "batch", "seq", "layers")
    )
    return float(8 * hidden * hidden * batch * seq * layers)
