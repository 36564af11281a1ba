"""What the cap finder costs a training outside its probes.

    python benchmarks/cap_overhead.py [--quick] [--json FILE]

A tuner that has found its cap goes on watching. Its cost is the processor time of `step()` against
a training step of 12 ms, and the time of a small real training with and without it, in turns.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bars import Bar, Page, Table, arguments, publish
from wattloop.characterize.cap_callback import CapTuner
from wattloop.characterize.cap_pilot import PilotRules, State
from wattloop.core.settings import Settings
from wattloop.virtual.machine import shared_gpus

STEP_S = 0.012
ENTRY_POINTS = """\
[wattloop.meters]
virtual = wattloop.virtual.meter:detect
[wattloop.levers]
virtual = wattloop.virtual.lever:detect
"""

WATCH_S = 5.0

TEXT = """
The tuner looks after one virtual GPU here, as it would after a real one: levers held, meter read at
10 Hz, search finished, watching for a change of the work. `step()` only notes the time; a thread
does the rest.

- `step_call`: processor time of a call of `step()` in the training's own thread, against a training
  step of 12 ms.
- `training`: a small network in torch on one core, {steps} steps with and without the tuner in
  {pairs} pairs, the order within each by chance; median of the ratios. On a machine with other load
  it says nothing: look at the middle half of the ratios below first.
- `all_cpu`: processor time of the whole process with the tuner, the reading of its meter included,
  minus that without, while it sleeps 12 ms between steps. A loop that leaves a core free does not
  wait for it.
"""


def main() -> int:
    args = arguments("what the cap finder costs outside probes").parse_args()
    pairs, steps = (2, 60) if args.quick else (20, 300)
    sleeps = 100 if args.quick else 800
    with tempfile.TemporaryDirectory() as folder, _machine(Path(folder)) as settings:
        idle_us = _process_us(_nothing, sleeps)
        with _watching(settings) as tuner:
            call_us = _call_us(tuner)
            time.sleep(2 * WATCH_S)  # what those calls left to do is done
            with_us = _process_us(tuner.step, sleeps)
        ratios = _ratios(settings, pairs, steps)
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    bars = [
        Bar("step_call", 100 * call_us * 1e-6 / STEP_S, "% of a 12 ms step", 0.5),
        Bar("training", 100 * (median(ratios) - 1), "% of step time", 0.5),
        Bar("all_cpu", 100 * (with_us - idle_us) * 1e-6 / STEP_S, "% of a core"),
    ]
    table = Table(
        "In numbers",
        ("", ""),
        [
            ("step(), us of CPU", call_us),
            ("whole process per 12 ms without tuner, us of CPU", idle_us),
            ("whole process per 12 ms with tuner, us of CPU", with_us),
            ("training, ratio of times", f"{median(ratios):.4f}"),
            ("training, middle half of ratios", f"{low:.4f} to {high:.4f}"),
        ],
    )
    text = TEXT.format(pairs=pairs, steps=steps)
    page = Page("cap_overhead", "What the cap finder costs outside probes", bars, [table], text)
    publish(page, args)
    return 0


@contextmanager
def _machine(folder: Path) -> Iterator[Settings]:
    """A virtual GPU of our own, at work."""
    info = folder / "wattloop_virtual-0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path.insert(0, str(folder))
    os.environ |= {
        "WATTLOOP_VIRTUAL_STATE": str(folder / "gpus.state"),
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_SYSFS_ROOT": str(folder),
    }
    gpu = shared_gpus(1)[0]
    gpu.load(1.0, memory=0.3)
    try:
        yield Settings(virtual_gpus=1, meters=("virtual",))
    finally:
        gpu.load(0.0)


@contextmanager
def _watching(settings: Settings) -> Iterator[CapTuner]:
    """A tuner that has found its cap."""
    quick = PilotRules(settle_s=0.05, least_s=0.3, most_s=0.4, precision=0.5, watch_s=WATCH_S)
    with CapTuner("edp", settings=settings, rules=quick, caps="300:700:100") as tuner:
        assert tuner.pilot is not None, tuner.fault
        while tuner.pilot.state is State.PROBING:
            time.sleep(STEP_S)
            tuner.step()
        yield tuner


def _nothing() -> None:
    pass


def _call_us(tuner: CapTuner, calls: int = 20_000) -> float:
    begin_s = time.thread_time()
    for _ in range(calls):
        tuner.step()
    spent_s = time.thread_time() - begin_s
    return 1e6 * spent_s / calls


def _process_us(step: Callable[[], None], steps: int) -> float:
    begin_s = time.process_time()
    for _ in range(steps):
        time.sleep(STEP_S)
        step()
    return 1e6 * (time.process_time() - begin_s) / steps


def _ratios(settings: Settings, pairs: int, steps: int) -> list[float]:
    """Times with a tuner over times without, sorted."""
    train = _training()

    def lasted_s(step: Callable[[], None]) -> float:
        for _ in range(20):
            train()
        begin_s = time.perf_counter()
        for _ in range(steps):
            train()
            step()
        return time.perf_counter() - begin_s

    draw = random.Random(1)
    ratios = []
    for _ in range(pairs):
        times = {}
        for tuned in draw.sample((True, False), 2):
            if tuned:
                with _watching(settings) as tuner:
                    times[tuned] = lasted_s(tuner.step)
            else:
                times[tuned] = lasted_s(_nothing)
        ratios.append(times[True] / times[False])
    return sorted(ratios)


def _training() -> Callable[[], None]:
    """One step of a small network; about 12 ms on one core."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(192, 512)

    def train() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return train


if __name__ == "__main__":
    sys.exit(main())
