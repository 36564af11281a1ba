"""Sequences: fused attention and cuDNN's recurrent layers."""

import random
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from wattloop.predict.calibrate.families.base import (
    Family,
    Params,
    Row,
    directed,
    gradient_calls,
    row,
)
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

ALGORITHMS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
MOST_SCORES = {"fp32": 4e9, "tf32": 4e9, "bf16": 2e10, "fp16": 2e10}
"""Scores (pairs of positions over all heads): about 20 ms."""
MOST_CELLS = {"fp32": 6e11 / 5, "tf32": 6e11, "bf16": 6e11, "fp16": 6e11}
"""Multiply-adds of one recurrent layer stack; autocast runs it in fp16, pure bf16 in bf16."""


class Attention(Family):
    """Scaled dot-product attention as models call it: heads are a view of the hidden width."""

    name = "attention"

    def rows(self) -> Iterable[Iterable[Row]]:
        return (_attention_rows(),)

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        dtype = device.precision(p.dtype)
        batch, heads, head_dim = p.numbers("batch", "heads", "head_dim")
        q_len, kv_len = p.numbers("q_len", "kv_len")
        causal = p.flag("causal")
        mask = None
        if p.flag("masked"):
            mask = device.normal((batch, 1, q_len, kv_len), dtype)
            mask = mask.expand(batch, heads, q_len, kv_len)
        function = torch.nn.functional.scaled_dot_product_attention

        def inputs() -> list[Any]:
            return [
                device.normal((batch, length, heads, head_dim), dtype).transpose(1, 2)
                for length in (q_len, kv_len, kv_len)
            ]

        calls = gradient_calls(
            device,
            p.backward,
            lambda q, k, v: function(q, k, v, attn_mask=mask, is_causal=causal),
            inputs,
            batch * heads * head_dim * (2 * q_len + 2 * kv_len) * dtype.itemsize,
        )
        choice = int(torch._fused_sdp_choice(*inputs(), mask, 0.0, causal))
        calls.note["algorithm"] = ALGORITHMS.get(choice, str(choice))
        return calls

    def operations(self, p: Params) -> tuple[Operation]:
        masked = p.flag("masked")
        fused = "flash" if p.dtype in ("bf16", "fp16") and not masked else "efficient"
        heads = p.number("heads")
        made = costs.attention(
            p.text("direction"),
            p.number("batch"),
            heads,
            p.number("kv_heads", heads),
            *p.numbers("q_len", "kv_len", "head_dim"),
            causal=p.flag("causal"),
            masked=masked,
            dtype=p.dtype,
            algorithm=p.text("algorithm", fused),
        )
        return (made,)


class Recurrent(Family):
    """LSTM and GRU layers; the backward time is forward and backward minus forward."""

    name = "rnn"

    def rows(self) -> Iterable[Iterable[Row]]:
        return _recurrent_rows(), _typical_recurrent_rows()

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        dtype = device.precision(p.dtype)
        cell = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[p.text("cell")]
        layer = cell(
            *p.numbers("input", "hidden", "layers"),
            batch_first=True,
            bidirectional=p.flag("bidirectional"),
        ).to(device.device, dtype)
        sequence = device.normal(p.numbers("batch", "seq", "input"), dtype)
        sequence = sequence.detach().requires_grad_()
        weights = [sequence, *layer.parameters()]

        def forward() -> Any:
            with warnings.catch_warnings():
                # as in use: weights of another type are not one block
                warnings.simplefilter("ignore")
                with torch.enable_grad():
                    return layer(sequence)[0]

        gradient = device.normal(tuple(forward().shape), dtype)
        if not p.backward:
            return KernelCalls([forward])
        both = [lambda: torch.autograd.grad(forward(), weights, gradient)]
        return KernelCalls(both, less=[forward])

    def operations(self, p: Params) -> tuple[Operation]:
        layers, inputs, hidden, batch, seq = p.numbers("layers", "input", "hidden", "batch", "seq")
        made = costs.rnn(
            p.text("direction"), p.text("cell"), layers, inputs, hidden, batch, seq,
            p.flag("bidirectional"), p.dtype,
        )  # fmt: skip
        return (made,)


def _attention_rows() -> Iterator[Row]:
    lengths = (16, 49, 64, 128, 197, 256, 384, 512, 577, 1024, 2048, 4096, 8192)
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        pick = random.Random(f"attention {dtype}")
        for _ in range(30 if dtype == "fp16" else 120):
            head = pick.choice((32, 64, 64, 64, 80, 96, 128, 128, 256))
            q_len = pick.choice(lengths)
            kv_len = q_len if pick.random() < 0.9 else pick.choice(lengths)
            heads = pick.choice((1, 4, 6, 8, 12, 16, 32))
            batch = pick.choice((1, 2, 4, 8, 16, 32, 64, 128, 256))
            causal = q_len == kv_len and pick.random() < 0.45
            masked = not causal and pick.random() < 0.35
            if 2e4 < batch * heads * q_len * kv_len <= MOST_SCORES[dtype]:
                yield from directed(dtype=dtype, batch=batch, heads=heads, q_len=q_len,
                                    kv_len=kv_len, head_dim=head, causal=causal,
                                    masked=masked)  # fmt: skip


def _recurrent_rows() -> list[Row]:
    rows: list[Row] = []
    for number, dtype in enumerate(MOST_CELLS, start=1):
        pick = random.Random(f"rnn {dtype}")
        while len(rows) < 120 * number:
            hidden = pick.choice((32, 64, 128, 200, 256, 512, 650, 1024, 1500))
            cell = pick.choice(("lstm", "lstm", "gru"))
            layers = pick.choice((1, 2, 2, 3, 4))
            inputs = pick.choice((7, 16, 64, 128, 256, 512, hidden))
            batch = pick.choice((1, 8, 16, 20, 32, 64, 128, 256, 512, 1024, 2048, 4096))
            seq = pick.choice((10, 24, 35, 60, 64, 100, 128, 200, 256, 512))
            bidirectional = pick.random() < 0.15
            if 8 * hidden * hidden * batch * seq * layers <= MOST_CELLS[dtype]:
                rows += directed(dtype=dtype, cell=cell, layers=layers, input=inputs,
                                 hidden=hidden, batch=batch, seq=seq,
                                 bidirectional=bidirectional)  # fmt: skip
    return rows


def _typical_recurrent_rows() -> Iterator[Row]:
    for dtype in MOST_CELLS:
        pick = random.Random(f"typical rnn {dtype}")
        for _ in range(45):
            hidden = pick.choice((64, 128, 200, 256, 300, 400, 512, 650, 1024))
            batch = pick.choice((16, 32, 64, 128, 256, 512, 1024))
            if dtype == "fp32" and hidden * hidden * batch > 1e8:
                continue
            for direction in ("forward", "backward"):
                yield row(dtype=dtype, cell=pick.choice(("lstm", "gru")), hidden=hidden,
                          layers=pick.choice((1, 2, 3)), input=pick.choice((32, 128, hidden)),
                          batch=batch, seq=pick.choice((20, 35, 50, 64, 100, 128)),
                          bidirectional=False, direction=direction)  # fmt: skip
