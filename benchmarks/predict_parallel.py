"""Accuracy of `predict plan` and `--parallel` for the throughput of trainings over many GPUs.

    python benchmarks/predict_parallel.py [--quick] [--json FILE]

Reads llm_foundry_fsdp.csv from the folder llm/ of WATTLOOP_SHARED_DATA (without it, only published
layouts are judged) and data/published_layouts.csv next to this program.
"""

import csv
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.intervals import CONFIDENCE, Intervals, Residual
from wattloop.predict.parallel.layout import Layout
from wattloop.predict.parallel.model import (
    SHIPPED,
    SPREADS,
    ParallelForecast,
    ParallelModel,
    ParallelQuestion,
    model_flops,
)
from wattloop.predict.parallel.operations import StepConstants
from wattloop.predict.serving import DecoderShape, decoder_named

PUBLISHED = Path(__file__).with_name("data") / "published_layouts.csv"
MPT = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24),
    "3b": (2560, 20, 32), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}  # fmt: skip
"""Width, heads and layers."""
GPUS = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80", "a100_40gb": "a100-sxm-40"}
START = (1.1, 1.2, 2.7, 0.7)
EVALUATIONS = 70
TITAN_GPU = {"memory_bytes": 96 * 2**30, "memory_bytes_s": 2.4e12, "tdp_w": 500.0}
"""H100 of the torchtitan page: HBM2e, limited to 500 W."""
NAMES = {"qwen-3-30b-a3b": "qwen3-30b-a3b", "qwen-3-235b-a22b": "qwen3-235b-a22b"}
SHARDING = {"none": 0, "zero1": 1, "zero3": 3, "fsdp": 3}
TEXT = """
**FSDP at scale.** {rows} published throughputs of MPT models (llm-foundry, 2023) on 8 to 512 GPUs.
Four constants are fitted, to A100 rows alone when H100 rows are judged and the other way round: the
time of products and of attention against the share of the peak that is published for the GPU, the
bytes that eager operations move against one pass over each tensor, and what a hidden second of
gathering weights costs. The same four numbers, rounded from both fits, are in the package:
{shipped}. Everything else is physics from other sources: shapes of the products, data sheets, the
power limit with the clock that it leaves, rings over NVLink and the network of the maker's nodes,
NCCL's latencies. These trainings used FlashAttention 1 and 2, whose instructions reach 63% of an
H100's matrix units.

Baselines are fitted to the same rows as ours: *roofline* takes FLOPs over a share of the peak plus
gathered bytes over a share of the bandwidth (two constants); *6ND* takes 6 FLOPs per parameter and
token at one share of the peak.

**Published layouts.** {published} rows of the Megatron papers and README, NeMo, Megatron-Bridge,
Automodel and torchtitan ([data](../../benchmarks/data/published_layouts.md)): tensor, pipeline,
context and expert parallelism, ZeRO 1, FSDP, fp8. No number is fitted to them, but they were seen
while the model was built, and decided questions of form: fused or eager kernels and the attention
kernel of each source, checkpointing of half of the layers in torchtitan, gradients in bf16 for NeMo
and Megatron-Bridge, tokens that cross the network once per node, experts that are multiplied one by
one, and the interference of the exchange of gradients. So their error is not one of unseen rows.
The micro-batch of 4 of two torchtitan rows is its default, which the source does not state. Where a
source does not say the micro-batch or the chunks, the quickest of 1 to 8 and of a few is taken, as
its authors will have done. Operations are `fused` (one pass over each tensor) for Megatron
from 2024 on, NeMo and `torch.compile`, eager for others; attention is unfused in the
papers of 2021 and 2022.

The bar holds for the Megatron, NeMo and torchtitan rows. Six further rows are DeepSpeed's ZeRO 3 of
2021, which the Megatron paper measured as a rival; they ran up to twice as slow as rings of that
network allow, and we do not know why. Two rows of Qwen 3 30B in Megatron-Bridge are 2.7 times
slower than predicted; the same model runs more than twice as fast in Automodel, which is predicted
within 10%.

**Memory.** All {rows} trainings ran, so each must be said to fit. The opposite is tested with the
same models on so few GPUs that weights, gradients and optimizer alone exceed the memory.
"""


class Row(NamedTuple):
    question: ParallelQuestion
    gpu: Gpu
    tokens_s: float
    family: str
    source: str
    model: str


