"""Accuracy of `predict serve` for time, power and energy per token of served language models.

    python benchmarks/predict_serving.py [--quick] [--json FILE]

Reads mlenergy_inference.csv of The ML.ENERGY Benchmark from the folder llm/ of
WATTLOOP_SHARED_DATA; without it nothing is judged.
"""

import csv
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from bars import Bar, Page, Table, arguments, publish
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.serving import DecoderShape, ServingModel, ServingQuestion, decoder_named

PROMPTS = {"lm-arena-chat": 200, "gpqa": 250}
"""Tokens of a prompt, which the table does not have: typical of the data sets."""
GPUS = {"H100": "h100-sxm", "B200": "b200"}
ODD = ("B200", "gpqa")
"""Rows 5 to 8 times slower than the same model on the same GPU with shorter answers."""
TEXT = """
{rows} rows of vLLM on H100 and B200, four models, one to four GPUs, 8 to 2,048 requests at a time
(The ML.ENERGY Benchmark, NeurIPS 2025). Five constants of the server (its time per iteration, the
time to sample a logit, and how much of the bandwidth weights, cache and experts reach) and the busy
power of kernels that wait for memory were chosen on the H100 rows. The B200 rows decided two
questions of form, and no number: sampling takes as long as multiprocessors and clock say, not
bandwidth, and Blackwell with HBM starts from the constants of Hopper. Everything else comes from
the configurations of the models, the data sheets and the constants of the kernels model. Lengths of
prompts are not in the table: 200 tokens are assumed for chat, 250 for GPQA.

*Roofline* is the usual estimate: the longer of weights and cache over the bandwidth, and FLOPs over
the peak, with one share of each and one share of the power limit, all three fitted to the same H100
rows. Errors are means of absolute percentages.

The five GPQA rows on a B200 take 32 to 47 ms per token where the chat rows of the same model and
GPU take 5 to 12 ms, with less power. Memory traffic cannot explain that, so no model of the
hardware will; they count in the totals all the same.
"""


class Row(NamedTuple):
    model: str
    gpu: str
    gpus: int
    task: str
    question: ServingQuestion
    shape: DecoderShape
    token_s: float
    power_w: float
    token_j: float


class Estimate(NamedTuple):
    token_s: float
    power_w: float
    token_j: float


def main() -> int:
    args = arguments("time, power and energy per token of served language models").parse_args()
    path = Path(os.environ.get("WATTLOOP_SHARED_DATA", "../shared/data")) / "llm"
    path /= "mlenergy_inference.csv"
    if not path.is_file():
        print(f"predict_serving: {path.name} is not in llm/ of WATTLOOP_SHARED_DATA; not judged")
        return 0
    rows = read_rows(path)
    publish(page(rows), args)
    return 0


def read_rows(path: Path) -> list[Row]:
    rows = []
    for line in csv.DictReader(path.open(encoding="utf-8")):
        name = "hf:" + line["model"].rpartition("/")[2]
        requests = float(line["avg_batch"])
        question = ServingQuestion(
            model=name,
            gpu=GPUS[line["gpu"]],
            concurrency=max(round(requests), 1),
            prompt=PROMPTS[line["task"]],
            output=max(round(float(line["avg_output_tokens"])), 1),
            tp=int(line["gpus"]),
        )
        rows.append(
            Row(
                name,
                line["gpu"],
                int(line["gpus"]),
                line["task"],
                question,
                decoder_named(name),
                requests / float(line["tokens_per_s"]),
                float(line["avg_power_w"]),
                float(line["j_per_token"]),
            )
        )
    return rows


def ours(rows: Sequence[Row]) -> list[Estimate]:
    models = {name: ServingModel(gpu_named(full)) for name, full in GPUS.items()}
    found = []
    for row in rows:
        server = models[row.gpu]
        question = row.question
        iterations = [server.iteration(question, row.shape, n) for n in _prompts(question)]
        result = server.iteration_results(iterations, None)
        share = min(question.concurrency / question.output, 1.0)
        weights = np.array([1 - share, share])
        token_s = float(weights @ result.step_s)
        joules = float(weights @ (result.step_s * result.power_w)) * row.gpus
        found.append(Estimate(token_s, joules / token_s, joules / question.concurrency))
    return found


def _prompts(question: ServingQuestion) -> tuple[float, float]:
    return 0.0, question.prompt * max(question.concurrency / question.output, 1.0)


