"""Accuracy of `predict serve --engine transformers` for prefill and decode of a Llama on an H200.

    python benchmarks/predict_generation.py [--quick] [--json FILE]

Reads h200_llm_inference.jsonl from the folder gpu/ of WATTLOOP_SHARED_DATA, or
benchmarks/data/h200/llm_inference.jsonl.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bars import Bar, Page, Table, arguments, publish
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.generation import generation_passes
from wattloop.predict.memory import CONTEXT_BYTES, memory_fit
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement
from wattloop.predict.serving import ServingQuestion, decoder_named
from wattloop.predict.workload.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
MODEL, GPU = "hf:tinyllama-1.1b", "h200"
"""Same sizes as the measured model, but for the positions, which cost nothing."""
GENERATED = 128
"""Tokens of an answer; a static cache has as many entries in addition to the prompt's."""
UNTRACKED = np.arange(0.70, 1.001, 0.01)
REPLAYED_S = np.arange(0.8e-6, 3.01e-6, 0.1e-6)
TEXT = """
{rows} rows of a Llama of 1.1B parameters in bf16 (2048 x 22 layers, 32 heads, 4 of keys) run by
Transformers on an H200: `prefill` (batch x context tokens), `decode-eager` and `decode-graph` (one
token of each sequence on a static cache of `context` entries; the latter replays a CUDA graph).

The passes are traced and predicted by the kernels model of training steps with its shipped
constants, which never saw them. Two numbers are fitted to these rows, and each row is judged by
numbers from the other rows: the share of the host's time for a pass that records nothing for
gradients ({untracked:.2f} from all rows), and the shortest time of a kernel in a CUDA graph
({replayed:.1f} us). What made the difference was found in the trace, not fitted: with a mask for
the static cache, Transformers copies keys and values once for each of the eight query heads that
share them, and these copies take three quarters of a large decode step. Two rules of the model were
mended on the way: writing one entry into the cache does not move the whole cache, and attention of
one query pads it to 64 queries and not to 128.

These two rules, and that the prefill fills a cache, were decided with these rows in view (peak
memory told the latter). Leaving out a row leaves out the two numbers only, so expect more on other
models.

*Roofline* takes the longer of bytes (weights and cache once) over bandwidth and FLOPs over peak,
with a share of each and a share of the power limit, fitted to the other rows. It has no host.
"""


class Row(NamedTuple):
    mode: str
    batch: int
    context: int
    step_s: float
    power_w: float
    peak_bytes: float


class Estimate(NamedTuple):
    step_s: float
    power_w: float


def main() -> int:
    args = arguments("time and power of prefill and decode by Transformers").parse_args()
    path = rows_file()
    if path is None:
        print("predict_generation: the measured rows are not here; nothing judged")
        return 0
    publish(page(read_rows(path)), args)
    return 0


def rows_file() -> Path | None:
    shared = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    paths = (shared / "gpu" / "h200_llm_inference.jsonl",
             ROOT / "benchmarks" / "data" / "h200" / "llm_inference.jsonl")  # fmt: skip
    return next((path for path in paths if path.is_file()), None)


def read_rows(path: Path) -> list[Row]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Row(line["mode"], line["batch"], line["context"], line["step_s"], line["avg_power_w"],
            line["peak_mem_gib"] * 2**30)
        for line in lines
    ]  # fmt: skip


@lru_cache(maxsize=64)
def workload(mode: str, batch: int, context: int) -> Workload:
    prefill = mode == "prefill"
    question = ServingQuestion(
        model=MODEL,
        engine="transformers",
        gpu=GPU,
        concurrency=batch,
        prompt=context if prefill else context - GENERATED,
        output=GENERATED,
        cuda_graph=mode == "decode-graph",
    )
    passes = generation_passes(question)
    return passes.prefill if prefill else passes.decode


def ours(rows: Sequence[Row], untracked: float, replayed_s: float) -> list[Estimate]:
    gpu = gpu_named(GPU)
    constants = KernelModel.for_gpu(gpu).kernel_constants
    changes = {"host.untracked": untracked, "kernel.replayed_s": replayed_s}
    model = KernelModel(constants.with_values(changes), source="shipped")
    found = [model.predict(workload(*row[:3]), Placement(gpu)) for row in rows]
    return [Estimate(each.step_s, each.power_w) for each in found]


def fitted(rows: Sequence[Row]) -> Callable[[Sequence[Row]], tuple[float, float]]:
    """Return the search for both numbers; only decode-graph rows depend on the second."""
    by_host = np.array([errors(rows, ours(rows, float(u), 1.7e-6)) for u in UNTRACKED])
    by_graph = np.array([errors(rows, ours(rows, 0.83, float(s))) for s in REPLAYED_S])

    def search(kept: Sequence[Row]) -> tuple[float, float]:
        eager = [i for i, row in enumerate(rows) if row in kept and row.mode != "decode-graph"]
        graph = [i for i, row in enumerate(rows) if row in kept and row.mode == "decode-graph"]
        return (
            float(UNTRACKED[by_host[:, eager].mean(axis=1).argmin()]),
            float(REPLAYED_S[by_graph[:, graph].mean(axis=1).argmin()]),
        )

    return search


