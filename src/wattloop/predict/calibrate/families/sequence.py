"""Sequence cases: fused attention and cuDNN's recurrent layers."""

import random
import warnings
from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.case import CalibrationCase, Params, cases_of
from wattloop.predict.calibrate.device import CalibrationDevice, KernelCalls
from wattloop.predict.calibrate.families.memory import directed

ALGORITHMS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}


def attention(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Scaled dot-product attention as models call it: heads are a view of the hidden width."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    batch, heads, head_dim = (p.number(name) for name in ("batch", "heads", "head_dim"))
    q_len, kv_len = p.number("q_len"), p.number("kv_len")

    def heads_of(length: int) -> Any:
        return bench.normal((batch, length, heads, head_dim), dtype).transpose(1, 2)

    mask = None
    if p.flag("masked"):
        mask = bench.normal((batch, 1, q_len, kv_len), dtype).expand(batch, heads, q_len, kv_len)
    function = torch.nn.functional.scaled_dot_product_attention

    def inputs() -> tuple[Any, ...]:
        return heads_of(q_len), heads_of(kv_len), heads_of(kv_len)

    size = torch.empty((), dtype=dtype).element_size()
    set_bytes = batch * heads * head_dim * (2 * q_len + 2 * kv_len) * size
    causal = p.flag("causal")
    work = directed(
        bench,
        p.text("direction") == "backward",
        lambda q, k, v: function(q, k, v, attn_mask=mask, is_causal=causal),
        inputs,
        set_bytes,
    )
    q, k, v = inputs()
    choice = int(torch._fused_sdp_choice(q, k, v, mask, 0.0, causal))
    work.note["algorithm"] = ALGORITHMS.get(choice, str(choice))
    return work


def rnn(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build recurrent layers; the backward time is forward and backward minus forward."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    cell = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[p.text("cell")]
    layer = cell(
        p.number("input"),
        p.number("hidden"),
        p.number("layers"),
        batch_first=True,
        bidirectional=p.flag("bidirectional"),
    ).to(bench.device, dtype)
    sequence = bench.normal((p.number("batch"), p.number("seq"), p.number("input")), dtype)
    sequence = sequence.detach().requires_grad_()
    weights = [sequence, *layer.parameters()]

    def forward() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in use: weights of another type are not one block
            with torch.enable_grad():
                return layer(sequence)[0]

    gradient = bench.normal(tuple(forward().shape), dtype)

    def both() -> Any:
        return torch.autograd.grad(forward(), weights, gradient)

    if p.text("direction") == "forward":
        return KernelCalls([forward])
    calls: list[Callable[[], Any]] = [both]
    return KernelCalls(calls, less=[forward])


MOST_SCORES = {"fp32": 4e9, "tf32": 4e9, "bf16": 2e10, "fp16": 2e10}
"""Scores (pairs of positions over all heads): about 20 ms."""
MOST_CELLS = 6e11
"""Multiply-adds of one recurrent layer stack."""


def attention_cases() -> list[CalibrationCase]:
    """Return forward and backward by precision, head size, length, causal, masked."""
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


def rnn_cases() -> list[CalibrationCase]:
    """Return LSTM and GRU by layers, sizes, batch and length."""
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
