"""All cases of the calibration suite, section by section, and the calls that run them."""

from collections.abc import Iterator, Mapping, Sequence

from wattloop.predict.calibrate.families import memory
from wattloop.predict.calibrate.families.base import (
    CalibrationCase,
    Family,
    Params,
    Row,
    directed,
    interleaved,
    row,
)
from wattloop.predict.calibrate.families.convolution import DIRECTIONS, Convolution, conv_row
from wattloop.predict.calibrate.families.optimizer import Optimizer
from wattloop.predict.calibrate.families.product import Product, gemm_row
from wattloop.predict.calibrate.families.sequence import Attention, Recurrent
from wattloop.predict.calibrate.host import host_cases
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload.operation import Operation

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Product(), Convolution(), Attention(), Recurrent(), Optimizer(), memory.Elementwise(),
        memory.Copy(), memory.Norm(), memory.Softmax(), memory.Loss(), memory.Reduction(),
        memory.Embedding(), memory.Pool(), memory.Index(),
    )
}  # fmt: skip


def build(family: str, params: Mapping[str, object], device: CalibrationDevice) -> KernelCalls:
    return FAMILIES[family].build(device, Params(params))


def operations_of(family: str, params: Mapping[str, object]) -> Sequence[Operation]:
    """Return the operations of one call of the case; none for an unknown family."""
    return FAMILIES[family].operations(Params(params)) if family in FAMILIES else ()


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


def _step_cases(section: str, steps: Sequence[str], **more: object) -> list[CalibrationCase]:
    return [
        CalibrationCase(
            section, "step", row(model=name, batch=int(batch), precision=precision, **more)
        )
        for name, batch, precision in map(str.split, steps)
    ]


def waiting_cases() -> list[CalibrationCase]:
    rounds = range(1, ROUNDS + 1)
    return [case for i in rounds for case in _step_cases("waiting", WAITING, round=i)]


FamilyRow = tuple[str, Row]


def power_cases() -> list[CalibrationCase]:
    """All kinds and precisions, from small to saturating; idle and mostly idle among them."""
    rows = [*_products(), *_convolutions(), *_moving(), *_sequences(), *_duty(), *_layers()]
    # Every seventh, so that a short run includes all kinds.
    return [
        CalibrationCase("power", *each)
        for start in (0, 3, 6, 2, 5, 1, 4)
        for each in rows[start::7]
    ]


def _products() -> Iterator[FamilyRow]:
    for dtype in ("bf16", "tf32", "fp32"):
        for m, n, k, layout in (
            (8192, 8192, 8192, "nt"), (4096, 4096, 4096, "nn"), (16384, 768, 768, "nt"),
            (16384, 3072, 768, "nt"), (768, 3072, 16384, "tn"), (2048, 1024, 1024, "nt"),
            (512, 512, 512, "nt"), (16, 4096, 4096, "nt"), (4096, 50257, 768, "nt"),
        ):  # fmt: skip
            if dtype != "fp32" or (m, n) not in ((16384, 768), (4096, 50257)):
                yield "gemm", gemm_row(dtype, m, n, k, layout)
    for dtype in ("bf16", "fp32"):
        yield "gemm", gemm_row(dtype, 512, 512, 64, "nt", b=384)


