"""Energy per training step on a real GPU: cost and accuracy of the measurement.

    python benchmarks/h200_steps.py [--json FILE]

Needs a CUDA GPU with an energy counter (Volta and later), torch and nvidia-ml-py; takes about four
minutes. It only reads: no power limit, clock or mode is ever set.

1. Alternating blocks of the same GPU-bound training: plain; ours; synchronised edges; two reads of
   the energy counter per step (what the Zeus library does); the Zeus library, where installed.
2. The sum over 1,000 steps against the raw counter.
3. A minute of training: the meter in the loop, and a watcher in a process of its own, against the
   raw counter, which this script reads itself at both ends.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bars import Bar, Page, Table, arguments, publish
from wattloop.core.settings import Settings
from wattloop.integrations.torch_loop import EnergyMeter
from wattloop.measure.session import Session

TARGET_S = 0.012
STEPS_SUMMED = 1_000


def main() -> int:
    chosen = parsed()
    if chosen.watch:
        return watch()
    import torch

    if chosen.train:
        return train(Work(torch, chosen.device), chosen.minute_s)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("h200_steps: no CUDA GPU here; nothing measured")
        return 0
    work = Work(torch, chosen.device)
    counter = Counter(chosen.device)
    print(f"{work.name}: {work.layers} layers, {1e3 * work.step_s:.2f} ms a step", file=sys.stderr)
    findings = Findings(work.name, work.layers)
    overheads(findings, work, counter, chosen.rounds, chosen.steps)
    summed(findings, work, counter)
    minute(findings, work, counter, chosen.minute_s, chosen.device)
    commanded(findings, counter, chosen.minute_s, chosen.device)
    publish(findings.page(), chosen)
    return 0


def parsed() -> argparse.Namespace:
    parser = arguments("energy per training step on a real GPU: its cost and its error")
    parser.add_argument("--rounds", type=int, help="alternating rounds of blocks")
    parser.add_argument("--steps", type=int, default=180, help="steps per block")
    parser.add_argument("--minute-s", type=float, help="length of the long part")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the script itself"
    )
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 7)
    chosen.minute_s = chosen.minute_s or (5.0 if chosen.quick else 60.0)
    chosen.quick = chosen.quick or chosen.device == "cpu"  # no page from a trial
    return chosen


class Work:
    """Training steps of a stack of transformer layers, about 12 ms each, bound by the GPU."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.on_gpu = device == "cuda"
        self.name = torch.cuda.get_device_name() if self.on_gpu else "a CPU (to try the script)"
        self.width, self.batch, self.length = (2048, 4, 1024) if self.on_gpu else (32, 2, 16)
        self.layers = 1
        self._build()
        if self.on_gpu:
            one_s = self._timed_s(20)
            self.layers = 3
            self._build()
            each_s = (self._timed_s(20) - one_s) / 2
            self.layers = max(1, round(1 + (TARGET_S - one_s) / each_s))
            self._build()
        self.step_s = self._timed_s(50)

    def step(self) -> Any:
        """Run one step; its loss stays on the device."""
        loss = self.model(self.data).float().pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def synchronise(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def _build(self) -> None:
        torch = self.torch
        kind = {"device": "cuda", "dtype": torch.bfloat16} if self.on_gpu else {}
        self.model = torch.nn.Sequential(
            *(
                torch.nn.TransformerEncoderLayer(
                    self.width, max(1, self.width // 128), 4 * self.width,
                    dropout=0.0, activation="gelu", batch_first=True, norm_first=True, **kind,
                )
                for _ in range(self.layers)
            )
        )  # fmt: skip
        self.data = torch.randn(self.batch, self.length, self.width, **kind)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        for _ in range(10):
            self.step()

    def _timed_s(self, steps: int) -> float:
        self.synchronise()
        begin_s = time.monotonic()
        for _ in range(steps):
            self.step()
        self.synchronise()
        return (time.monotonic() - begin_s) / steps


class Counter:
    """The driver's energy counter of the GPU that torch uses, read only by this script."""

    def __init__(self, device: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = self._find(device)

    def _find(self, device: str) -> Any:
        if device == "cuda":
            import torch

            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            return self._nvml.nvmlDeviceGetHandleByUUID(name.encode())
        return self._nvml.nvmlDeviceGetHandleByIndex(0)

    @property
    def domain(self) -> str:
        """Return Wattloop's name of this GPU."""
        return f"gpu:{self._nvml.nvmlDeviceGetIndex(self._handle)}"

    def read_j(self) -> float:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1_000

    def tick(self, meanwhile: Callable[[], Any]) -> tuple[float, float]:
        """Return time and joules just after the counter changed, while the GPU is kept busy."""
        last_j = self.read_j()
        while True:
            meanwhile()
            begin_s = time.monotonic()
            now_j = self.read_j()
            if now_j != last_j:
                return (begin_s + time.monotonic()) / 2, now_j
            last_j = now_j


@dataclass
class Findings:
    """Results of the benchmark."""

    device: str
    layers: int
    blocks_s: dict[str, list[float]] = field(default_factory=dict)
    ratios_pct: dict[str, list[float]] = field(default_factory=dict)
    sum_error_pct: float = math.nan
    step_uncertainty_pct: float = math.nan
    callback_error_pct: float = math.nan
    watcher_error_pct: float = math.nan
    command_error_pct: float = math.nan
    facts: dict[str, float] = field(default_factory=dict)

    def page(self) -> Page:
        over_pct = {name: statistics.median(ratios) for name, ratios in self.ratios_pct.items()}
        others = {LABELS[name]: pct for name, pct in over_pct.items() if name != "ours"}
        bars = [
            Bar("step_overhead_pct", over_pct["ours"], "%", 0.5, others),
            Bar("steps_sum_error_pct", self.sum_error_pct, "%", 1.0),
            Bar("callback_error_pct", self.callback_error_pct, "%", 1.0),
            Bar("watcher_error_pct", self.watcher_error_pct, "%", 1.0),
            Bar("wattloop_run_error_pct", self.command_error_pct, "%", 1.0),
            Bar(
                "step_uncertainty_pct",
                self.step_uncertainty_pct,
                "%",
                note="median half-width stated for one step, as a share of its energy",
            ),
        ]
        rows = []
        for name, label in LABELS.items():
            if name in self.blocks_s:
                step_ms = 1e3 * statistics.median(self.blocks_s[name])
                ratios = self.ratios_pct.get(name)
                spread = None if ratios is None else statistics.pstdev(ratios)
                rows.append([label, step_ms, over_pct.get(name), spread])
        header = ["loop", "ms a step", "over plain, %", "spread of the rounds, %"]
        return Page(
            "h200_steps",
            "Energy per step on a GPU",
            bars,
            [
                Table("Alternating blocks", header, rows),
                Table("Further figures", ["", "value"], list(self.facts.items())),
            ],
            text=f"{self.device}, {self.layers} transformer layers in bf16. Nothing is set on the "
            "GPU. Each block is compared with the plain blocks before and after it; the figures "
            "are medians.",
            packages=("wattloop", "torch", "nvidia-ml-py", "zeus"),
        )


LABELS = {
    "plain": "plain loop",
    "ours": "Wattloop, every step",
    "synchronised": "synchronised at both edges",
    "counter": "two counter reads a step",
    "zeus": "the Zeus library, a window a step",
}


def overheads(findings: Findings, work: Work, counter: Counter, rounds: int, steps: int) -> None:
    """Run blocks in turn; each is compared with the mean of the plain blocks before and after
    it.
    """
    loops: dict[str, Callable[[int], None]] = {
        "plain": lambda n: plain(work, n),
        "ours": lambda n: ours(work, n),
        "synchronised": lambda n: synchronised(work, n),
        "counter": lambda n: counted(work, counter, n),
    }
    zeus = zeus_loop(work)
    if zeus is not None:
        loops["zeus"] = zeus
    blocks: dict[str, list[float]] = {name: [] for name in loops}
    ratios: dict[str, list[float]] = {name: [] for name in loops if name != "plain"}
    before_s = block_s(work, loops["plain"], steps)
    for number in range(rounds):
        # Variants other than plain change places every round: the first one finds a cooler GPU.
        names = list(ratios)
        for name in names if number % 2 == 0 else reversed(names):
            taken_s = block_s(work, loops[name], steps)
            after_s = block_s(work, loops["plain"], steps)
            blocks[name].append(taken_s / steps)
            blocks["plain"].append(after_s / steps)
            ratios[name].append(100 * (taken_s / ((before_s + after_s) / 2) - 1))
            before_s = after_s
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    findings.blocks_s, findings.ratios_pct = blocks, ratios


def block_s(work: Work, loop: Callable[[int], None], steps: int) -> float:
    """Return the seconds from an idle GPU to an idle GPU, after some unmeasured steps."""
    plain(work, 5)
    work.synchronise()
    TIMES.clear()
    loop(steps)
    return TIMES["end"] - TIMES["begin"]


TIMES: dict[str, float] = {}
"""When the timed part of the last block began and ended: set-up lies outside it."""


def plain(work: Work, steps: int) -> None:
    TIMES["begin"] = time.monotonic()
    for _ in range(steps):
        work.step()
    work.synchronise()
    TIMES["end"] = time.monotonic()


def ours(work: Work, steps: int) -> None:
    with EnergyMeter("overhead", store=os.environ["WATTLOOP_STORE"]) as meter:
        meter.epoch_begin()
        work.synchronise()
        TIMES["begin"] = time.monotonic()
        for _ in range(steps):
            with meter.step() as step:
                step.loss = work.step()
        work.synchronise()
        TIMES["end"] = time.monotonic()
    if meter.fault is not None or len(meter.steps) != steps:
        raise RuntimeError(f"only {len(meter.steps)} of {steps} steps: {meter.fault}")


def synchronised(work: Work, steps: int) -> None:
    TIMES["begin"] = time.monotonic()
    for _ in range(steps):
        work.synchronise()
        work.step()
        work.synchronise()
    TIMES["end"] = time.monotonic()


def counted(work: Work, counter: Counter, steps: int) -> None:
    TIMES["begin"] = time.monotonic()
    for _ in range(steps):
        work.synchronise()
        counter.read_j()
        work.step()
        work.synchronise()
        counter.read_j()
    TIMES["end"] = time.monotonic()


def zeus_loop(work: Work) -> Callable[[int], None] | None:
    """Run the Zeus library's own window around every step; None without the library."""
    if not work.on_gpu:
        return None
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError:
        return None
    try:
        monitor = ZeusMonitor(gpu_indices=[work.torch.cuda.current_device()])
    except Exception as error:  # noqa: BLE001 - a peer that does not start here is left out
        print(f"the Zeus library does not start: {error}", file=sys.stderr)
        return None

    def loop(steps: int) -> None:
        TIMES["begin"] = time.monotonic()
        for _ in range(steps):
            monitor.begin_window("step")
            work.step()
            monitor.end_window("step")
        TIMES["end"] = time.monotonic()

    return loop


def summed(findings: Findings, work: Work, counter: Counter) -> None:
    """Mean power of 1,000 steps by their own sum, and by the counter over the same time.

    The GPU is kept busy before, between and after, so that the few milliseconds between a step's
    edge and the counter's next change are at the same power.
    """
    with EnergyMeter("summed", store=os.environ["WATTLOOP_STORE"]) as meter:
        for _ in range(100):
            work.step()
        begin_s, begin_j = counter.tick(work.step)
        meter.epoch_begin()
        for _ in range(STEPS_SUMMED):
            with meter.step() as step:
                step.loss = work.step()
        meter.epoch_end()
        end_s, end_j = counter.tick(work.step)
        work.synchronise()
    steps = meter.steps
    if len(steps) != STEPS_SUMMED or any(s.loss is None for s in steps):
        raise RuntimeError(f"only {len(steps)} of {STEPS_SUMMED} steps: {meter.fault}")
    found = [s.energy[counter.domain] for s in steps]
    sum_j = sum(joules for joules, _ in found)
    length_s = steps[-1].end_s - steps[0].begin_s
    raw_w = (end_j - begin_j) / (end_s - begin_s)
    findings.sum_error_pct = 100 * abs(sum_j / length_s / raw_w - 1)
    findings.step_uncertainty_pct = 100 * statistics.median(u / j for j, u in found if j > 0)
    findings.facts["sum over the steps, J"] = sum_j
    findings.facts["seconds from first to last edge"] = length_s
    findings.facts["mean power by the counter, W"] = raw_w


def minute(findings: Findings, work: Work, counter: Counter, length_s: float, device: str) -> None:
    """Compare the meter in the loop and a separate watcher with the counter read at both ends."""
    command = [sys.executable, __file__, "--watch", "--device", device]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdout.readline()
    for _ in range(100):
        work.step()
    begin_s, begin_j = counter.tick(work.step)
    meter = EnergyMeter("minute", store=os.environ["WATTLOOP_STORE"]).begin()
    epoch = 0
    while time.monotonic() - begin_s < length_s:
        epoch += 1
        with meter.epoch():
            for _ in range(250):
                with meter.step() as step:
                    step.loss = work.step()
    end_s, end_j = counter.tick(work.step)
    meter.end()
    work.synchronise()
    answer, _ = watcher.communicate(f"{begin_s} {end_s} {counter.domain}\n", timeout=60)
    raw_j = end_j - begin_j
    result = meter.result
    if result is None or meter.fault is not None:
        raise RuntimeError(f"not measured: {meter.fault}")
    ours_j = next(d.energy_j for d in result.domains if d.name == counter.domain) or 0.0
    findings.callback_error_pct = 100 * abs(ours_j / raw_j - 1)
    findings.watcher_error_pct = 100 * abs(float(answer) / raw_j - 1)
    findings.facts["joules by the counter over the long part"] = raw_j
    findings.facts["joules by the loop's meter"] = ours_j
    findings.facts["joules by the watcher"] = float(answer)
    findings.facts["seconds of the long part"] = end_s - begin_s


def commanded(findings: Findings, counter: Counter, length_s: float, device: str) -> None:
    """Compare `wattloop run` of a program that trains for a minute with the counter."""
    time.sleep(3.0)
    idle_begin_s, idle_begin_j = counter.tick(lambda: None)
    time.sleep(2.0)
    begin_s, begin_j = counter.tick(lambda: None)
    idle_w = (begin_j - idle_begin_j) / (begin_s - idle_begin_s)
    out = Path(os.environ["WATTLOOP_STORE"]).with_name("commanded.json")
    run = [sys.executable, "-m", "wattloop.cli.main", "run", "--quiet", "--json", str(out), "--"]
    program = [sys.executable, __file__, "--train", "--minute-s", str(length_s)]
    subprocess.run([*run, *program, "--device", device], check=True)
    end_s, end_j = counter.tick(lambda: None)
    data = json.loads(out.read_text())
    ours_j = next(d["energy_j"] for d in data["domains"] if d["name"] == counter.domain)
    outside_s = end_s - begin_s - data["duration_s"]
    raw_j = end_j - begin_j - idle_w * outside_s
    findings.command_error_pct = 100 * abs(ours_j / raw_j - 1)
    findings.facts["J by the counter around `wattloop run`, idle outside taken off"] = raw_j
    findings.facts["J by `wattloop run`"] = ours_j
    findings.facts["seconds outside the run"] = outside_s


def train(work: Work, length_s: float) -> int:
    """Train without any import of Wattloop, under `wattloop run`."""
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        for _ in range(50):
            work.step()
        work.synchronise()
    return 0


def watch() -> int:
    """Measure in a process of its own, as `wattloop run` does, until the interval is given."""
    session = Session.open(Settings(), name="watcher", in_process=False, keep=False)
    print("ready", flush=True)
    begin_s, end_s, domain = sys.stdin.readline().split()
    session.close()
    result = session.between(float(begin_s), float(end_s))
    print(next(d.energy_j for d in result.domains if d.name == domain))
    return 0


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("WATTLOOP_STORE", str(Path(folder) / "runs.db"))
        os.environ.pop("WATTLOOP_JOB", None)
        sys.exit(main())
