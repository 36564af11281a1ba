"""Compiled training steps of many networks on one GPU, each next to its eager twin.

    python benchmarks/collect_compiled.py --out compiled_steps.jsonl --minutes 8.5

A network is a process. Networks are compiled in waves, several at once, because the host compiles
and the GPU waits. When a wave is ready its networks are measured one after the other, while every
other process is stopped: a measurement has the machine to itself. Each row is written at once.

The GPU is only read; neither its power limit nor its clocks are set.
"""

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ANSWER = "@@"
"""Begins a line by which a network's process answers; libraries print other lines."""
LONGEST_NAME = 140
PROFILED_STEPS = 3
RANGES = ("Optimizer.", "##", "Torch-Compiled", "ProfilerStep", "CompiledFunction")
"""Beginnings of names of ranges around kernels."""


@dataclass(frozen=True)
class Network:
    """One network, and the settings in which its step is measured.

    Attributes:
        name: `model@size`, of the calibration's zoo or of `predict_zoo`.
        variants: batch, precision and compile modes; the eager twin is always measured.
        style: of the optimizer, `foreach` or `fused`.
    """

    name: str
    variants: tuple[tuple[int, str, tuple[str, ...]], ...]
    style: str = "foreach"


def _plain(name: str, batch: int, precision: str = "bf16", *modes: str) -> Network:
    return Network(name, ((batch, precision, modes or ("default",)),))


GRAPHS = "reduce-overhead"
NETWORKS = (
    # Kinds first: what is measured in nine minutes is a prefix of this list.
    Network("gpt2@1024", ((8, "bf16", ("default", GRAPHS)),)),
    Network("resnet50@224", ((128, "bf16", ("default",)), (16, "bf16", ("default", GRAPHS)))),
    Network("bert_base@128", ((32, "bf16", ("default",)), (4, "bf16", ("default", GRAPHS)))),
    _plain("llama_300m@1024", 8),
    _plain("t5_small@256", 32),
    _plain("convnext_tiny@224", 64),
    _plain("unet@128", 16),
    Network("mobilenet_v2@224", ((128, "bf16", ("default",)), (8, "bf16", ("default", GRAPHS)))),
    _plain("deit_small@224", 64, "bf16", "default", GRAPHS),
    _plain("lstm_lm@35", 80),
    _plain("mlp_4096x6", 2048, "bf16", "default", GRAPHS),
    _plain("swin_tiny@224", 64),
    # The same kinds with other sizes, and other arithmetic.
    _plain("vit_b_16@224", 64),
    _plain("opt_125m@512", 16, "tf32"),
    _plain("dlrm@26", 4096),
    _plain("efficientnet_b0@224", 128),
    _plain("resnet34@32", 1024, "tf32"),
    Network("tinyllama_1b@512", ((4, "bf16-pure", ("default",)),), "fused"),
    _plain("mixer_s16@224", 64),
    _plain("roberta_base@256", 32),
    _plain("wide_resnet28_4@32", 256, "bf16", "default", GRAPHS),
    _plain("tabular_resnet@64", 8192, "tf32"),
    _plain("bart_base@256", 16),
    _plain("regnet_x_400mf@224", 128),
    _plain("qwen2_500m@512", 4),
    _plain("transformer_lm@128", 32),
    _plain("albert_base_v2@256", 32),
    _plain("resnext50@224", 64, "tf32"),
    _plain("segformer_b0@224", 64),
    _plain("pythia_160m@1024", 4),
    _plain("darknet53@256", 32),
    _plain("gpt2_medium@256", 8),
    _plain("whisper_tiny@128", 16),
    _plain("electra_small@128", 64, "tf32"),
    _plain("squeezenet@224", 128),
    _plain("gru_speech@400", 64),
    _plain("vgg16@224", 64),
    _plain("densenet121@224", 64),
    _plain("distilbert_base@256", 32, "tf32"),
    _plain("googlenet@224", 128),
    _plain("xception@224", 64),
    _plain("shufflenet_v2@224", 128),
    _plain("t5_gated@256", 16),
    _plain("mobilevit_small@256", 64),
)


