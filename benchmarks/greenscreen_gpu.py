"""GreenScreen's ten parameters on a GPU within ten minutes: as many runs as the time allows.

    python benchmarks/greenscreen_gpu.py FOLDER [--seconds 545] [--trials 300] [--epochs N]

A search of `wattloop.tune` over the parameters of `examples/greenscreen/space.yaml`, configurations
at random. All runs are trained one after the other in this process (`greenscreen_torch.py`), so
that the joules of the GPU are those of one run. The GPU is only read: no limit, clock or mode is
set. FOLDER gets the store of the search, and `greenscreen.jsonl`: a line about the machine, then
one per run, written when it ends; `greenscreen.py --runs` makes the page of it.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bars import machine
from greenscreen_torch import CLASSES, IMAGES, LEAST_S, Training, trained
from wattloop.core.settings import load_settings
from wattloop.tune import Trial, search
from wattloop.tune.segment import Progress, Segment
from wattloop.tune.spec import read_spec

SPEC = Path(__file__).resolve().parent.parent / "examples" / "greenscreen" / "space.yaml"
WIDTHS = (64, 128, 256, 512)
LONGEST_S = 6.0
"""Of the training with the smallest batch: what is left for 100 runs decides it."""
SPREAD = 1.25
"""Of a step by the other parameters, above the plainest."""
FEWEST_EPOCHS, MOST_EPOCHS = 2, 8
IDLE_S = 3.0


def main() -> int:
    args = parsed()
    began_s = time.monotonic()
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    if device == "cpu" and not args.cpu:
        print("no GPU that PyTorch can use; --cpu tries the program without one", file=sys.stderr)
        return 2
    if args.cpu:
        torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    found = Found(args.folder / "greenscreen.jsonl", began_s, args.seconds)
    counter_j = energy_counter() if device == "cuda" else lambda: None
    widths = tuple(args.widths)
    spec = read_spec(str(SPEC))
    step_s = seconds_of_a_step(dict(spec.default), widths, device, args.images)
    epochs = args.epochs or epochs_for(step_s, args.images)
    facts = facts_of(device, counter_j)
    found.write(
        {
            **facts,
            "images": args.images,
            "widths": widths,
            "epochs": epochs,
            "step_s": step_s,
            "least_s": LEAST_S,
            "parameters": list(spec.parameters),
            "seed": args.seed,
        }
    )

    def train(trial: Trial) -> None:
        training = Training(trial.params, widths=widths, device=device, images=args.images)
        trained(trial, training, epochs=epochs, counter_j=counter_j)

    settings = load_settings().overridden(
        {"store": str(args.folder / "runs.db"), "sampler": "thread"}, "greenscreen_gpu.py"
    )
    try:
        search(
            train,
            space=spec.parameters,
            default=spec.default,
            metric="val_accuracy",
            goal="maximize",
            objective="quotient",
            strategy="random",
            seed=args.seed,
            name="greenscreen",
            trials=args.trials,
            scope="gpu" if device == "cuda" else None,
            listener=found,
            settings=settings,
        )
    except KeyboardInterrupt:
        print("stopped")
    print(f"{found.count} runs, {found.whole} whole")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the store and the file of runs")
    parser.add_argument("--seconds", type=float, default=545, help="begin no run after so long")
    parser.add_argument("--seed", type=int, default=1, help="of the configurations")
    parser.add_argument("--trials", type=int, default=300, help="most runs")
    parser.add_argument("--epochs", type=int, help="of a run; by the speed of a step unless given")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="of the blocks")
    parser.add_argument("--cpu", action="store_true", help="to try the program without a GPU")
    return parser.parse_args()


def seconds_of_a_step(
    default: dict[str, Any], widths: tuple[int, ...], device: str, images: int
) -> float:
    """Measure an eager step with the smallest batch and AdamW, the most expensive optimizer."""
    chosen = default | {"batch_size": 4, "optimizer": "AdamW", "partitioning": "60-20-20"}
    training = Training(chosen, widths=widths, device=device, images=min(images, 400))
    training.warm_up()
    begin_s = time.monotonic()
    training.epoch()
    return (time.monotonic() - begin_s) / -(-round(0.6 * min(images, 400)) // 4)


def epochs_for(step_s: float, images: int) -> int:
    """Return the number of epochs that keep the smallest batch within `LONGEST_S`."""
    epoch_s = SPREAD * step_s * 0.75 * images / 4
    return max(FEWEST_EPOCHS, min(MOST_EPOCHS, int(LONGEST_S / epoch_s)))


def energy_counter() -> Callable[[], float | None]:
    """Read NVML's own counter, as a comparison for the search's meter."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read() -> float | None:
        torch.cuda.synchronize()
        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1_000
        except pynvml.NVMLError:
            return None

    return read


def facts_of(device: str, counter_j: Callable[[], float | None]) -> dict[str, Any]:
    """Return the machine, versions and settings, and the GPU's power with a context and no work."""
    begin_j, begin_s = counter_j(), time.monotonic()
    idle_w = None
    if begin_j is not None:
        time.sleep(IDLE_S)
        end_j = counter_j()
        idle_w = None if end_j is None else (end_j - begin_j) / (time.monotonic() - begin_s)
    return {
        "made": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "a CPU",
        "machine": machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
        "tf32_products": torch.backends.cuda.matmul.allow_tf32,
        "classes": CLASSES,
        "idle_w": idle_w,
    }


class Found:
    """Writer of a line per run, as soon as the search has stored it."""

    def __init__(self, path: Path, began_s: float, most_s: float) -> None:
        self._path, self._began_s, self._most_s = path, began_s, most_s
        self.count = self.whole = 0

    def write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def begins(self, segment: Segment, spent: Any) -> None:
        if time.monotonic() - self._began_s > self._most_s:
            signal.raise_signal(signal.SIGINT)  # as by a user: the search stops and is stored

    def ended(self, segment: Segment, progress: Progress, spent: Any) -> None:
        self.count += 1
        whole = "trainings" in progress.metrics
        self.whole += whole
        self.write(
            {
                "run": segment.candidate,
                "status": progress.status.value,
                "message": progress.message,
                "parameters": dict(segment.parameters),
                "time_s": progress.time_s,
                "energy_j": progress.energy_j,
                "uncertainty_j": progress.uncertainty_j,
                "provenance": progress.provenance,
                "metrics": dict(progress.metrics),
                "curve": [
                    {
                        "epoch": point.epoch,
                        "time_s": point.time_s,
                        "energy_j": point.energy_j,
                        "val_accuracy": point.quality,
                        "loss": point.metrics.get("loss"),
                    }
                    for point in progress.curve
                ],
            }
        )
        energy = "no energy" if progress.energy_j is None else f"{progress.energy_j:.0f} J"
        quality = "-" if progress.quality is None else f"{progress.quality:.3f}"
        chosen = " ".join(str(value) for value in segment.parameters.values())
        print(
            f"{time.monotonic() - self._began_s:6.1f} s  {self.count:3} runs, {self.whole} whole  "
            f"{segment.candidate} {progress.status.value} {progress.time_s:.2f} s {energy} "
            f"accuracy {quality}  {chosen}  {progress.message}",
            flush=True,
        )
        if "CUDA error" in progress.message:  # no later work of this process would succeed
            os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
