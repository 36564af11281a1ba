"""Energy per training step on a real GPU: what it costs, and whether it is right.

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
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.core.settings import Settings
from wattloop.integrations.torch_loop import EnergyMeter
from wattloop.measure.session import Session

TARGET_S = 0.012
STEPS_SUMMED = 1_000
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "h200_steps.md"


def main() -> int:
    arguments = parsed()
    if arguments.watch:
        return watch()
    import torch

    if arguments.train:
        return train(Work(torch, arguments.device), arguments.minute_s)

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("h200_steps: no CUDA GPU here; nothing measured")
        return 0
    work = Work(torch, arguments.device)
    counter = Counter(arguments.device)
    print(f"{work.name}: {work.layers} layers, {1e3 * work.step_s:.2f} ms a step")
    report = Report(work.name, work.step_s, work.layers)
    overheads(report, work, counter, arguments.rounds, arguments.steps)
    summed(report, work, counter)
    minute(report, work, counter, arguments.minute_s, arguments.device)
    commanded(report, counter, arguments.minute_s, arguments.device)
    print(report.text())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"bars": report.bars()}, indent=2) + "\n")
    if arguments.device == "cuda" and not arguments.no_report:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(report.markdown())
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the bars to this file")
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds of blocks")
    parser.add_argument("--steps", type=int, default=200, help="steps per block")
    parser.add_argument("--minute-s", type=float, default=60.0, help="length of the long part")
    parser.add_argument("--no-report", action="store_true", help="leave the page in docs/ alone")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the script itself"
    )
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


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
        """One step; its loss stays where it is."""
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
    """The driver's energy counter of the GPU that torch uses, read by nobody but this script."""

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
        """What Wattloop calls this GPU."""
        return f"gpu:{self._nvml.nvmlDeviceGetIndex(self._handle)}"

    def read_j(self) -> float:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1_000

    def tick(self, meanwhile: Callable[[], Any]) -> tuple[float, float]:
        """Time and joules just after the counter changed, while the GPU is kept busy."""
        last_j = self.read_j()
        while True:
            meanwhile()
            begin_s = time.monotonic()
            now_j = self.read_j()
            if now_j != last_j:
                return (begin_s + time.monotonic()) / 2, now_j
            last_j = now_j


@dataclass
class Report:
    """What was found."""

    device: str
    step_s: float
    layers: int
    blocks_s: dict[str, list[float]] = field(default_factory=dict)
    overhead_pct: dict[str, float] = field(default_factory=dict)
    spread_pct: dict[str, float] = field(default_factory=dict)
    sum_error_pct: float = float("nan")
    step_uncertainty_pct: float = float("nan")
    callback_error_pct: float = float("nan")
    watcher_error_pct: float = float("nan")
    command_error_pct: float = float("nan")
    facts: dict[str, float] = field(default_factory=dict)

    def bars(self) -> list[dict[str, Any]]:
        others = {k: round(v, 3) for k, v in self.overhead_pct.items() if k != "ours"}
        rows = [
            ("step_overhead_pct", self.overhead_pct["ours"], 0.5, others),
            ("steps_sum_error_pct", self.sum_error_pct, 1.0, {}),
            ("callback_error_pct", self.callback_error_pct, 1.0, {}),
            ("watcher_error_pct", self.watcher_error_pct, 1.0, {}),
            ("wattloop_run_error_pct", self.command_error_pct, 1.0, {}),
        ]
        return [
            {"name": name, "value": round(value, 4), "unit": "%", "bar": bar, "baselines": base}
            for name, value, bar, base in rows
        ]

    def text(self) -> str:
        lines = [f"{'loop':42} {'ms a step':>10} {'over plain':>11} {'spread':>8}"]
        for name, label in LABELS.items():
            if name in self.blocks_s:
                step_ms = 1e3 * statistics.median(self.blocks_s[name])
                over = "" if name == "plain" else f"{self.overhead_pct[name]:+.2f} %"
                spread = "" if name == "plain" else f"{self.spread_pct[name]:.2f} %"
                lines.append(f"{label:42} {step_ms:10.3f} {over:>11} {spread:>8}")
        lines += [
            f"sum over {STEPS_SUMMED} steps against the counter: {self.sum_error_pct:.3f} %",
            f"uncertainty stated for a step (median): {self.step_uncertainty_pct:.1f} %",
            f"the loop's meter against the counter: {self.callback_error_pct:.3f} %",
            f"a watcher beside it against the counter: {self.watcher_error_pct:.3f} %",
            f"`wattloop run` of a program against the counter: {self.command_error_pct:.3f} %",
        ]
        return "\n".join(lines + [f"{name}: {value:.6g}" for name, value in self.facts.items()])

    def markdown(self) -> str:
        rows = []
        for name, label in LABELS.items():
            if name in self.blocks_s:
                step_ms = 1e3 * statistics.median(self.blocks_s[name])
                over = "" if name == "plain" else f"{self.overhead_pct[name]:+.2f} %"
                rows.append(f"| {label} | {step_ms:.3f} | {over} |")
        checks = [
            f"| {bar['name']} | {bar['value']:.3f} % | {bar['bar']} % |" for bar in self.bars()
        ]
        return "\n".join(
            [
                "# Energy per step on a GPU",
                "",
                f"Made by `benchmarks/h200_steps.py` on {self.device}: {self.layers} transformer "
                "layers in bf16, nothing set on the GPU. Medians of alternating blocks, each "
                "compared with the plain blocks beside it.",
                "",
                "| loop | ms a step | over plain |",
                "|---|---|---|",
                *rows,
                "",
                "| check | found | bar |",
                "|---|---|---|",
                *checks,
                "",
                f"Median uncertainty stated for one step: {self.step_uncertainty_pct:.1f} %.",
                "",
            ]
        )


