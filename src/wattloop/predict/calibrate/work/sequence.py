"""Fused attention and cuDNN's recurrent layers."""

import warnings
from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.gradient import directed
from wattloop.predict.calibrate.work.params import Params

__all__ = ["attention", "rnn"]

ALGORITHMS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}


def attention(bench: Bench, p: Params) -> Work:
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


def rnn(bench: Bench, p: Params) -> Work:
    """A stack of recurrent layers; its backward is forward and backward less the forward."""
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
            warnings.simplefilter("ignore")  # weights of another type are not one block: as in use
            with torch.enable_grad():
                return layer(sequence)[0]

    gradient = bench.normal(tuple(forward().shape), dtype)

    def both() -> Any:
        return torch.autograd.grad(forward(), weights, gradient)

    if p.text("direction") == "forward":
        return Work([forward])
    calls: list[Callable[[], Any]] = [both]
    return Work(calls, less=[forward])
