"""Record trainings on a GPU as `signal_phases.py` reads them: NVML's signals and true marks.

    python benchmarks/signal_recordings.py OUT.jsonl.gz [--seconds 40] [--seed 1]
    python benchmarks/signal_phases.py OUT.jsonl.gz

Needs torch and nvidia-ml-py and nothing else. Each training evaluates and pauses for random times
at random moments. The power limit and the clocks of the GPU are only read.
"""

import argparse
import gzip
import json
import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

COLUMNS = ["t_s", "power_w", "energy_j", "sm_mhz", "util_gpu", "util_mem"]
EVERY_S = 0.05
CUDA = "cuda"


class Recorder:
    """A thread that reads NVML 20 times a second, and the energy counter 10 times."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = str(pynvml.nvmlDeviceGetName(self._gpu))
        self.samples: list[list[float | None]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _read(self) -> None:
        nvml, gpu = self._nvml, self._gpu
        due_s = time.monotonic()
        while not self._stopped.wait(max(0.0, due_s - time.monotonic())):
            due_s += EVERY_S
            counted = len(self.samples) % 2 == 0
            energy_j = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3 if counted else None
            rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
            power_w = nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
            clock_mhz = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
            self.samples.append(
                [time.monotonic(), power_w, energy_j, clock_mhz, rates.gpu, rates.memory]
            )


def models() -> dict[str, Callable[[], tuple[Any, Callable[[], Any]]]]:
    """Return functions that make a model and a function that makes a batch, by name."""
    import torch
    from torch import nn

    def transformer(width: int, rows: int) -> tuple[Any, Callable[[], Any]]:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        return model, lambda: torch.randn(rows, 256, width, device=CUDA)

    def convolutions(width: int, rows: int) -> tuple[Any, Callable[[], Any]]:
        sizes = [3, width, 2 * width, 4 * width, 8 * width]
        layers = [
            each
            for a, b in pairwise(sizes)
            for each in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
        ]
        return nn.Sequential(*layers), lambda: torch.randn(rows, 3, 224, 224, device=CUDA)

    def dense(width: int, rows: int) -> tuple[Any, Callable[[], Any]]:
        layers = [each for _ in range(6) for each in (nn.Linear(width, width), nn.GELU())]
        return nn.Sequential(*layers), lambda: torch.randn(rows, width, device=CUDA)

    class Recurrent(nn.Module):  # type: ignore[misc]  # torch is not a dependency of the types
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, 512, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    return {
        "transformer 1024 x 32": lambda: transformer(1024, 32),
        "transformer 256 x 16": lambda: transformer(256, 16),
        "convolutions 64 x 128": lambda: convolutions(64, 128),
        "dense 8192 x 4096": lambda: dense(8192, 4096),
        "lstm 512 x 256": lambda: (
            Recurrent(),
            lambda: torch.randn(256, 60, 64, device=CUDA),
        ),
    }


def record(name: str, make: Any, precision: str, seconds: float, chance: random.Random) -> Any:
    """Train for some seconds; return the line of the file."""
    import torch

    model, batch = make()
    model = model.to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters())
    half = torch.autocast(CUDA, torch.bfloat16, enabled=precision == "bf16")
    marks: list[tuple[float, str]] = []

    def mark(what: str) -> None:
        marks.append((time.monotonic(), what))

    def step() -> None:
        optimizer.zero_grad()
        with half:
            loss = model(batch()).float().square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    with Recorder() as recorder:
        time.sleep(1.0)
        for _ in range(3):
            step()
        end_s = time.monotonic() + seconds
        event_s = time.monotonic() + 4
        while (now_s := time.monotonic()) < end_s:
            step()
            mark("step")
            if now_s < event_s:
                continue
            for kind in chance.choice((("eval",), ("save",), ("eval", "save"))):
                mark(f"{kind}-begin")
                until_s = time.monotonic() + chance.uniform(0.5, 2.0)
                if kind == "save":
                    time.sleep(until_s - time.monotonic())
                while kind == "eval" and time.monotonic() < until_s:
                    with torch.no_grad(), half:
                        model(batch()).float().square().mean().item()
                mark(f"{kind}-end")
            event_s = time.monotonic() + chance.uniform(2.5, 6.0)
        mark("end")
        time.sleep(1.0)
    return {
        "model": name,
        "batch": len(batch()),
        "precision": precision,
        "shape": "eval+save",
        "columns": COLUMNS,
        "samples": recorder.samples,
        "marks": marks,
        "gpu": recorder.name,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="file to write, OUT.jsonl.gz")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each training")
    parser.add_argument("--seed", type=int, default=1, help="of the random times")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with gzip.open(options.out, "wt") as file:
        for name, make in models().items():
            for precision in ("bf16", "fp32"):
                row = record(name, make, precision, options.seconds, chance)
                file.write(json.dumps(row) + "\n")
                file.flush()
                events = sum(what.endswith("begin") for _, what in row["marks"])
                print(f"{name}, {precision}: {events} evaluations and pauses", flush=True)


if __name__ == "__main__":
    main()
