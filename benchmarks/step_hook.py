"""Cost of the step hook of `wattloop run` for a program, and completeness of its steps.

    python benchmarks/step_hook.py          # print
    python benchmarks/step_hook.py --page   # and write docs/benchmarks/step_hook.md
    python benchmarks/step_hook.py --own    # the hook's own work, below the page's table

Programs run in turn with and without the hook in their environment: one without a framework, and
trainings. Start-up is processor time, a step is wall time on a GPU and processor time on a CPU. A
program that only imports torch takes seconds, and two starts differ by more than the hook takes:
there the hook's own time is measured inside the program. Needs torch and nothing else, so that it
runs on any GPU machine.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
HOOK = ROOT / "src" / "wattloop" / "integrations" / "step_hook"
PAGE = ROOT / "docs" / "benchmarks" / "step_hook.md"
WIDTH, STEP = 7, 1.0
T = TypeVar("T")
IMPORT = """
import sys, time
watcher, own_s = sys.meta_path[0], 0.0
def timed(function):
    def call(*arguments):
        global own_s
        begin_s = time.process_time()
        try:
            return function(*arguments)
        finally:
            own_s += time.process_time() - begin_s
    return call
watcher._install = timed(watcher._install)
begin_s = time.process_time()
import torch
print((time.process_time() - begin_s) * 1e3, own_s * 1e3)
"""
TRAINING = """
import sys, time, torch
steps, width, rows = map(int, sys.argv[1:])
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
layers = [l for _ in range(8) for l in (torch.nn.Linear(width, width), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
x = torch.randn(rows, width, device=device)
def step():
    optimizer.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
def now_s():
    if device == "cuda":
        torch.cuda.synchronize()
        return time.monotonic()
    return time.process_time()
for _ in range(10):
    step()
begin_s = now_s()
for _ in range(steps):
    step()
print((now_s() - begin_s) / steps * 1e3, steps + 10)
"""

OWN = """
import time, torch
from torch.optim import optimizer as hooks
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight])
weight.grad = torch.zeros(1)
optimizer.step()
before = list(hooks._global_optimizer_pre_hooks.values())
after = list(hooks._global_optimizer_post_hooks.values())
def step():
    for hook in (*before, *after):
        hook(optimizer, (), {})
def least_us(function, calls, rounds):
    times = []
    for _ in range(rounds):
        begin_s = time.process_time()
        for _ in range(calls):
            function()
        times.append((time.process_time() - begin_s) / calls * 1e6)
    return min(times)
assert before and after
print(least_us(step, 1000, 12))
"""
LOOK = """
import sys
(steps,) = [m.ProgramSteps for n, m in sys.modules.items() if n.endswith("hook.program_steps")]
print(least_us(steps.shared()._note_trackers, 200, 12))
"""
"""The optimizer hooks called directly, and the look for runs of trackers once a second."""
OWN_BEGINS = "The hook's own work"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--note", default="", help="a sentence below the table of the page")
    parser.add_argument("--own", action="store_true", help="measure only the hook's own work")
    parser.add_argument("--against", type=Path, help="with --own: hook folder of another version")
    options = parser.parse_args()
    if options.own:
        text = own_work(options.against)
        print(text)
        kept = PAGE.read_text("utf-8").partition(f"\n{OWN_BEGINS}")[0]
        PAGE.write_text(f"{kept.rstrip()}\n\n{text}", "utf-8")
        return
    on_gpu = _has_gpu()
    rows = [start_up("without a framework", "pass", 30, 5.0)]
    rows.append(import_torch(options.pairs))
    sizes = ((4096, 8192, 400), (2048, 8192, 1000)) if on_gpu else ((512, 256, 200),)
    rows += [training(width, batch, steps, options.pairs) for width, batch, steps in sizes]
    head = "| program | without | with the hook | difference | asked | steps seen |"
    text = "\n".join([head, "|---|---|---|---|---|---|", *rows])
    print(text)
    if options.page:
        PAGE.write_text(page(text, options.pairs, on_gpu, options.note), "utf-8")


def own_work(other: Path | None) -> str:
    """Return the hook's processor time per step, and once a second, as a paragraph."""

    def measured(hook: Path, code: str) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**_environment(folder), "PYTHONPATH": str(hook)}
            printed = subprocess.check_output([sys.executable, "-c", code], env=environment)
        return [float(each) for each in printed.split()]

    step_us, look_us = measured(HOOK, OWN + LOOK)
    before = f" ({measured(other, OWN)[0]:.1f} us by the hook of the table above)" if other else ""
    share = (step_us + 0.01 * look_us) / 10_000
    return (
        f"{OWN_BEGINS} on a processor ({platform.machine()}, without a GPU, next to other "
        f"programs; least of 12 rounds): {step_us:.1f} us a step{before}, and {look_us:.1f} us "
        f"once a second for the look at trackers. That is {share:.3%} of steps of 10 ms. On a GPU "
        "an event a step comes to that, by the same code as in the table. Nothing of the hook "
        "reads a tensor of a GPU, so that it never waits for one. Written by `python "
        "benchmarks/step_hook.py --own`.\n"
    )