def main() -> None:
    """Collect for at most `--minutes`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("compiled_steps.jsonl"))
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--wave", type=int, default=12, help="networks compiled at once")
    parser.add_argument("--wave-s", type=float, default=75.0, help="longest wait for a wave")
    parser.add_argument("--window-s", type=float, default=2.05)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--batch", type=int, help="use this batch for every network")
    parser.add_argument("--precision", help="use this precision for every network")
    parser.add_argument("--only", nargs="*", help="names of networks")
    parser.add_argument("--network", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.network:
        serve_network(options)
        return
    chosen = [n for n in NETWORKS if not options.only or n.name in options.only]
    collect(chosen, options)


# The process that assigns turns.


@dataclass
class Worker:
    """Process of one network, seen from the parent."""

    network: Network
    process: "subprocess.Popen[str]"
    answers: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    began_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    dead: bool = False

    def listen(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        for line in stream:
            if line.startswith(ANSWER):
                self.answers.put(json.loads(line[len(ANSWER) :]))
        self.answers.put(None)

    def ask(self, word: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def collect(networks: Sequence[Network], options: argparse.Namespace) -> None:
    end_s = time.monotonic() + 60 * options.minutes
    waiting = list(networks)
    late: list[Worker] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as out:

        def write(row: Mapping[str, object]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        while (waiting or late) and time.monotonic() < end_s - 25:
            number = options.wave - len(late)
            wave = late + [started(each, options) for each in waiting[:number]]
            del waiting[:number]
            for worker in late:
                worker.signal(signal.SIGCONT)
            limit_s = min(time.monotonic() + options.wave_s, end_s - 15)
            say(f"compiling {', '.join(w.network.name for w in wave)}")
            prepare(wave, limit_s, write)
            late = [w for w in wave if not (w.ready or w.dead)]
            for worker in late:
                worker.signal(signal.SIGSTOP)
            for worker in wave:
                if worker.ready and not worker.dead:
                    if time.monotonic() < end_s - 8:
                        measure(worker, end_s, write)
                    retire(worker)
        for worker in late:
            write({"network": worker.network.name, "failed": "not compiled in time"})
            retire(worker)
    say("done")


def started(network: Network, options: argparse.Namespace) -> Worker:
    command = [
        sys.executable, str(Path(__file__).resolve()), "--network", network.name,
        "--device", options.device, "--window-s", str(options.window_s),
        "--warm-up-s", str(options.warm_up_s),
    ]  # fmt: skip
    if options.precision:
        command += ["--precision", options.precision]
    if options.batch:
        command += ["--batch", str(options.batch)]
    environment = os.environ | {
        "TORCHINDUCTOR_COMPILE_THREADS": "3",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    worker = Worker(network, process)
    threading.Thread(target=worker.listen, daemon=True).start()
    return worker


def prepare(wave: Sequence[Worker], limit_s: float, write: Callable[..., None]) -> None:
    """Wait until every network of the wave is compiled, has failed, or the time is over."""
    while time.monotonic() < limit_s and not all(w.ready or w.dead for w in wave):
        for worker in wave:
            while not (worker.ready or worker.dead) and not worker.answers.empty():
                answer = worker.answers.get()
                if answer is None:
                    worker.dead = True
                elif "ready" in answer:
                    worker.ready = True
                    taken_s = time.monotonic() - worker.began_s
                    say(f"{worker.network.name}: compiled in {taken_s:.0f} s")
                else:
                    write(answer)
        time.sleep(0.05)


def measure(worker: Worker, end_s: float, write: Callable[..., None]) -> None:
    worker.ask("measure")
    until_s = min(time.monotonic() + 60, end_s)
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            answer = worker.answers.get(timeout=left_s)
        except queue.Empty:
            break
        if answer is None or "measured" in answer:
            return
        write(answer)
        if "step_s" in answer:
            setting = " ".join(str(answer[k]) for k in ("model", "batch", "precision", "mode"))
            power_w = answer["avg_power_w"] or 0
            say(f"{setting}: {answer['step_s'] * 1e3:.2f} ms, {power_w:.0f} W")
    write({"network": worker.network.name, "failed": "measuring took too long"})


def retire(worker: Worker) -> None:
    """End a network's process and wait for it, so that its memory is free."""
    worker.ask("end")
    if not worker.ready:
        worker.signal(signal.SIGKILL)
    try:
        worker.process.wait(timeout=6)
    except subprocess.TimeoutExpired:
        worker.signal(signal.SIGKILL)
        worker.process.wait()