def main() -> int:
    parser = arguments("throughput of trainings over many GPUs")
    args = parser.parse_args()
    path = Path(os.environ.get("WATTLOOP_SHARED_DATA", "../shared/data")) / "llm"
    path /= "llm_foundry_fsdp.csv"
    rows = foundry_rows(path) if path.is_file() else []
    if not rows:
        print(f"predict_parallel: {path.name} is not in llm/ of WATTLOOP_SHARED_DATA")
    publish(page(rows, quick=args.quick), args)
    return 0


def foundry_rows(path: Path) -> list[Row]:
    found = []
    for line in csv.DictReader(path.open(encoding="utf-8")):
        gpus, batch = int(line["# GPUs"]), int(line["MicroBatchSize"])
        gpu = gpu_named(GPUS[line["GPU"]])
        full = line["Sharding Strategy"] == "FULL_SHARD"
        question = ParallelQuestion(
            model=mpt(line["Model"]),
            gpu=gpu.name,
            layout=Layout(dp=gpus, zero=3 if full else 2),
            seq=int(line["SeqLen (T)"]),
            micro_batch=batch,
            global_batch=batch * int(line["GradAccum"]) * gpus,
            precision="fp8" if line["Precision"] == "amp_fp8" else "bf16",
            checkpointing="full" if line["Activation Checkpointing"] == "True" else "none",
            attention="flash2",
            reduce="bf16" if line["MP Mode"] == "PURE" else "fp32",
        )
        family = "H100" if "h100" in line["GPU"] else "A100"
        measured = float(line["Throughput (T/s)"])
        found.append(Row(question, gpu, measured, family, "llm-foundry", line["Model"]))
    return found


def mpt(name: str) -> DecoderShape:
    return plain_gpt(f"mpt-{name}", *MPT[name], 50368)


def plain_gpt(name: str, hidden: int, heads: int, layers: int, vocabulary: int) -> DecoderShape:
    return DecoderShape(
        name, hidden, layers, heads, heads, hidden // heads, 4 * hidden, vocabulary, gated=False,
        tied=True, attention_weights=4.0 * hidden**2, cache_width=2 * hidden,
    )  # fmt: skip


class Models:
    """Models of each GPU with the same constants."""

    def __init__(self, constants: StepConstants) -> None:
        self._constants = constants
        self._models: dict[Gpu, ParallelModel] = {}

    def forecast(self, row: Row) -> ParallelForecast:
        if row.gpu not in self._models:
            self._models[row.gpu] = ParallelModel(row.gpu, self._constants)
        return self._models[row.gpu].forecast(row.question)

    def tokens_s(self, rows: Sequence[Row]) -> np.ndarray:
        return np.array([self.forecast(row).tokens_s for row in rows])


def measured(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row.tokens_s for row in rows])


def error(predicted: np.ndarray, rows: Sequence[Row]) -> float:
    return float(100 * np.abs(predicted / measured(rows) - 1).mean())


def fitted(rows: Sequence[Row]) -> StepConstants:
    """Fit the four constants by the mean absolute logarithm of the ratio."""

    def loss(logarithms: np.ndarray) -> float:
        predicted = Models(StepConstants(*np.exp(logarithms))).tokens_s(rows)
        return float(np.abs(np.log(predicted / measured(rows))).mean())

    start = np.log(START)
    simplex = start + np.vstack([np.zeros(4), 0.12 * np.eye(4)])
    options = {"maxfev": EVALUATIONS, "xatol": 0.01, "fatol": 1e-4, "initial_simplex": simplex}
    found = minimize(loss, start, method="Nelder-Mead", options=options)
    return StepConstants(*(float(value) for value in np.exp(found.x)))


def flops_of(row: Row) -> float:
    """Return the FLOPs of one GPU and token, with the repeated forward pass."""
    shape = row.question.model
    assert isinstance(shape, DecoderShape)
    again = 4 / 3 if row.question.checkpointing == "full" else 1.0
    return model_flops(shape, row.question.seq) * again


def roofline(known: Sequence[Row], rows: Sequence[Row]) -> np.ndarray:
    """Predict by FLOPs over a share of the peak, plus gathered bytes over a share of the
    bandwidth.
    """

    def seconds(of: Sequence[Row], compute: float, link: float) -> np.ndarray:
        found = []
        for row in of:
            shape, asked = row.question.model, row.question
            tokens = asked.micro_batch * asked.seq
            moved = 8.0 * shape.parameters  # type: ignore[union-attr]
            found.append(
                flops_of(row) / (compute * row.gpu.matrix_flops["bf16"])
                + moved / tokens / (link * row.gpu.link_bytes_s)
            )
        return np.array(found)

    def tokens_s(of: Sequence[Row], compute: float, link: float) -> np.ndarray:
        gpus = np.array([row.question.layout.gpus for row in of])  # type: ignore[union-attr]
        return gpus / seconds(of, compute, link)

    grid = [(c, b) for c in np.linspace(0.2, 0.9, 36) for b in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 9.9)]
    best = min(grid, key=lambda pair: error(tokens_s(known, *pair), known))
    return tokens_s(rows, *best)


