"""All cases of the calibration suite, section by section, and the calls that run them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from wattloop.predict.calibrate.case import CalibrationCase, Params, interleaved
from wattloop.predict.calibrate.device import CalibrationDevice, KernelCalls
from wattloop.predict.calibrate.families import convolution, memory, optimizer, product, sequence
from wattloop.predict.calibrate.families.convolution import (
    batch_families,
    conv_cases,
    conv_row,
    picture_layers,
)
from wattloop.predict.calibrate.families.memory import memory_families
from wattloop.predict.calibrate.families.optimizer import optimizer_cases
from wattloop.predict.calibrate.families.product import batched_cases, gemm_cases, gemm_row
from wattloop.predict.calibrate.families.sequence import attention_cases, rnn_cases
from wattloop.predict.calibrate.families.typical import typical_families
from wattloop.predict.calibrate.host import host_cases

BUILDERS: Mapping[str, Callable[[CalibrationDevice, Params], KernelCalls]] = {
    "gemm": product.build_gemm,
    "conv": convolution.build_conv,
    "attention": sequence.attention,
    "rnn": sequence.rnn,
    "elementwise": memory.build_elementwise,
    "copy": memory.build_copy,
    "norm": memory.norm,
    "softmax": memory.softmax,
    "loss": memory.loss,
    "reduction": memory.reduction,
    "embedding": memory.embedding,
    "pool": memory.pool,
    "index": memory.index,
    "optimizer": optimizer.build_optimizer,
}


def build(family: str, params: Mapping[str, object], bench: CalibrationDevice) -> KernelCalls:
    """Build the calls of a case."""
    return BUILDERS[family](bench, Params(params))


STEPS = (
    "mobilenet_v2@224 64 fp32", "densenet121@224 64 bf16", "bert_base@128 32 tf32",
    "convnext_tiny@224 64 bf16", "unet@128 16 tf32", "llama_300m@4096 2 bf16",
    "efficientnet_b0@224 64 tf32", "swin_tiny@224 64 tf32", "gru@100 512 tf32",
    "mobilenet_v1@224 128 bf16", "t5_small@256 32 bf16", "resnet101@224 64 tf32",
    "lstm_lm@35 80 fp32", "deit_small@224 64 fp32", "regnet_x_400mf@224 128 bf16",
    "resnext50@224 64 tf32", "gpt2_medium@256 8 bf16", "opt_125m@512 16 tf32",
    "mobilenet_v2@224 128 bf16", "lstm_deep@64 256 bf16", "unet@128 8 bf16",
    "resnet34@224 128 bf16", "shufflenet_v2@224 64 fp32", "bert_base@512 16 bf16",
    "resnet34@32 4096 tf32", "resnet101@224 128 bf16", "densenet121@224 128 tf32",
    "resnet101@32 1024 bf16", "unet@256 16 tf32", "resnext50@224 128 fp32",
    "mobilenet_v2@32 2048 bf16", "resnet34@224 256 tf32", "densenet121@32 1024 tf32",
    "convnext_tiny@224 128 bf16", "resnet34@32 1024 fp32", "regnet_x_400mf@224 256 tf32",
    "resnet101@224 128 fp32", "resnext50@32 2048 tf32", "efficientnet_b0@224 256 tf32",
    "resnet34@224 256 bf16", "resnet101@32 2048 tf32", "unet@256 16 fp32",
    "mobilenet_v1@224 256 tf32", "densenet121@224 128 bf16", "regnet_x_400mf@32 4096 bf16",
    "shufflenet_v2@224 256 tf32", "mobilenet_v1@32 4096 fp32", "resnet34@32 2048 bf16",
    "mixer_s16@224 64 bf16", "densenet121@224 32 tf32", "roberta_base@256 32 bf16",
    "convnext_tiny@224 32 fp32", "t5_small@256 16 fp32", "llama_300m@4096 1 tf32",
    "efficientnet_b0@224 128 bf16", "deit_small@224 128 bf16", "gru@100 64 fp32",
    "swin_tiny@224 64 bf16", "resnet101@224 64 bf16", "mobilenet_v1@224 64 fp32",
    "gpt2_medium@256 2 tf32", "regnet_x_400mf@224 64 fp32", "lstm_lm@35 20 bf16",
    "resnext50@224 64 bf16", "opt_125m@512 8 bf16", "mobilenet_v2@224 128 tf32", "unet@128 4 fp32",
    "resnet34@224 64 fp32", "deit_small@224 16 bf16", "convnext_tiny@224 64 tf32",
    "bert_base@128 64 bf16", "lstm_deep@64 64 tf32", "efficientnet_b0@224 64 fp32",
    "densenet121@224 16 fp32", "gru@100 2048 bf16", "mixer_s16@224 64 tf32",
    "roberta_base@256 16 tf32", "swin_tiny@224 16 fp32", "shufflenet_v2@224 128 bf16",
    "t5_small@256 32 tf32", "resnet101@224 16 fp32", "mobilenet_v2@32 512 tf32",
    "llama_300m@4096 1 fp32", "gpt2_medium@256 8 fp32", "regnet_x_400mf@224 32 tf32",
    "lstm_lm@35 256 tf32", "opt_125m@512 4 fp32", "resnext50@224 16 fp32",
    "mobilenet_v1@224 128 tf32", "bert_base@512 4 fp32", "mobilenet_v2@224 16 bf16",
    "resnet34@224 16 tf32", "efficientnet_b0@224 8 bf16", "unet@256 8 bf16",
    "convnext_tiny@224 8 bf16", "lstm_deep@64 32 fp32",
    "t5_gated@256 16 bf16", "googlenet@224 64 fp32", "qwen2_500m@512 2 bf16",
    "bilstm_tagger@80 64 tf32", "wide_resnet28_4@32 128 bf16", "bart_base@256 16 tf32",
    "dlrm@26 2048 fp32", "segformer_b0@224 32 bf16", "darknet53@256 16 tf32",
    "electra_small@128 32 bf16", "gru_speech@400 32 tf32", "pythia_160m@1024 4 bf16",
    "squeezenet@224 32 bf16", "whisper_tiny@128 8 tf32", "tabular_resnet@64 512 bf16",
    "xception@224 32 fp32", "mobilevit_small@256 32 tf32", "lstm_text@200 64 fp32",
    "alexnet@224 128 tf32", "llama_300m@512 2 bf16", "t5_gated@512 16 tf32",
    "wide_resnet28_4@32 512 fp32", "qwen2_500m@4096 1 tf32", "bart_base@1024 8 bf16",
    "darknet53@256 64 bf16", "electra_small@512 64 tf32", "googlenet@224 256 bf16",
    "bilstm_tagger@80 512 bf16", "segformer_b0@512 16 fp32", "pythia_160m@2048 8 tf32",
    "xception@224 128 bf16", "gru_speech@400 128 bf16", "dlrm@26 16384 bf16",
    "squeezenet@224 256 tf32", "whisper_tiny@128 32 bf16", "mobilevit_small@256 128 bf16",
    "lstm_text@200 512 bf16", "alexnet@224 512 bf16", "resnet34@32 128 fp32",
    "bart_base@256 4 fp32", "t5_small@512 32 fp32", "qwen2_500m@512 8 fp32",
    "darknet53@256 64 fp32", "electra_small@128 16 fp32", "wide_resnet28_4@32 1024 tf32",
    "segformer_b0@224 128 tf32", "pythia_160m@512 2 fp32", "whisper_tiny@128 4 fp32",
    "tabular_resnet@64 8192 tf32", "xception@224 64 tf32", "gru_speech@400 16 fp32",
    "squeezenet@224 64 fp32", "llama_300m@1024 8 bf16", "googlenet@224 128 tf32",
    "mobilevit_small@256 16 fp32", "bilstm_tagger@80 1024 fp32", "alexnet@224 64 fp32",
    "lstm_text@200 2048 tf32", "resnet101@32 64 bf16", "t5_gated@256 4 fp32",
)  # fmt: skip
"""Model, batch, precision; neighbours differ in kind, so that any part is a mixture."""
PROFILES = (0, 1, 3, 4, 6, 7, 9, 10, 12, 14, 15, 17, 20, 24)
"""Indices of the steps that are also profiled, operation by operation."""


def step_cases() -> list[CalibrationCase]:
    return [_case("steps", row) for row in STEPS]


def profile_cases() -> list[CalibrationCase]:
    """Return fourteen cases of all kinds."""
    return [_case("profile", STEPS[number]) for number in PROFILES]


def _case(section: str, row: str) -> CalibrationCase:
    name, batch, precision = row.split()
    return CalibrationCase(
        section, "step", {"model": name, "batch": int(batch), "precision": precision}
    )


# Training steps of small batches, which wait for the host, in rounds. The speed of a host varies
# over time. Each step is measured once in every round, interleaved with all others, so that
# differences between rounds are the host's noise.
WAITING = (
    "resnet34@32 64 bf16", "bert_base@128 8 tf32", "bilstm_tagger@80 16 bf16",
    "llama_300m@512 1 bf16", "deit_small@224 8 tf32", "t5_small@256 4 bf16", "gru@100 16 tf32",
    "mobilenet_v2@32 64 tf32", "gpt2_medium@256 1 bf16", "tabular_resnet@64 256 tf32",
    "resnet34@32 64 tf32", "bert_base@128 8 bf16", "lstm_text@200 16 tf32",
    "llama_300m@512 1 tf32", "deit_small@224 8 bf16", "t5_small@256 4 fp32", "gru@100 16 bf16",
    "wide_resnet28_4@32 32 bf16", "bart_base@256 2 bf16", "resnet101@32 64 tf32",
    "electra_small@128 8 bf16", "bart_base@256 2 tf32",
)  # fmt: skip
"""Model, batch, precision."""
ROUNDS = 3


def waiting_cases() -> list[CalibrationCase]:
    return [
        CalibrationCase(
            "waiting",
            "step",
            {"model": name, "batch": int(batch), "precision": precision, "round": number},
        )
        for number in range(1, ROUNDS + 1)
        for name, batch, precision in map(str.split, WAITING)
    ]


def power_cases() -> list[CalibrationCase]:
    """All kinds and precisions, from small to saturating; idle and mostly idle among them."""
    rows = [
        *_products(),
        *_convolutions(),
        *_moving(),
        *_sequences(),
        *_duty(),
        *picture_layers(),
    ]
    return [CalibrationCase("power", family, params) for family, params in _strided(rows)]


def _strided(
    rows: list[tuple[str, dict[str, object]]],
) -> Iterator[tuple[str, dict[str, object]]]:
    """Order by every seventh, so that a short run includes all kinds."""
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
    """Return shares of the time in which the GPU works; otherwise it waits for the host."""
    product = {"dtype": "bf16", "b": 1, "m": 4096, "n": 4096, "k": 4096, "layout": "nn",
               "bias": False}  # fmt: skip
    add = {"dtype": "fp32", "elements": 2**25, "resident": False, "function": "add"}
    yield "idle", {}
    for share in (0.1, 0.25, 0.5, 0.75):
        yield "gemm", {**product, "duty": share}
    for share in (0.1, 0.3, 0.6):
        yield "elementwise", {**add, "duty": share}
    yield "elementwise", {"dtype": "fp32", "elements": 1024, "resident": True, "function": "add"}


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


def tiny_cases(section: str) -> list[CalibrationCase]:
    """Return a section that takes seconds on any machine."""
    if section == "kernels":
        return [CalibrationCase("kernels", family, params) for family, params in KERNELS]
    if section == "host":
        return [
            CalibrationCase("host", "probe", {}),
            CalibrationCase("host", "call", {"function": "linear", "mode": "backward"}),
            CalibrationCase(
                "host", "optimizer", {"optimizer": "sgd", "style": "foreach", "tensors": 4}
            ),
        ]
    if section == "power":
        return [CalibrationCase("power", "idle", {}), CalibrationCase("power", *KERNELS[1])]
    step: dict[str, object] = {"model": "gru@10", "batch": 2, "precision": "bf16"}
    if section == "waiting":
        step["round"] = 1
    return [CalibrationCase(section, "step", step)]


SHARES = {"kernels": 0.42, "host": 0.04, "power": 0.18, "steps": 0.25, "waiting": 0.07,
          "profile": 0.04}  # fmt: skip
"""Shares of the time per section."""


def cases(section: str, *, tiny: bool = False) -> Sequence[CalibrationCase]:
    """Return the section's cases in order; a `tiny` suite only tests the program."""
    if tiny:
        return tiny_cases(section)
    if section == "kernels":
        families = [
            gemm_cases(),
            batched_cases(),
            conv_cases(),
            attention_cases(),
            rnn_cases(),
            optimizer_cases(),
            *memory_families(),
            *typical_families(),
            *batch_families(),
        ]
        return list(interleaved(families))
    return {
        "host": host_cases,
        "power": power_cases,
        "steps": step_cases,
        "waiting": waiting_cases,
        "profile": profile_cases,
    }[section]()