LABELS = {
    "plain": "plain loop",
    "ours": "Wattloop, every step",
    "synchronised": "synchronised at both edges",
    "counter": "two counter reads a step",
    "zeus": "the Zeus library, a window a step",
}


def overheads(report: Report, work: Work, counter: Counter, rounds: int, steps: int) -> None:
    """Blocks in turn; each is compared with the mean of the plain blocks before and after it."""
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
        # Others than plain change places every round: whoever runs first finds a cooler GPU.
        names = list(ratios)
        for name in names if number % 2 == 0 else reversed(names):
            taken_s = block_s(work, loops[name], steps)
            after_s = block_s(work, loops["plain"], steps)
            blocks[name].append(taken_s / steps)
            blocks["plain"].append(after_s / steps)
            ratios[name].append(100 * (taken_s / ((before_s + after_s) / 2) - 1))
            before_s = after_s
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    report.blocks_s = blocks
    report.overhead_pct = {name: statistics.median(r) for name, r in ratios.items()}
    report.spread_pct = {name: statistics.pstdev(r) for name, r in ratios.items()}


def block_s(work: Work, loop: Callable[[int], None], steps: int) -> float:
    """Seconds from an idle GPU to an idle GPU, after some unmeasured steps."""
    loop.__call__(0)
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
    if not steps:
        return
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
    """The Zeus library's own window around every step; None where it is not installed."""
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


def summed(report: Report, work: Work, counter: Counter) -> None:
    """Mean power of 1,000 steps by their own sum, and by the counter over the same stretch.

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
    report.sum_error_pct = 100 * abs(sum_j / length_s / raw_w - 1)
    report.step_uncertainty_pct = 100 * statistics.median(u / j for j, u in found if j > 0)
    report.facts["sum over the steps, J"] = sum_j
    report.facts["seconds from first to last edge"] = length_s
    report.facts["mean power by the counter, W"] = raw_w


def minute(report: Report, work: Work, counter: Counter, length_s: float, device: str) -> None:
    """The meter in the loop and a watcher beside it, against the counter read at both ends."""
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
    report.callback_error_pct = 100 * abs(ours_j / raw_j - 1)
    report.watcher_error_pct = 100 * abs(float(answer) / raw_j - 1)
    report.facts["joules by the counter over the long part"] = raw_j
    report.facts["joules by the loop's meter"] = ours_j
    report.facts["joules by the watcher"] = float(answer)
    report.facts["seconds of the long part"] = end_s - begin_s


def commanded(report: Report, counter: Counter, length_s: float, device: str) -> None:
    """`wattloop run` of a program that trains for a minute, against the counter read around it."""
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
    report.command_error_pct = 100 * abs(ours_j / raw_j - 1)
    report.facts["joules by the counter around `wattloop run`, idle outside taken off"] = raw_j
    report.facts["joules by `wattloop run`"] = ours_j
    report.facts["seconds outside the run"] = outside_s


def train(work: Work, length_s: float) -> int:
    """The program that `wattloop run` measures: knows nothing of Wattloop."""
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        for _ in range(50):
            work.step()
        work.synchronise()
    return 0


def watch() -> int:
    """A process of its own, as `wattloop run` is: measures until it is told the interval."""
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