def six_nd(known: Sequence[Row], rows: Sequence[Row]) -> np.ndarray:
    """Predict by 6 FLOPs per parameter and token at one share of the peak."""

    def peak_tokens_s(row: Row) -> float:
        asked = row.question
        flops = 6 * asked.model.active_parameters  # type: ignore[union-attr]
        return asked.layout.gpus * row.gpu.matrix_flops["bf16"] / flops  # type: ignore[union-attr]

    share = float(np.median([row.tokens_s / peak_tokens_s(row) for row in known]))
    return np.array([share * peak_tokens_s(row) for row in rows])


def published_rows() -> list[tuple[Row, list[Row]]]:
    """Return each row, and the questions among which the quickest is taken."""
    found = []
    for line in csv.DictReader(PUBLISHED.open(encoding="utf-8")):
        gpu = gpu_named(line["gpu"])
        if "500 W" in line["note"]:
            gpu = replace(gpu, **TITAN_GPU)
        total = float(line["tokens_per_s_per_gpu"]) * int(line["gpus"])
        choices = [
            Row(asked, gpu, total, "published", line["source"], line["model"])
            for asked in published_questions(line)
        ]
        found.append((choices[0], choices))
    return found


def published_questions(line: dict[str, str]) -> list[ParallelQuestion]:
    source = line["source"]
    sizes = {name: int(line[name]) for name in ("tp", "pp", "cp", "ep", "dp")}
    early, titan = source.startswith(("narayanan", "korthikanti")), "titan" in source
    narrow = sizes["tp"] > 1 and not source.startswith("narayanan")
    layout = Layout(
        **sizes,
        zero=SHARDING[line["sharding"]],
        flat=line["sharding"] != "zero3",
        sequence_parallel=narrow and "without sequence" not in line["note"],
    )
    again = line["checkpointing"] or "none"
    # Its FlexAttention and torch's own flash kernel use the instructions of Ampere.
    older = titan or ("automodel" in source and "oss" in line["model"])
    attention = "unfused" if early else "flash2" if older else "flash"
    batches = [int(line["micro_batch"])] if line["micro_batch"] else [1, 2, 4, 8]
    chunks = [int(line["chunks"])] if line["chunks"] else [1, 2, 3, 4, 6]
    return [
        ParallelQuestion(
            model=published_shape(line),
            gpu=line["gpu"],
            layout=replace(layout, chunks=parts if sizes["pp"] > 1 else 1),
            seq=int(line["seq"]),
            micro_batch=batch,
            global_batch=int(line["global_batch"]),
            precision=line["precision"],
            checkpointing="half" if titan and again == "selective" else again,
            attention=attention,
            kernels="eager" if early or (titan and not line["compile"]) else "fused",
            reduce="bf16" if source.startswith(("nemo-24", "megatron-bridge")) else "fp32",
        )
        for batch in batches
        for parts in chunks
    ]


def published_shape(line: dict[str, str]) -> DecoderShape:
    if not line["shape"]:
        shape = decoder_named("hf:" + NAMES.get(line["model"], line["model"]))
        return replace(shape, positions=0)
    sizes = dict(part.split("=") for part in line["shape"].split()[1:])
    numbers = (int(sizes[key]) for key in ("hidden", "heads", "layers", "vocab"))
    return plain_gpt(line["model"], *numbers)


def quickest(models: Models, choices: Sequence[Row]) -> ParallelForecast:
    found: list[ParallelForecast] = []
    for choice in choices:
        try:
            found.append(models.forecast(choice))
        except ConfigError:
            continue
    return max(found, key=lambda each: (each.fits, each.tokens_s))


def page(rows: Sequence[Row], *, quick: bool) -> Page:
    bars: list[Bar] = []
    tables: list[Table] = []
    if rows:
        more_bars, more_tables = foundry_page(rows, quick=quick)
        bars += more_bars
        tables += more_tables
    more_bars, more_tables = published_page(rows)
    bars += more_bars
    tables += more_tables
    bars += speed_bars(quick=quick)
    names = ("products", "attention", "streams", "interference")
    shipped = ", ".join(f"{name} {getattr(SHIPPED, name):g}" for name in names)
    count = len(published_rows())
    return Page(
        "predict_parallel",
        "Trainings over many GPUs, predicted",
        bars,
        tables,
        text=TEXT.format(rows=len(rows), published=count, shipped=shipped),
    )