def _convolution(shape: Sequence[int], dtype: str, direction: str, groups: int = 1) -> FamilyRow:
    n, c_in, c_out, kernel, side = shape
    layer = conv_row(n, c_in, c_out, kernel, 1, side)
    own = row(padding=kernel // 2, groups=groups, dtype=dtype, direction=direction)
    return "conv", {**layer, **own}


def _convolutions() -> Iterator[FamilyRow]:
    for dtype in ("bf16", "tf32", "fp32"):
        for direction in DIRECTIONS:
            yield _convolution((64, 256, 256, 3, 14), dtype, direction)
        yield _convolution((64, 128, 128, 3, 56), dtype, "forward")
        yield _convolution((64, 256, 256, 1, 28), dtype, "forward")
    for dtype in ("bf16", "fp32"):
        for direction in DIRECTIONS:
            yield _convolution((64, 144, 144, 3, 56), dtype, direction, groups=144)


def _elementwise(dtype: str, function: str, elements: int, resident: bool = False) -> FamilyRow:
    return "elementwise", row(dtype=dtype, elements=elements, resident=resident, function=function)


def _batch_norm(dtype: str, n: int, channels: int, side: int, direction: str) -> FamilyRow:
    return "norm", row(dtype=dtype, norm="batch", n=n, channels=channels, side=side,
                       direction=direction)  # fmt: skip


def _max_pool(dtype: str) -> FamilyRow:
    return "pool", row(dtype=dtype, pool="max", window=3, stride=2, n=64, channels=64, side=112,
                       direction="backward")  # fmt: skip


def _moving() -> Iterator[FamilyRow]:
    for dtype in ("fp32", "bf16"):
        for function in ("add", "gelu", "gelu_backward", "dropout"):
            yield _elementwise(dtype, function, 2**27)
        yield _elementwise(dtype, "add", 2**21, resident=True)
        for direction in ("forward", "backward"):
            yield _batch_norm(dtype, 64, 256, 56, direction)
    for layer_norm in directed(dtype="fp32", norm="layer", rows=16384, columns=768):
        yield "norm", layer_norm
    yield _elementwise("fp32", "fill", 2**27)
    yield "copy", row(dtype="fp32", to="bf16", elements=2**27, resident=False, layout="same")
    yield "copy", row(dtype="bf16", to="bf16", layout="transpose", sizes=[16384, 4096])
    yield "softmax", row(dtype="fp32", rows=98304, columns=512, log=False, direction="forward")
    yield "loss", row(dtype="fp32", rows=8192, columns=50257, loss="cross_entropy",
                      direction="backward")  # fmt: skip
    yield "reduction", row(dtype="fp32", rows=16384, columns=3072, over="rows")
    yield _max_pool("fp32")
    for style in ("foreach", "fused"):
        yield "optimizer", row(optimizer="adamw", style=style, tensors=40, elements=40 * 2**22)


def _sequences() -> Iterator[FamilyRow]:
    def lstm(dtype: str, cell: str, hidden: int, batch: int) -> FamilyRow:
        return "rnn", row(dtype=dtype, cell=cell, layers=2, input=128, hidden=hidden, batch=batch,
                          seq=60, bidirectional=False, direction="forward")  # fmt: skip

    for dtype in ("bf16", "tf32", "fp32"):
        for heads in directed(dtype=dtype, batch=8, heads=16, q_len=1024, kv_len=1024, head_dim=64,
                              causal=True, masked=False):  # fmt: skip
            yield "attention", heads
        yield lstm(dtype, "lstm", 512, 512)
    for cell, hidden, batch in (("lstm", 256, 4096), ("lstm", 1024, 64), ("gru", 256, 512)):
        for dtype in ("bf16", "tf32", "fp32"):
            yield lstm(dtype, cell, hidden, batch)


def _duty() -> Iterator[FamilyRow]:
    """Yield shares of the time in which the GPU works; otherwise it waits for the host."""
    yield "idle", {}
    for share in (0.1, 0.25, 0.5, 0.75):
        yield "gemm", {**gemm_row("bf16", 4096, 4096, 4096, "nn"), "duty": share}
    for share in (0.1, 0.3, 0.6):
        family, add = _elementwise("fp32", "add", 2**25)
        yield family, {**add, "duty": share}
    yield _elementwise("fp32", "add", 1024, resident=True)


# Layers of image networks: some fill the GPU, some leave most of it idle.
# n, c_in, c_out, kernel, side; directions
LAYERS = (
    ((128, 64, 64, 3, 56), ("forward", "weight")),
    ((128, 256, 64, 1, 56), ("forward", "data")),
    ((256, 512, 512, 3, 7), ("forward", "data")),
    ((64, 64, 64, 3, 224), ("forward", "weight")),
    ((2048, 256, 256, 3, 4), ("weight",)),
    ((4096, 64, 64, 3, 8), ("data",)),
)
SMALL_LAYER = (4, 256, 256, 3, 14)
"""One product of it keeps a few of a hundred multiprocessors busy."""


def _layers() -> Iterator[FamilyRow]:
    for dtype in ("bf16", "tf32", "fp32"):
        for shape, directions in LAYERS:
            for direction in directions:
                yield _convolution(shape, dtype, direction)
    for dtype in ("bf16", "fp32"):
        yield _convolution(SMALL_LAYER, dtype, "forward")
        for direction in ("forward", "backward"):
            yield _batch_norm(dtype, 128, 64, 112, direction)
        yield _batch_norm(dtype, 256, 2048, 7, "backward")
        for function in ("relu", "relu_backward"):
            yield _elementwise(dtype, function, 2**26)
    yield _max_pool("bf16")
    yield "copy", row(dtype="bf16", to="bf16", layout="nhwc", sizes=[128, 256, 28, 28])
    for dtype, m in (("bf16", 1024), ("tf32", 256)):
        yield "gemm", gemm_row(dtype, m, 1024, 1024, "nt")


TINY: tuple[FamilyRow, ...] = (
    ("gemm", gemm_row("bf16", 16, 24, 8, "nt", bias=True)),
    ("gemm", gemm_row("fp32", 16, 8, 8, "tn", b=3)),
    ("conv", {**conv_row(2, 4, 8, 3, 1, 8), "dtype": "fp32", "direction": "forward"}),
    ("conv", {**conv_row(2, 4, 4, 3, 2, 8), "dtype": "fp32", "direction": "weight", "groups": 4}),
    ("attention", row(batch=1, heads=2, q_len=16, kv_len=16, head_dim=32, dtype="fp32", causal=True,
                      masked=False, direction="backward")),
    ("rnn", row(cell="lstm", layers=1, input=4, hidden=8, batch=2, seq=3, dtype="fp32",
                bidirectional=False, direction="backward")),
    ("elementwise", row(dtype="fp32", elements=256, resident=False, function="gelu_backward")),
    ("copy", row(dtype="fp32", to="bf16", elements=256, resident=True, layout="same")),
    ("norm", row(dtype="fp32", norm="batch", n=2, channels=4, side=4, direction="backward")),
    ("softmax", row(dtype="fp32", rows=4, columns=8, log=True, direction="forward")),
    ("loss", row(dtype="fp32", rows=4, columns=8, loss="cross_entropy", direction="backward")),
    ("reduction", row(dtype="fp32", rows=8, columns=8, over="rows")),
    ("embedding", row(dtype="fp32", rows=4, columns=8, table_rows=10, direction="backward")),
    ("pool", row(dtype="fp32", pool="max", window=2, stride=2, n=2, channels=4, side=8,
                 direction="backward")),
    ("index", row(dtype="fp32", rows=8, columns=8, function="gather")),
    ("optimizer", row(optimizer="adamw", style="foreach", tensors=2, elements=128)),
    ("optimizer", row(function="lerp", tensors=2, elements=128)),
)  # fmt: skip
"""Kernels that any machine runs within seconds."""


def tiny_cases(section: str) -> list[CalibrationCase]:
    """Return a section that takes seconds on any machine."""
    if section == "kernels":
        return [CalibrationCase("kernels", *each) for each in TINY]
    if section == "host":
        return [
            CalibrationCase("host", "probe", {}),
            CalibrationCase("host", "call", row(function="linear", mode="backward")),
            CalibrationCase("host", "optimizer", row(optimizer="sgd", style="foreach", tensors=4)),
        ]
    if section == "power":
        return [CalibrationCase("power", "idle", {}), CalibrationCase("power", *TINY[1])]
    return _step_cases(section, ["gru@10 2 bf16"], **({"round": 1} if section == "waiting" else {}))


SHARES = {"kernels": 0.42, "host": 0.04, "power": 0.18, "steps": 0.25, "waiting": 0.07,
          "profile": 0.04}  # fmt: skip
"""Shares of the time per section."""


def cases(section: str, *, tiny: bool = False) -> Sequence[CalibrationCase]:
    """Return the section's cases in order; a `tiny` suite only tests the program."""
    if tiny:
        return tiny_cases(section)
    if section == "kernels":
        return list(interleaved([each for family in FAMILIES.values() for each in family.cases()]))
    if section == "steps":
        return _step_cases("steps", STEPS)
    if section == "profile":
        return _step_cases("profile", [STEPS[number] for number in PROFILES])
    return {"host": host_cases, "power": power_cases, "waiting": waiting_cases}[section]()
