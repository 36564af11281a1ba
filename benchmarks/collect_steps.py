"""Training steps of networks that no earlier collection has, with the GPU's kernels.

    python benchmarks/collect_steps.py --out suite_7.jsonl --minutes 8.8

Adds to a file of `wattloop calibrate collect`:

`step`      as there; `paused` has the power of the same step with a pause after each, which
            separates the GPU's power while it waits from the joules of the work
`profile`   kernels of such a step (name, calls, microseconds), and of a recurrent layer
`kernel`    recurrent layers that the suite has few of, small products in batches, convolutions of
            3 x 3, for which cuDNN chooses among several algorithms
`power`     recurrent layers, held

The GPU is only read; neither its power limit nor its clocks are set.
"""

import argparse
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from predict_later_nets import subject
from wattloop.predict.calibrate.collection import SampleFile, Timer, hold
from wattloop.predict.calibrate.families.base import CalibrationCase, row
from wattloop.predict.calibrate.families.convolution import DIRECTIONS, conv_row
from wattloop.predict.calibrate.families.product import gemm_row
from wattloop.predict.calibrate.gpu_sensor import GpuSensor, SensorSampler
from wattloop.predict.calibrate.machine import (
    CalibrationDevice,
    machine_record,
    open_device,
    open_sensor,
)
from wattloop.predict.calibrate.steps import SubjectTraining, measure_step
from wattloop.predict.calibrate.suite import build

FRESH = (
    "mpnet_base@128 16 bf16", "lstm_stack@120 64 bf16", "swinv2_tiny@256 16 fp32",
    "dlrm_wide@40 16384 bf16", "resnet20_cifar@32 4096 tf32", "gpt_neo_125m@512 4 tf32",
    "maxvit_small@224 32 bf16", "gru_wide@50 512 bf16", "vgg13_bn@32 1024 fp32",
    "xlnet_base@128 8 bf16", "edsr@48 16 tf32", "wav2vec2_base@16000 8 bf16",
    "bigru@100 64 tf32", "focalnet_tiny@224 32 tf32", "ft_transformer@32 1024 bf16",
    "deberta_small@256 16 bf16", "translator@40 64 bf16", "beit_base@224 8 bf16",
    "poolformer_s12@224 64 fp32", "deepfm@39 4096 fp32", "gemma_200m@512 4 bf16",
    "lstm_long@400 64 tf32", "dinov2_small@224 64 bf16", "pointnet@1024 64 tf32",
    "autoencoder@64 256 bf16", "mobilebert@128 16 tf32", "levit_128@224 32 fp32",
    "pvt_v2_b0@224 64 bf16", "bloom_small@512 4 fp32", "lstm_stack@120 256 tf32",
    "swinv2_tiny@256 64 bf16", "gru_wide@50 64 fp32", "resnet20_cifar@32 128 bf16",
    "mpnet_base@128 8 tf32", "dlrm_wide@40 4096 fp32", "maxvit_small@224 16 fp32",
    "vgg13_bn@32 128 tf32", "deberta_small@256 8 fp32", "bigru@100 256 bf16",
    "edsr@48 32 bf16", "gpt_neo_125m@512 8 bf16", "translator@40 32 fp32",
    "poolformer_s12@224 128 bf16", "wav2vec2_base@16000 16 tf32", "ft_transformer@32 256 tf32",
    "beit_base@224 32 tf32", "lstm_long@400 256 bf16", "pointnet@1024 32 fp32",
    "dinov2_small@224 16 fp32", "xlnet_base@128 16 fp32", "deepfm@39 16384 bf16",
    "autoencoder@64 64 fp32", "gemma_200m@512 2 tf32", "levit_128@224 128 bf16",
    "swinv2_tiny@256 32 tf32", "gru_wide@50 256 tf32", "focalnet_tiny@224 16 bf16",
    "vgg13_bn@32 2048 bf16", "pvt_v2_b0@224 32 fp32", "maxvit_small@224 64 tf32",
    "lstm_stack@120 32 fp32", "mobilebert@128 8 bf16", "resnet20_cifar@32 1024 fp32",
    "bloom_small@512 8 bf16", "bigru@100 32 fp32", "translator@40 128 tf32",
)  # fmt: skip
"""Model, batch, precision; networks of `predict_later_nets`."""
KNOWN = (
    "lstm_deep@64 256 bf16", "gru@100 2048 bf16", "bert_base@128 8 bf16", "swin_tiny@224 16 fp32",
    "resnet34@32 64 tf32", "gru@100 512 tf32", "bert_base@128 8 tf32", "resnet101@32 64 bf16",
    "lstm_lm@35 256 tf32", "dlrm@26 16384 bf16", "resnet34@32 4096 fp32", "t5_small@256 4 fp32",
    "electra_small@128 16 fp32", "deit_small@224 16 bf16", "gpt2_medium@256 2 tf32",
    "lstm_deep@64 32 fp32", "mobilenet_v2@32 512 tf32", "tabular_resnet@64 512 bf16",
)  # fmt: skip
"""Steps of earlier collections: they tell how quick this host is, and what repeats."""
MOST_KERNELS = 80
LONGEST_NAME = 120
PAUSED_S, LEAST_PAUSE_S = 0.9, 0.004
SHARES = {"steps": 0.77, "rnn": 0.13, "products": 0.04, "held": 0.06, "half": 0.2,
          "convs": 0.2}  # fmt: skip