def foundry_page(rows: Sequence[Row], *, quick: bool) -> tuple[list[Bar], list[Table]]:
    families = {name: [row for row in rows if row.family == name] for name in ("A100", "H100")}
    lines, judged, bars = [], [], []
    answers: dict[str, list[np.ndarray]] = {"ours": [], "roofline": [], "6ND": []}
    for own, other in (("H100", "A100"), ("A100", "H100")):
        known, asked = families[other], families[own]
        constants = SHIPPED if quick else fitted(known)
        answers["ours"].append(Models(constants).tokens_s(asked))
        answers["roofline"].append(roofline(known, asked))
        answers["6ND"].append(six_nd(known, asked))
        judged += asked
        errors = {name: error(each[-1], asked) for name, each in answers.items()}
        numbers = (constants.products, constants.attention, constants.streams,
                   constants.interference)  # fmt: skip
        lines.append(
            (own, "shipped" if quick else other, len(asked),
             *(f"{errors[name]:.1f}%" for name in answers),
             *(f"{number:.2f}" for number in numbers))
        )  # fmt: skip
    together = {name: np.concatenate(each) for name, each in answers.items()}
    peers = {name: error(together[name], judged) for name in ("roofline", "6ND")}
    bars.append(
        Bar("FSDP, tokens/s of GPUs left out, mean error", error(together["ours"], judged), "%", 12,
            peers)
    )  # fmt: skip
    fits, impossible = memory_answers(rows)
    right = 100 * (sum(fits) + sum(impossible)) / (len(fits) + len(impossible))
    bars.append(
        Bar("fits or does not, right", right, "%", 95, at_least=True,
            note=f"{sum(fits)} of {len(fits)} that ran, {sum(impossible)} of {len(impossible)} "
            "that cannot")
    )  # fmt: skip
    header = ["GPU", "constants from", "rows", "ours", "roofline", "6ND", "products", "attention",
              "streams", "interference"]  # fmt: skip
    return bars, [
        Table("FSDP by GPU", header, lines),
        Table("FSDP by model", ["model", "GPU", "rows", "ours", "roofline", "6ND"],
              by_model(judged, together)),
    ]  # fmt: skip


def by_model(rows: Sequence[Row], answers: dict[str, np.ndarray]) -> list[tuple[object, ...]]:
    lines = []
    for model in MPT:
        for family in ("A100", "H100"):
            chosen = [i for i, row in enumerate(rows) if (row.model, row.family) == (model, family)]
            if not chosen:
                continue
            some = [rows[i] for i in chosen]
            errors = (f"{error(each[chosen], some):.1f}%" for each in answers.values())
            lines.append((model, family, len(some), *errors))
    return lines


def memory_answers(rows: Sequence[Row]) -> tuple[list[bool], list[bool]]:
    """Return whether trainings that ran are said to fit, and impossible ones not to."""
    models = Models(SHIPPED)
    fits = [models.forecast(row).fits for row in rows]
    impossible = []
    for row in rows:
        shape = row.question.model
        assert isinstance(shape, DecoderShape)
        gpus = int(16 * shape.parameters / row.gpu.memory_bytes)
        if gpus < 1:
            continue
        batch = row.question.micro_batch * gpus
        fewer = replace(row.question, layout=Layout(dp=gpus, zero=3), global_batch=batch)
        impossible.append(not models.forecast(row._replace(question=fewer)).fits)
    return fits, impossible