def descendants(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                child = int(path.parent.name)
                yield child
                yield from descendants(child)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# The process of one network.


def serve_network(options: argparse.Namespace) -> None:
    """Compile every variant, report, wait for the turn, measure, then profile."""
    network = next(n for n in NETWORKS if n.name == options.network)
    trainings: list[Training] = []
    try:
        import torch

        net = Net(network, torch.device(options.device))
        for own_batch, own_precision, modes in network.variants:
            batch, precision = options.batch or own_batch, options.precision or own_precision
            trainings.append(Training(net, batch, precision, "eager", network.style))
            for mode in modes:
                training = Training(net, batch, precision, mode, network.style)
                training.compile()
                trainings.append(training)
        net.clear()
    except Exception as error:  # noqa: BLE001 - what does not compile is a row that says so
        answer({"network": network.name, "failed": f"{type(error).__name__}: {error}"[:600]})
        if not trainings:
            return
    answer({"ready": True})
    if sys.stdin.readline().strip() != "measure":
        return
    from wattloop.predict.calibrate.machine import CalibrationDevice, open_sensor

    bench = CalibrationDevice(options.device, 1e6, 1e6)
    sensor = open_sensor(bench)
    for training in trainings:
        try:
            answer(training.measured(bench, sensor, options))
        except Exception as error:  # noqa: BLE001 - likewise
            answer({**training.named, "failed": f"{type(error).__name__}: {error}"[:600]})
    # CUPTI slows what comes after it, so that profiles are taken last.
    for training in trainings:
        if training.mode != "eager" or os.environ.get("PROFILE_EAGER"):
            with contextlib.suppress(Exception):
                answer({**training.named, "profile": training.profiled()})
    answer({"measured": True})
    os._exit(0)  # torch takes seconds to unload


def answer(row: Mapping[str, object]) -> None:
    sys.stdout.write(ANSWER + json.dumps(row) + "\n")
    sys.stdout.flush()


class Net:
    """Model, loss and optimizer that all variants of a network share."""

    def __init__(self, network: Network, device: Any) -> None:
        import torch

        if str(HERE) not in sys.path:
            sys.path.insert(0, str(HERE))
        import predict_nets  # noqa: F401 - `predict_zoo` imports it later, without this folder
        import predict_zoo

        # transformers takes kernels.py of this folder for a package
        sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]
        self.device = device
        self.name = network.name
        self.loss: Callable[[Any, tuple[Any, ...]], Any] = lambda output, _: output
        torch.manual_seed(0)
        if network.name in predict_zoo.ZOO:
            entry = predict_zoo.ZOO[network.name]
            with device:
                self.model = entry.factory()
            self._make = lambda batch: self._random(entry.inputs(batch))
            self.loss = _LOSSES[entry.loss]
        else:
            from wattloop.predict.calibrate.zoo import subject

            with device:
                chosen = subject(network.name)
            self.model = chosen.model
            self._make = lambda batch: (chosen.inputs(batch, device), {})
        self.model.to(device).train()
        if any(precision == "bf16-pure" for _, precision, _ in network.variants):
            self.model.to(torch.bfloat16)
        from wattloop.predict.calibrate.families.optimizer import make_optimizer

        self.optimizer_name = "sgd" if network.name.startswith(("resnet", "vgg")) else "adamw"
        self.optimizer = make_optimizer(
            torch, self.optimizer_name, network.style, self.model.parameters()
        )
        self.params = sum(p.numel() for p in self.model.parameters())

    def inputs(self, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made: tuple[tuple[Any, ...], dict[str, Any]] = self._make(batch)
        return made

    def clear(self) -> None:
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _random(self, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return random numbers and words: equal words would all add to one row of an embedding."""
        import torch

        def like(each: Any) -> Any:
            if each.is_floating_point():
                return torch.randn(each.shape, device=self.device)
            most = 2 if each.dim() == 1 else 30_000
            return torch.randint(most, each.shape, device=self.device)

        if isinstance(given, dict):
            return (), {name: like(each) for name, each in given.items()}
        return tuple(map(like, given)), {}


def _cross_entropy(output: Any, given: tuple[Any, ...]) -> Any:
    import torch

    scores = output.flatten(0, -2)
    targets = torch.zeros(scores.shape[0], dtype=torch.int64, device=scores.device)
    return torch.nn.functional.cross_entropy(scores, targets)


_LOSSES: dict[str | None, Callable[[Any, tuple[Any, ...]], Any]] = {
    None: lambda output, _: output.loss,
    "mse": lambda output, _: (output**2).mean(),
    "cross_entropy": _cross_entropy,
}


class Training:
    """One variant: batch, precision and mode of a network."""

    def __init__(self, net: Net, batch: int, precision: str, mode: str, style: str) -> None:
        self.net, self.batch, self.precision, self.mode, self.style = (
            net, batch, precision, mode, style,
        )  # fmt: skip
        self.args, self.kwargs = net.inputs(batch)
        if precision == "bf16-pure":
            import torch

            self.args = tuple(
                a.to(torch.bfloat16) if a.is_floating_point() else a for a in self.args
            )
        self.call: Any = net.model
        self.compiled: dict[str, object] = {}

    @property
    def named(self) -> dict[str, object]:
        return {
            "model": self.net.name, "batch": self.batch, "precision": self.precision,
            "optimizer": self.net.optimizer_name, "style": self.style, "mode": self.mode,
            "eager": self.mode == "eager",
        }  # fmt: skip

    def compile(self) -> None:
        """Compile forward and backward, and return the duration."""
        import torch
        from torch._dynamo.utils import counters

        counters.clear()
        # Otherwise a second batch makes the shapes dynamic.
        self.call = torch.compile(self.net.model, mode=self.mode, dynamic=False)
        begin_s = time.perf_counter()
        self.step()
        self.synchronize()
        first_s = time.perf_counter() - begin_s
        for _ in range(3):
            self.step()
        self.synchronize()
        self.compiled = {
            "compile_s": first_s,
            "compile_and_warm_s": time.perf_counter() - begin_s,
            "graphs": counters["stats"].get("unique_graphs"),
            "graph_breaks": sum(counters["graph_break"].values()),
            "cache_hits": counters["inductor"].get("fxgraph_cache_hit", 0),
        }
        self.net.optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        import torch

        if self.net.device.type == "cuda":
            torch.cuda.synchronize(self.net.device)

    def step(self) -> None:
        self.forward()
        self.backward()
        self.update()

    def forward(self) -> None:
        import torch

        tf32 = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.net.optimizer.zero_grad(set_to_none=True)
        region: Any = contextlib.nullcontext()
        if self.precision == "bf16":
            region = torch.autocast(self.net.device.type, dtype=torch.bfloat16)
        with region:
            self.lost = self.net.loss(self.call(*self.args, **self.kwargs), self.args)

    def backward(self) -> None:
        self.lost.backward()

    def update(self) -> None:
        self.net.optimizer.step()

    def measured(self, bench: Any, sensor: Any, options: argparse.Namespace) -> dict[str, object]:
        """Return the columns of `train_steps.jsonl`, with the host's time and the activations'
        memory.
        """
        import torch

        from wattloop.predict.calibrate.gpu_sensor import SensorSampler
        from wattloop.predict.calibrate.host import dispatch_seconds

        cuda = torch.cuda if bench.on_gpu else None
        self.net.clear()
        held = cuda.memory_allocated() if cuda else 0
        if cuda:
            cuda.reset_peak_memory_stats()
        self.step()
        self.synchronize()
        begin_s, done = time.perf_counter(), 0
        while done < 2 or time.perf_counter() - begin_s < options.warm_up_s:
            self.step()
            done += 1
            if done % 3 == 0:
                self.synchronize()
        self.synchronize()
        steps = max(3, round(options.window_s * done / (time.perf_counter() - begin_s)))
        with SensorSampler(sensor) as watch:
            begin_s = time.perf_counter()
            for _ in range(steps):
                self.step()
            self.synchronize()
            end_s = time.perf_counter()
            drawn = watch.drawn(begin_s, end_s)
        step_s = (end_s - begin_s) / steps
        peak = cuda.max_memory_allocated() if cuda else 0
        host_s = dispatch_seconds(bench, self)
        return {
            **self.named,
            "steps": steps,
            "step_s": step_s,
            "energy_j_per_step": None if drawn.power_w is None else drawn.power_w * step_s,
            "avg_power_w": drawn.power_w,
            "polled_power_w": drawn.polled_w,
            "sm_clock_mhz": drawn.clock_mhz,
            "temp_c": drawn.temp_c,
            "window_s": end_s - begin_s,
            "peak_mem_gib": peak / 2**30,
            "held_mem_gib": held / 2**30,
            "activation_gib": self._activation_bytes() / 2**30,
            "params": self.net.params,
            "host_s": host_s,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if cuda else "cpu",
            **self.compiled,
        }

    def _activation_bytes(self) -> int:
        """Return the bytes that forward leaves allocated for backward."""
        import torch

        if self.net.device.type != "cuda":
            return 0
        self.lost = None
        self.net.clear()
        before = torch.cuda.memory_allocated()
        self.forward()
        kept = torch.cuda.memory_allocated() - before
        self.backward()
        return kept

    def profiled(self) -> list[list[object]]:
        """Return the kernels of one step: name, calls and microseconds."""
        from torch.profiler import ProfilerActivity, profile

        self.step()
        self.synchronize()
        on_gpu = self.net.device.type == "cuda"
        with profile(
            activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
        ) as taken:
            for _ in range(PROFILED_STEPS):
                self.step()
            self.synchronize()
        found: dict[str, list[float]] = {}
        for event in taken.events():
            is_device = str(event.device_type).endswith("CUDA")
            if is_device != on_gpu or event.name.startswith(RANGES):
                continue
            sums = found.setdefault(event.name[:LONGEST_NAME], [0, 0.0])
            sums[0] += 1
            sums[1] += event.time_range.elapsed_us()
        return sorted(
            (
                [name, n / PROFILED_STEPS, round(us / PROFILED_STEPS, 2)]
                for name, (n, us) in found.items()
            ),
            key=lambda row: -row[2],
        )


if __name__ == "__main__":
    main()