"""Shares of the time among the parts that are asked for, in this order."""


def main() -> None:
    """Collect for at most `--minutes`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("suite_7.jsonl"))
    parser.add_argument("--minutes", type=float, default=8.8)
    parser.add_argument("--gpu", default="0", help="a number, or cpu to try the program")
    parser.add_argument("--parts", nargs="*", choices=list(SHARES), default=list(SHARES))
    args = parser.parse_args()
    file = SampleFile(args.out, resume=True)
    with open_device("cpu" if args.gpu == "cpu" else f"cuda:{args.gpu}") as bench:
        sensor = open_sensor(bench)
        file.write(machine_record(bench, sensor))
        Collector(bench, sensor, file).run(60 * args.minutes, args.parts)
    file.close()


class Collector:
    """Measurement of all parts, each for its share of the time."""

    def __init__(self, bench: CalibrationDevice, sensor: GpuSensor, file: SampleFile) -> None:
        self._bench, self._sensor, self._file = bench, sensor, file
        self._timer = Timer(bench)
        tried = not bench.on_gpu
        self._step_s = (0.01, 0.02) if tried else (0.8, 1.5)
        self._hold_s = (0.02, 0.05) if tried else (0.6, 1.2)
        self._paused_s = 0.05 if tried else PAUSED_S

    def run(self, seconds: float, parts: Sequence[str]) -> None:
        """Run all parts; a part that ends early leaves its time to the next."""
        begin_s = time.monotonic()
        end_s, passed = begin_s, 0.0
        tried = not self._bench.on_gpu
        for name in parts:
            passed += SHARES[name] / sum(SHARES[part] for part in parts)
            end_s = begin_s + passed * seconds
            wanted = {
                "steps": _steps, "rnn": _recurrent, "products": _products, "held": _held,
                "half": _half, "convs": _convolutions,
            }  # fmt: skip
            cases = list(wanted[name]())
            self._take(_tiny(name, cases) if tried else cases, end_s)

    def _take(self, cases: Sequence[CalibrationCase], end_s: float) -> None:
        for number, case in enumerate(cases, start=1):
            if time.monotonic() >= end_s:
                print(f"{case.section}: {number - 1} of {len(cases)}, time is over", flush=True)
                return
            if case.key in self._file.done:
                continue
            begin_s = time.monotonic()
            failure = ""
            try:
                self._measure(case)
            except Exception as error:  # noqa: BLE001 - one case must not end the collection
                failure = f"{type(error).__name__}: {error}"[:300]
                self._write("step" if case.section == "steps" else "kernel", case, error=failure)
            self._file.done.add(case.key)
            if case.section == "steps" or failure or number % 20 == 0:
                took_s = time.monotonic() - begin_s
                print(f"{number}/{len(cases)} {case.key[:90]} {took_s:.1f} s {failure}", flush=True)
            if case.section == "steps" or failure:
                gc.collect()
                self._bench.free()

    def _measure(self, case: CalibrationCase) -> None:
        if case.section == "steps":
            self._step(case)
            return
        work = build(case.family, case.params, self._bench)
        if case.section == "power":
            settle_s, window_s = self._hold_s
            held = hold(self._bench, work.calls, self._sensor, settle_s=settle_s, window_s=window_s)
            self._write("power", case, **held)
            return
        timed = self._timer.time(work.calls)
        less = self._timer.time(work.less) if work.less else None
        self._write(
            "kernel", case,
            seconds=timed.seconds - (less.seconds if less else 0.0),
            spread=round(timed.spread, 4), repeats=timed.repeats, sets=len(work.calls),
            host_s=timed.host_s - (less.host_s if less else 0.0),
            clock_mhz=self._sensor.clock_mhz(), power_w=None,
            window_s=timed.seconds * timed.repeats * timed.rounds, workspace_bytes=None,
            **work.note,
        )  # fmt: skip
        if case.family == "rnn":
            self._write("profile", case, **self._kernels(work.calls[0]))

    def _step(self, case: CalibrationCase) -> None:
        made: list[SubjectTraining] = []

        def training(bench: CalibrationDevice, params: Mapping[str, object]) -> SubjectTraining:
            made.append(SubjectTraining(bench, params, subject))
            return made[0]

        warm_up_s, window_s = self._step_s
        found = measure_step(
            self._bench, case.params, self._sensor, warm_up_s=warm_up_s, window_s=window_s,
            build=training,
        )  # fmt: skip
        step = made[0].step
        pause_s = max(1.2 * float(str(found["step_s"])), LEAST_PAUSE_S)
        self._write("step", case, **{**found, "paused": self._paused(step, pause_s)})
        self._write("profile", case, **self._kernels(step))

    def _paused(self, step: Callable[[], None], pause_s: float) -> Mapping[str, object]:
        """Return the power of the step with a pause after it, in which the GPU is idle."""

        def paced() -> None:
            step()
            self._bench.synchronize()
            time.sleep(pause_s)

        paced()
        done = 0
        with SensorSampler(self._sensor) as watch:
            begin_s = time.perf_counter()
            while done < 3 or time.perf_counter() - begin_s < self._paused_s:
                paced()
                done += 1
            end_s = time.perf_counter()
            drawn = watch.drawn(begin_s, end_s)
        return {
            "pause_s": pause_s,
            "period_s": (end_s - begin_s) / done,
            "power_w": drawn.power_w,
            "clock_mhz": drawn.clock_mhz,
            "temp_c": drawn.temp_c,
        }

    def _kernels(self, call: Callable[[], Any]) -> Mapping[str, object]:
        """Return number, duration and names of the kernels of one call."""
        if not self._bench.on_gpu:
            return {"count": None, "busy_s": None, "kernels": []}
        from torch.profiler import ProfilerActivity, profile

        call()
        self._bench.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as taken:
            call()
            self._bench.synchronize()
        rows = [
            [event.key[:LONGEST_NAME], event.count, round(float(event.self_device_time_total), 2)]
            for event in taken.key_averages()
            if float(event.self_device_time_total) > 0 and not event.key.startswith("Optimizer.")
        ]
        return {
            "count": sum(r[1] for r in rows),
            "busy_s": sum(r[2] for r in rows) / 1e6,
            "kernels": sorted(rows, key=lambda r: -r[2])[:MOST_KERNELS],
        }

    def _write(self, record: str, case: CalibrationCase, **more: object) -> None:
        head = {"record": record, "case": case.key, "family": case.family}
        self._file.write({**head, "params": dict(case.params), "error": None, **more})


def _steps() -> Iterator[CalibrationCase]:
    """Yield a known step after every three fresh ones."""
    known = iter(KNOWN)
    for number, text in enumerate(FRESH):
        yield _step_case(text)
        if number % 3 == 2:
            yield from (_step_case(each) for each in [next(known, "")] if each)


def _step_case(text: str) -> CalibrationCase:
    name, batch, precision = text.split()
    return CalibrationCase("steps", "step", row(model=name, batch=int(batch), precision=precision))


def _recurrent() -> Iterator[CalibrationCase]:
    """Yield the same layers in each precision, so that only the precision differs."""
    pick = random.Random("later rnn")
    for _ in range(60):
        cell = pick.choice(("lstm", "gru"))
        layers, hidden = pick.choice((1, 2, 3, 4)), pick.choice((128, 256, 384, 512, 768, 1024))
        batch, seq = pick.choice((16, 32, 64, 128, 256, 512)), pick.choice((32, 50, 100, 200, 400))
        inputs = pick.choice((64, hidden))
        if layers * seq > 600 or hidden * hidden * batch * seq * layers > 2e10:
            continue
        for dtype in ("bf16", "tf32", "fp32"):
            for direction in ("forward", "backward"):
                yield CalibrationCase("kernels", "rnn", row(
                    dtype=dtype, cell=cell, layers=layers, input=inputs, hidden=hidden,
                    batch=batch, seq=seq, bidirectional=False, direction=direction,
                ))  # fmt: skip


def _half() -> Iterator[CalibrationCase]:
    """Yield recurrent layers in fp16, the type in which autocast runs them in any case."""
    sizes = [case.params for case in _recurrent() if case.params["dtype"] == "bf16"]
    pick = random.Random("half")
    for _ in range(16):
        for cell in ("lstm", "gru"):
            few = row(
                cell=cell, layers=pick.choice((1, 2, 3)), input=pick.choice((16, 64, 128)),
                hidden=pick.choice((64, 96, 128)), batch=pick.choice((16, 64, 256, 512, 1024)),
                seq=pick.choice((32, 60, 100, 200, 400)), bidirectional=False,
            )  # fmt: skip
            sizes += [{**few, "direction": direction} for direction in ("forward", "backward")]
    pairs = [sizes[number : number + 2] for number in range(0, len(sizes), 2)]
    pick.shuffle(pairs)
    for each in (each for pair in pairs for each in pair):
        yield CalibrationCase("kernels", "rnn", {**each, "dtype": "fp16"})


def _products() -> Iterator[CalibrationCase]:
    """Yield products of scores and their sums in windows and short sequences, by layout."""
    pick = random.Random("later products")
    sizes = [
        (
            pick.choice((16, 49, 64, 64, 128, 196)),
            pick.choice((16, 32, 32, 64)),
            pick.choice((384, 768, 1536, 3072, 6144, 12288)),
        )
        for _ in range(24)
    ]
    for places, width, number in dict.fromkeys(sizes):
        for dtype in ("bf16", "tf32", "fp32"):
            scores = (places, places, width)
            sums = (places, width, places)
            for m, n, k, layout in ((*scores, "nt"), (*sums, "nn"), (*sums, "tn")):
                yield CalibrationCase("kernels", "gemm", gemm_row(dtype, m, n, k, layout, b=number))


def _convolutions() -> Iterator[CalibrationCase]:
    """Yield layers of networks that halve the picture and double its channels."""
    pick = random.Random("later convolutions")
    cases: list[CalibrationCase] = []
    for side in (7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256):
        for width in (7168 // side, 14336 // side, 16384 // side, 8192 // side):
            channels = 2 ** round(math.log2(min(max(width, 32), 1024)))
            for c_in, c_out in ((channels, channels), (channels, 2 * channels),
                                (2 * channels, channels)):  # fmt: skip
                for n in (16, 32, 64, 128):
                    if n * side**2 * c_in * c_out * 18 > 4e11:
                        continue
                    layer = conv_row(n, c_in, c_out, 3, 1, side)
                    cases += [
                        CalibrationCase("kernels", "conv", {
                            **layer, "dtype": dtype, "direction": direction
                        })
                        for dtype in ("fp32", "tf32")
                        for direction in DIRECTIONS
                    ]  # fmt: skip
    unlike = list({case.key: case for case in cases}.values())
    pick.shuffle(unlike)
    # twice as many in fp32, where algorithms differ most
    return iter(
        sorted(unlike, key=lambda case: pick.random() * (1 + (case.params["dtype"] == "tf32")))
    )


def _held() -> Iterator[CalibrationCase]:
    for cell, hidden, batch, layers in (
        ("lstm", 1024, 256, 3), ("gru", 256, 2048, 3), ("gru", 1024, 256, 2), ("lstm", 512, 64, 4),
    ):  # fmt: skip
        for dtype in ("bf16", "tf32", "fp32"):
            yield CalibrationCase("power", "rnn", row(
                dtype=dtype, cell=cell, layers=layers, input=128, hidden=hidden, batch=batch,
                seq=60, bidirectional=False, direction="forward",
            ))  # fmt: skip
    for dtype in ("bf16", "tf32", "fp32"):
        windows = gemm_row(dtype, 64, 64, 32, "nt", b=12288)
        yield CalibrationCase("power", "gemm", windows)


def _tiny(name: str, cases: Sequence[CalibrationCase]) -> list[CalibrationCase]:
    """Yield cases of the same kinds that a CPU can run."""
    if name == "steps":
        small = ("lstm_long@10 2 bf16", "gru@10 2 tf32", "resnet20_cifar@32 2 fp32",
                 "deepfm@4 2 bf16", "mobilebert@8 1 bf16")  # fmt: skip
        return [_step_case(each) for each in small]
    recurrent = {"layers": 1, "hidden": 8, "batch": 2, "seq": 3, "input": 4}
    small = {"rnn": recurrent, "gemm": {"b": 3}, "conv": {"n": 1, "side": 7, "c_in": 8}}
    return [
        CalibrationCase(
            each.section, each.family, {**each.params, **small[each.family], "number": number}
        )
        for number, each in enumerate(cases[:4])
    ]


if __name__ == "__main__":
    sys.exit(main())