def published_page(rows: Sequence[Row]) -> tuple[list[Bar], list[Table]]:
    models = Models(SHIPPED)
    pairs = [(row, quickest(models, choices)) for row, choices in published_rows()]
    of = [row for row, _ in pairs]
    predicted = np.array([forecast.tokens_s for _, forecast in pairs])
    known = [row for row in rows if row.question.precision == "bf16"] or of
    baseline = six_nd(known, of)
    is_rival = np.array([not row.question.layout.flat for row in of])  # type: ignore[union-attr]
    ours = [row for row, rival in zip(of, is_rival, strict=True) if not rival]
    ratios = np.abs(predicted / measured(of) - 1)
    bars = [
        Bar("published Megatron, NeMo and torchtitan layouts, mean error",
            error(predicted[~is_rival], ours), "%", 15, {"6ND": error(baseline[~is_rival], ours)},
            note=f"{len(ours)} rows, median {100 * float(np.median(ratios[~is_rival])):.1f}%"),
        Bar("the same with DeepSpeed's ZeRO 3", error(predicted, of), "%", None,
            {"6ND": error(baseline, of)}, note=f"{len(of)} rows"),
    ]  # fmt: skip
    bars += interval_bars(pairs)
    sources = list(dict.fromkeys(row.source for row in of))
    by_source = []
    for source in sources:
        chosen = [i for i, row in enumerate(of) if row.source == source]
        some = [of[i] for i in chosen]
        by_source.append((source, len(some), f"{error(predicted[chosen], some):.1f}%",
                          f"{error(baseline[chosen], some):.1f}%"))  # fmt: skip
    every = [
        (row.source, row.model, row.gpu.name, str(forecast.layout), forecast.question.precision,
         forecast.question.checkpointing, f"{row.tokens_s / forecast.layout.gpus:,.0f}",
         f"{forecast.tokens_s / forecast.layout.gpus:,.0f}",
         f"{100 * (forecast.tokens_s / row.tokens_s - 1):+.0f}%")
        for row, forecast in pairs
    ]  # fmt: skip
    return bars, [
        Table("Published layouts by source", ["source", "rows", "ours", "6ND"], by_source),
        Table("Published layouts, tokens/s per GPU",
              ["source", "model", "GPU", "layout", "precision", "checkpoints", "measured",
               "predicted", "error"], every),
    ]  # fmt: skip


def interval_bars(pairs: Sequence[tuple[Row, ParallelForecast]]) -> list[Bar]:
    """Return how 90% intervals from the residuals of all other sources do."""
    inside, halves, sizes, means = [], [], [], {}
    for kind in SPREADS:
        some = [
            Residual(row.source, "gpu", float(np.log(forecast.tokens_s / row.tokens_s)))
            for row, forecast in pairs
            if (forecast.active_parameters < forecast.parameters) == (kind == "experts")
        ]
        own = sorted(abs(each.time) for each in some)
        means[kind] = Intervals.exponential(some).half_width("time", "gpu", CONFIDENCE)
        for each in some:
            others = [other for other in some if other.group != each.group]
            half = Intervals.exponential(others).half_width("time", "gpu", CONFIDENCE)
            inside.append(abs(each.time) <= half)
            halves.append(half)
            sizes.append(own[math.ceil(CONFIDENCE * len(own)) - 1])
    covers = 100 * float(np.mean(inside))
    note = ", ".join(
        f"{name} within a factor of {np.exp(half):.2f}" for name, half in means.items()
    )
    return [
        Bar("90% intervals of layouts cover", covers, "%", 85, at_least=True, note=note),
        Bar("90% intervals of layouts cover at most", covers, "%", 95),
        Bar("their mean width over the best constant ones",
            float(np.mean(halves) / np.mean(sizes)), "", 1.3,
            note="from residuals of other sources, dense models and experts apart"),
    ]  # fmt: skip


COLD = """
import resource, sys, time
begin = time.perf_counter()
from wattloop.predict.parallel.model import ParallelQuestion, predict_parallel
from wattloop.predict.parallel.plan import PlanQuestion, plan
if sys.argv[1] == "one":
    predict_parallel(ParallelQuestion(model="hf:llama-3-70b", gpu="h100-sxm", seq=8192,
        layout="tp=8,pp=4,dp=16,zero=1,sp", global_batch=512, checkpointing="full"))
    found = 1
else:
    found = plan(PlanQuestion(model="hf:llama-3-70b", gpu="h100-sxm", gpus=64, seq=8192)).evaluated
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, found)
"""


def speed_bars(*, quick: bool) -> list[Bar]:
    def cold(what: str) -> tuple[float, float, int]:
        done = subprocess.run(
            [sys.executable, "-c", COLD, what], check=True, capture_output=True, text=True
        )
        seconds, gigabytes, found = done.stdout.split()
        return float(seconds), float(gigabytes), int(found)

    one_s, one_gb, _ = cold("one")
    bars = [
        Bar("70B on 512 GPUs, in a new process", one_s, "s", 15),
        Bar("70B on 512 GPUs, memory", one_gb, "GB", 2),
    ]
    if not quick:
        plan_s, _, found = cold("plan")
        bars.append(Bar("plan of 70B on 64 GPUs, for 200 layouts", plan_s * 200 / found, "s", 60,
                        note=f"{found} layouts in {plan_s:.1f} s"))  # fmt: skip
    return bars


if __name__ == "__main__":
    began = time.perf_counter()
    code = main()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.perf_counter() - began:.0f} s, {used:.2f} GB")
    sys.exit(code)