def roofline(rows: Sequence[Row]) -> list[Estimate]:
    """Fit two shares of peaks and one of the power limit, by least squares of logarithms on
    H100.
    """
    known = [row for row in rows if row.gpu == "H100"]
    grid = [(m, c) for m in np.linspace(0.2, 1, 33) for c in np.linspace(0.05, 1, 39)]

    def times(of: Sequence[Row], memory: float, compute: float) -> np.ndarray:
        return np.array([_roofline_s(row, memory, compute) for row in of])

    real = np.log([row.token_s for row in known])
    memory, compute = min(grid, key=lambda g: float(np.abs(np.log(times(known, *g)) - real).mean()))
    watts = float(np.median([row.power_w / row.gpus / _gpu(row).tdp_w for row in known]))
    found = []
    for row, token_s in zip(rows, times(rows, memory, compute).tolist(), strict=True):
        power_w = watts * _gpu(row).tdp_w * row.gpus
        found.append(Estimate(token_s, power_w, power_w * token_s / row.question.concurrency))
    return found


def _gpu(row: Row):  # type: ignore[no-untyped-def]
    return gpu_named(GPUS[row.gpu])


def _roofline_s(row: Row, memory: float, compute: float) -> float:
    gpu, asked, shape = _gpu(row), row.question, row.shape
    requests = asked.concurrency
    cache = 2 * shape.cache_width * shape.layers * (asked.prompt + asked.output / 2) * requests
    moved = (2 * shape.parameters + cache) / row.gpus
    tokens = requests * (1 + asked.prompt / asked.output)
    flops = 2 * shape.active_parameters * tokens / row.gpus
    return max(moved / (memory * gpu.memory_bytes_s), flops / (compute * gpu.matrix_flops["bf16"]))


def page(rows: Sequence[Row]) -> Page:
    answers = {"ours": ours(rows), "roofline": roofline(rows)}
    chosen: dict[str, Callable[[Row], bool]] = {
        "all rows": lambda row: True,
        "H100 (constants chosen here)": lambda row: row.gpu == "H100",
        "B200 (no constant chosen here)": lambda row: row.gpu == "B200",
        "B200 without GPQA": lambda row: row.gpu == "B200" and (row.gpu, row.task) != ODD,
    }
    parts = [
        (title, *(f"{value:.1%}" for name in answers for value in _errors(rows, answers[name], of)))
        for title, of in chosen.items()
    ]
    header = ["rows", *(f"{what}, {name}" for name in answers for what in ("time", "power", "J"))]
    models = sorted({(row.model, row.gpu, row.gpus, row.task) for row in rows})
    by_model = [
        (
            *map(str, key),
            *(f"{value:.1%}" for value in _errors(rows, answers["ours"], _is(key))),
            f"{_errors(rows, answers['roofline'], _is(key))[2]:.1%}",
        )
        for key in models
    ]
    real = [row.token_j for row in rows]
    ranks = {
        name: float(spearmanr([e.token_j for e in each], real)[0]) for name, each in answers.items()
    }
    energies = {
        name: 100 * _errors(rows, each, lambda row: True)[2] for name, each in answers.items()
    }
    bars = [
        Bar("energy per token, mean error", energies["ours"], "%", 20,
            {"roofline": energies["roofline"]}),
        Bar("rank correlation over configurations", ranks["ours"], "", 0.97,
            {"roofline": ranks["roofline"]}, at_least=True),
    ]  # fmt: skip
    tables = [
        Table("Errors", header, parts),
        Table(
            "By model",
            ["model", "GPU", "GPUs", "task", "time", "power", "J/token", "roofline J/token"],
            by_model,
        ),
    ]
    return Page(
        "predict_serving",
        "Energy of served language models, predicted",
        bars,
        tables,
        text=TEXT.format(rows=len(rows)),
    )


def _is(key: tuple[object, ...]) -> Callable[[Row], bool]:
    return lambda row: (row.model, row.gpu, row.gpus, row.task) == key


def _errors(
    rows: Sequence[Row], answers: Sequence[Estimate], of: Callable[[Row], bool]
) -> tuple[float, float, float]:
    pairs = [(row, each) for row, each in zip(rows, answers, strict=True) if of(row)]
    columns = [
        [abs(getattr(each, name) / getattr(row, name) - 1) for row, each in pairs]
        for name in ("token_s", "power_w", "token_j")
    ]
    return tuple(float(np.mean(column)) for column in columns)  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