def start_up(name: str, code: str, pairs: int, limit_ms: float) -> str:
    """Return the row of a program's processor time."""
    with tempfile.TemporaryDirectory() as folder:
        measures = (
            lambda: _cpu_ms(code, _environment(None)),
            lambda: _cpu_ms(code, _environment(folder)),
        )
        # The first pair compiles, as an installation does.
        times = [_in_turn(*measures, swap=number % 2 == 1) for number in range(pairs + 1)][1:]
    plain, hooked = (statistics.median(column) for column in zip(*times, strict=True))
    more = statistics.median(b - a for a, b in times)
    return (
        f"| {name}, start-up | {plain:.1f} ms | {hooked:.1f} ms | {more:+.1f} ms "
        f"| {limit_ms:g} ms | |"
    )


def import_torch(runs: int) -> str:
    """Return the row of `import torch`: processor time of the import, and the hook's part of it."""
    times = []
    for _ in range(runs + 1):  # the first run compiles
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", IMPORT]
            printed = subprocess.check_output(command, env=_environment(folder), text=True)
            times.append(tuple(map(float, printed.split())))
    whole, own = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return (
        f"| `import torch`, start-up | {whole - own:.1f} ms | {whole:.1f} ms | {own:+.1f} ms "
        "| 50 ms | |"
    )


def training(width: int, batch: int, steps: int, pairs: int) -> str:
    """Return the row of a training's step time."""
    times, seen, done = [], 0, 0
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            plain, hooked = _in_turn(
                lambda: _train(_environment(None), steps, width, batch),
                lambda folder=folder: _train(_environment(folder), steps, width, batch),
                swap=number % 2 == 1,
            )
            times.append((plain[0], hooked[0]))
            seen, done = seen + _steps_seen(Path(folder)), done + hooked[1]
    plain, hooked = (statistics.median(column) for column in zip(*times, strict=True))
    more = statistics.median(b / a - 1 for a, b in times)
    asked = "0.1%" if plain >= 10 else ""
    return (
        f"| 8 layers of {width:,}, batch {batch:,}: a step | {plain:.3f} ms | {hooked:.3f} ms "
        f"| {more:+.2%} | {asked} | {seen:,} of {done:,} |"
    )


def _in_turn(plain: Callable[[], T], hooked: Callable[[], T], *, swap: bool) -> tuple[T, T]:
    """Return both measurements; the order alternates, so that drift falls on both."""
    if swap:
        second = hooked()
        return plain(), second
    return plain(), hooked()


def page(text: str, pairs: int, on_gpu: bool, note: str) -> str:
    return (
        "# What the step hook costs a program\n\n"
        f"Medians of {pairs} alternating pairs of runs (30 for the program without a framework; "
        "differences are medians within pairs; of `import torch` the hook's own time inside it) on "
        f"{_gpu_name() if on_gpu else platform.machine() + ' without a GPU'}. Start-up is "
        "processor time. Written by `python benchmarks/step_hook.py --page`.\n\n"
        f"{text}\n" + (f"\n{note}\n" if note else "")
    )


def _environment(folder: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if folder is None:
        return environment
    return {**environment, "PYTHONPATH": str(HOOK), "WATTLOOP_STEPS": folder}


def _cpu_ms(code: str, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def _train(environment: dict[str, str], *numbers: int) -> tuple[float, int]:
    command = [sys.executable, "-c", TRAINING, *map(str, numbers)]
    printed = subprocess.check_output(command, env=environment, text=True)
    step_ms, steps = printed.split()
    return float(step_ms), int(steps)


def _steps_seen(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.steps"):
        values = array("d", path.read_bytes().partition(b"\n")[2])
        count += sum(kind == STEP for kind in values[::WIDTH])
    return count


def _has_gpu() -> bool:
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _gpu_name() -> str:
    code = "import torch; print('an ' + torch.cuda.get_device_name())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


if __name__ == "__main__":
    main()
