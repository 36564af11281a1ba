"""Duration of predictions: tracing, a million predictions at once, a fit.

    python benchmarks/predict_speed.py [--quick] [--json FILE]

Each trace runs in a process of its own on two threads and reports its peak memory. Loading torch
and transformers is not counted in its time, but in its memory.
"""

import json
import os
import resource
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np

from bars import Bar, Page, arguments, publish
from predict_points import measured_points, steps_file
from predict_zoo import ZOO, Entry, hugging_face, tokens

LLAMA = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
TRACED = {
    "llama_7b": (
        Entry(
            "llama_7b", "transformer", 6_738_415_616,
            hugging_face("LlamaConfig", "LlamaForCausalLM", **LLAMA), tokens(2048, labels="token"),
        ),
        1, "bf16", 10.0, 1000.0,
    ),
    "resnet50": (ZOO["resnet50@224"], 64, "fp32", 3.0, None),
    "resnet18": (ZOO["resnet18@32"], 64, "fp32", None, None),
}  # fmt: skip
"""Name -> network, batch, precision, and the bars of seconds and megabytes."""
QUICK = ("resnet18",)
TRIES = 3
SIDE = 1000
"""Workloads and placements of the vectorised prediction."""
TEXT = """
Tracing is forward, backward and AdamW (foreach) on fake tensors; the quickest of {tries} processes,
because other work on the machine only adds. A prediction of many pairs
starts from workloads that were traced before: {side} workloads (the measured ones, over and over)
times {side} placements (power caps, host speeds). The fit is of `kernels` to all measured steps.
"""


def main() -> int:
    parser = arguments("how long tracing, predicting and fitting take")
    parser.add_argument(
        "--trace", choices=TRACED, help="trace one network here and print what it took"
    )
    args = parser.parse_args()
    if args.trace:
        print(json.dumps(_traced(args.trace)))
        return 0
    publish(_page(args), args)
    return 0


def _page(args: Namespace) -> Page:
    bars = []
    for name in QUICK if args.quick else [name for name in TRACED if name not in QUICK]:
        _, _, _, limit_s, limit_mb = TRACED[name]
        took = min((_in_own_process(name) for _ in range(TRIES)), key=lambda t: t["seconds"])
        bars.append(Bar(f"trace_{name}_s", took["seconds"], "s", limit_s))
        bars.append(
            Bar(
                f"trace_{name}_memory", took["memory_mb"], "MB", limit_mb,
                note=f"{took['libraries_mb']:.0f} MB of them are torch and transformers",
            )
        )  # fmt: skip
    return Page(
        "predict_speed",
        "How long predicting takes",
        [*bars, *_of_model(args.quick)],
        text=TEXT.format(side=SIDE, tries=TRIES),
        packages=("wattloop", "torch", "transformers", "numpy"),
    )


def _in_own_process(name: str) -> dict[str, float]:
    """Return seconds and memory of one trace."""
    done = subprocess.run(
        [sys.executable, __file__, "--trace", name],
        env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"predict_speed: tracing {name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _traced(name: str) -> dict[str, float]:
    """In this process: load the libraries, then trace and look at the clock."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from wattloop.predict import trace

    FakeTensorMode()  # loads the rest of torch, a few seconds the first time

    entry, batch, precision, _, _ = TRACED[name]
    with torch.device("meta"):
        inputs = entry.inputs(batch)
        if entry.loss is None:
            import transformers.models.llama.modeling_llama  # noqa: F401 - loaded, not timed
    libraries_mb = _memory_mb()
    began = time.perf_counter()
    workload = trace(
        entry.factory, inputs, loss=entry.loss, precision=precision, optimizer="adamw", name=name
    )
    seconds = time.perf_counter() - began
    if workload.parameters != entry.parameters:
        raise SystemExit(f"{name} has {workload.parameters} parameters, not {entry.parameters}")
    return {"seconds": seconds, "memory_mb": _memory_mb(), "libraries_mb": libraries_mb}


def _memory_mb() -> float:
    """Return the peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _of_model(quick: bool) -> list[Bar]:
    """Measure a million pairs, and a fit."""
    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.models.kernels import KernelModel
    from wattloop.predict.prediction import Placement

    path = steps_file()
    if path is None:
        reason = "h200_train_steps.jsonl is not here"
        return [Bar(name, None, "s", None, note=reason) for name in ("pairs_1e6_s", "fit_s")]
    points = [m.point for m in measured_points(Path(path), ["mlp_4096x6"] if quick else None)]
    h200 = gpu_named("h200")
    model = KernelModel.for_gpu(h200)
    side = 50 if quick else SIDE
    workloads = [points[n % len(points)].workload for n in range(side)]
    caps = np.linspace(h200.cap_min_w, h200.cap_max_w, side)
    placements = [
        Placement(h200, cap_w=float(cap), host_speed=1 + n / side) for n, cap in enumerate(caps)
    ]
    model.predict_many(workloads[: len(points)], placements[:1])  # traces -> sums, once
    began = time.perf_counter()
    model.predict_many(workloads, placements)
    pairs_s = time.perf_counter() - began
    began = time.perf_counter()
    model.fit(points)
    fit_s = time.perf_counter() - began
    return [
        Bar("pairs_1e6_s", pairs_s, "s", 2.0, note=f"{side * side:,} pairs"),
        Bar("fit_s", fit_s, "s", 60.0, note=f"{len(points)} steps"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