def errors(rows: Sequence[Row], estimates: Sequence[Estimate]) -> list[float]:
    return [abs(e.step_s / row.step_s - 1) for row, e in zip(rows, estimates, strict=True)]


def roofline(rows: Sequence[Row], known: Sequence[Row]) -> list[Estimate]:
    grid = [(m, c) for m in np.geomspace(0.01, 1, 41) for c in np.geomspace(0.05, 1, 31)]
    real = np.log([row.step_s for row in known])

    def times(of: Sequence[Row], memory: float, compute: float) -> np.ndarray:
        return np.array([_roofline_s(row, memory, compute) for row in of])

    best = min(grid, key=lambda g: float(np.abs(np.log(times(known, *g)) - real).mean()))
    watts = float(np.median([row.power_w for row in known]))
    return [Estimate(s, watts) for s in times(rows, *best).tolist()]


def _roofline_s(row: Row, memory: float, compute: float) -> float:
    gpu, shape = gpu_named(GPU), decoder_named(MODEL)
    tokens = row.batch * (row.context if row.mode == "prefill" else 1)
    pairs = row.context / 2 if row.mode == "prefill" else row.context
    cache = 2 * shape.cache_width * shape.layers * row.context * row.batch
    flops = tokens * (2 * shape.parameters + shape.cache_flops * shape.layers * pairs)
    moved = 2 * shape.parameters + cache
    return max(moved / (memory * gpu.memory_bytes_s), flops / (compute * gpu.matrix_flops["bf16"]))


def page(rows: Sequence[Row]) -> Page:
    search = fitted(rows)
    untracked, replayed_s = search(rows)
    answers: dict[str, list[Estimate]] = {"ours": [], "roofline": []}
    for row in rows:
        others = [other for other in rows if other is not row]
        answers["ours"] += ours([row], *search(others))
        answers["roofline"] += roofline([row], others)
    modes = ("all", *dict.fromkeys(row.mode for row in rows))
    header = ["rows", "number", *(f"{q}, {n}" for n in answers for q in ("time", "power"))]
    summary = [
        (mode, str(sum(mode in {"all", row.mode} for row in rows)),
         *(f"{value:.1%}" for each in answers.values() for value in _means(rows, each, mode)))
        for mode in modes
    ]  # fmt: skip
    each = [
        (row.mode, str(row.batch), str(row.context), f"{row.step_s * 1e3:.2f}",
         f"{e.step_s / row.step_s - 1:+.1%}", f"{row.power_w:.0f}",
         f"{e.power_w / row.power_w - 1:+.1%}", f"{_memory(row) / row.peak_bytes - 1:+.1%}")
        for row, e in zip(rows, answers["ours"], strict=True)
    ]  # fmt: skip
    means = {name: _means(rows, found, "all") for name, found in answers.items()}
    bars = [
        Bar(f"{what}_mean", 100 * means["ours"][i], "%", 10,
            {"roofline": 100 * means["roofline"][i]})
        for i, what in enumerate(("time", "power"))
    ]  # fmt: skip
    for mode in modes[1:]:
        found = {name: _means(rows, e, mode) for name, e in answers.items()}
        bars += [
            Bar(f"{what}_{mode}", 100 * found["ours"][i], "%", None,
                {"roofline": 100 * found["roofline"][i]})
            for i, what in enumerate(("time", "power"))
        ]  # fmt: skip
    columns = ["mode", "batch", "context", "measured ms", "time", "measured W", "power", "memory"]
    return Page(
        "predict_generation",
        "Prefill and decode by Transformers on an H200, predicted",
        bars,
        [Table("Mean errors", header, summary), Table("Every row", columns, each)],
        text=TEXT.format(rows=len(rows), untracked=untracked, replayed=1e6 * replayed_s),
        packages=("wattloop", "torch", "transformers", "numpy"),
    )


def _means(rows: Sequence[Row], answers: Sequence[Estimate], mode: str) -> tuple[float, float]:
    pairs = [(r, e) for r, e in zip(rows, answers, strict=True) if mode in {"all", r.mode}]
    time = np.mean([abs(e.step_s / r.step_s - 1) for r, e in pairs])
    power = np.mean([abs(e.power_w / r.power_w - 1) for r, e in pairs])
    return float(time), float(power)


def _memory(row: Row) -> float:
    """Return the traced peak, which torch counts without its context."""
    fit = memory_fit(workload(*row[:3]), gpu_named(GPU))
    return fit.needed_bytes - CONTEXT_BYTES


if __name__ == "__main__":
    sys.exit(main())
