"""One small case of each kind: tries the program where there is no GPU; its times mean nothing."""

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.conv import conv_row
from wattloop.predict.calibrate.grid.gemm import gemm_row

__all__ = ["tiny_cases"]

LAYER = {"cell": "lstm", "layers": 1, "input": 4, "hidden": 8, "batch": 2, "seq": 3}
HEADS = {"batch": 1, "heads": 2, "q_len": 16, "kv_len": 16, "head_dim": 32}
KERNELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("gemm", gemm_row("bf16", (1, 16, 24, 8), "nt", bias=True)),
    ("gemm", gemm_row("fp32", (3, 16, 8, 8), "tn", bias=False)),
    ("conv", {**conv_row(2, 4, 8, 3, 1, 8), "dtype": "fp32", "direction": "forward"}),
    ("conv", {**conv_row(2, 4, 4, 3, 2, 8), "dtype": "fp32", "direction": "weight", "groups": 4}),
    ("attention", {**HEADS, "dtype": "fp32", "causal": True, "masked": False,
                   "direction": "backward"}),
    ("rnn", {**LAYER, "dtype": "fp32", "bidirectional": False, "direction": "backward"}),
    ("elementwise", {"dtype": "fp32", "elements": 256, "resident": False,
                     "function": "gelu_backward"}),
    ("copy", {"dtype": "fp32", "to": "bf16", "elements": 256, "resident": True, "layout": "same"}),
    ("norm", {"dtype": "fp32", "norm": "batch", "n": 2, "channels": 4, "side": 4,
              "direction": "backward"}),
    ("softmax", {"dtype": "fp32", "rows": 4, "columns": 8, "log": True, "direction": "forward"}),
    ("loss", {"dtype": "fp32", "rows": 4, "columns": 8, "loss": "cross_entropy",
              "direction": "backward"}),
    ("reduction", {"dtype": "fp32", "rows": 8, "columns": 8, "over": "rows"}),
    ("embedding", {"dtype": "fp32", "rows": 4, "columns": 8, "table_rows": 10,
                   "direction": "backward"}),
    ("pool", {"dtype": "fp32", "pool": "max", "window": 2, "stride": 2, "n": 2, "channels": 4,
              "side": 8, "direction": "backward"}),
    ("index", {"dtype": "fp32", "rows": 8, "columns": 8, "function": "gather"}),
    ("optimizer", {"optimizer": "adamw", "style": "foreach", "tensors": 2, "elements": 128}),
    ("optimizer", {"function": "lerp", "tensors": 2, "elements": 128}),
)  # fmt: skip


def tiny_cases(section: str) -> list[Case]:
    """A section in seconds on any machine."""
    if section == "kernels":
        return [Case("kernels", family, params) for family, params in KERNELS]
    if section == "host":
        return [
            Case("host", "probe", {}),
            Case("host", "call", {"function": "linear", "mode": "backward"}),
            Case("host", "optimizer", {"optimizer": "sgd", "style": "foreach", "tensors": 4}),
        ]
    if section == "power":
        return [Case("power", "idle", {}), Case("power", *KERNELS[1])]
    step: dict[str, object] = {"model": "gru@10", "batch": 2, "precision": "bf16"}
    if section == "waiting":
        step["round"] = 1
    return [Case(section, "step", step)]
