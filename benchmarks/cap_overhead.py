"""Cost of the cap finder for a training outside its probes.

    python benchmarks/cap_overhead.py [--quick] [--json FILE]

A tuner that has found its cap continues to watch. The training pays for that with processor time:
of `step()` in its own thread, of the other threads in the same process, and of the process that
reads the sensors. Each is read from the kernel's clock of that thread or process, so load on the
machine does not blur it as it blurs a comparison of durations.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bars import Bar, Page, Table, arguments, publish
from support.nvml_stub import StubNvml
from wattloop.cap.callback import CapTuner
from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.core.settings import Settings
from wattloop.measure.session import Session

STEP_S = 0.012
BAR_PCT = 0.5
WORKER, SAMPLER = "wattloop-cap", "wattloop-sampler"

TEXT = """
The tuner looks after {gpus} GPUs of the stub NVML (real nvidia-ml-py, power limits held, journaled
and guarded), with a session of its own, as in a training that measures nothing else. The search is
finished; rules and intervals are the defaults. The training is a loop that sleeps {step_ms:g} ms
and calls `step()`. {blocks} blocks of {block_s:g} s with the tuner and as many without, in turns;
medians of the blocks. A block holds every periodic job of the tuner at least once.

- `step_call`: processor time of a call of `step()`, in the training's own thread.
- `outside_probes`: that, and all processor time that other threads take in the training's process
  beyond what they take without a tuner: the worker, and the sampler of its session. If a training
  had to wait for every instant of it, steps would be longer by this much; one that leaves the
  interpreter lock now and then, as torch does, waits for less.
- `with_reader`: that, and the separate process that reads the sensors. It takes part of
  a core, and never the interpreter lock. A stub call costs little; a real driver's reading is kept
  below {duty:g}% of a core there.

Durations of steps with and without a tuner are not compared: on a shared machine they differ by
several per cent from block to block, without any tuner.
"""
DUTY_PCT = 3.0
GPUS = 2


class Spent(NamedTuple):
    """Seconds of processor time, by thread and process."""

    others_s: float
    worker_s: float
    sampler_s: float
    reader_s: float

    def per_step_us(self, before: "Spent", steps: int) -> "Spent":
        """Return the microseconds per step since an earlier measurement."""
        return Spent(*(1e6 * (b - a) / steps for a, b in zip(before, self, strict=True)))


def main() -> int:
    args = arguments("what the cap finder costs outside probes").parse_args()
    blocks, block_s = (1, 1.0) if args.quick else (5, 24.0)
    steps = round(block_s / STEP_S)
    without, spent, calls_us = [], [], []
    with tempfile.TemporaryDirectory() as folder, _machine(Path(folder)) as settings:
        for _ in range(blocks):
            without.append(_block(_nothing, None, steps).others_s)
            with _watching(settings, quick=args.quick) as tuner:
                spent.append(_block(tuner.step, tuner, steps))
                calls_us.append(_call_us(tuner))  # last: so many steps give the worker work
    figures = Spent(*(median(column) for column in zip(*spent, strict=True)))
    call_us, idle_us = median(calls_us), median(without)
    inside_us = call_us + max(0.0, figures.others_s - idle_us)
    bars = [
        Bar("step_call", _pct(call_us), "% of a 12 ms step", BAR_PCT),
        Bar("outside_probes", _pct(inside_us), "% of a 12 ms step", BAR_PCT),
        Bar("with_reader", _pct(inside_us + figures.reader_s), "% of a core"),
    ]
    worst_us = max(s.others_s for s in spent) - idle_us + max(calls_us)
    rows = [
        ("step()", call_us),
        ("worker of the tuner", figures.worker_s),
        ("sampler thread of its session", figures.sampler_s),
        ("all threads but the training's", figures.others_s),
        ("the same without a tuner", idle_us),
        ("process that reads the sensors", figures.reader_s),
        ("step() and threads, worst block", worst_us),
    ]
    table = Table("In numbers", ("", "us of CPU per 12 ms"), rows)
    text = TEXT.format(
        gpus=GPUS, step_ms=1e3 * STEP_S, blocks=blocks, block_s=block_s, duty=DUTY_PCT
    )
    page = Page("cap_overhead", "What the cap finder costs outside probes", bars, [table], text)
    publish(page, args)
    return 0


def _pct(microseconds: float) -> float:
    return 100 * microseconds * 1e-6 / STEP_S


@contextmanager
def _machine(folder: Path) -> Iterator[Settings]:
    """Make GPUs of the stub at work, with no other meter or lever."""
    os.environ |= {
        "WATTLOOP_STATE_DIR": str(folder / "state"),
        "WATTLOOP_STORE": str(folder / "runs.db"),
        "WATTLOOP_SYSFS_ROOT": str(folder / "sys"),
    }
    (folder / "sys").mkdir()
    with StubNvml(folder, gpus=GPUS) as stub:
        for gpu in range(GPUS):
            stub.set_load(gpu, 0.9)
        yield Settings(meters=("nvidia",))


@contextmanager
def _watching(settings: Settings, *, quick: bool) -> Iterator[CapTuner]:
    """Return a tuner that has found its cap, with an idle session."""
    rules = OnlineRules(precision=0.5)
    if quick:
        rules = OnlineRules(precision=0.5, settle_s=0.1, least_s=0.5, most_s=0.5)
    with CapTuner("edp", settings=settings, rules=rules, caps="50%,60%,80%,100%") as tuner:
        while tuner.fault is None and tuner.pilot is not None:
            if tuner.pilot.state is not OnlineState.PROBING:
                break
            time.sleep(STEP_S)
            tuner.step()
        assert tuner.fault is None, tuner.fault
        yield tuner
        assert tuner.fault is None, tuner.fault


def _nothing() -> None:
    pass


def _call_us(tuner: CapTuner, calls: int = 20_000) -> float:
    begin_s = time.thread_time()
    for _ in range(calls):
        tuner.step()
    return 1e6 * (time.thread_time() - begin_s) / calls


def _block(step: Callable[[], None], tuner: CapTuner | None, steps: int) -> Spent:
    """Return the microseconds per step that other threads and processes take meanwhile."""
    before = _spent(tuner)
    for _ in range(steps):
        time.sleep(STEP_S)
        step()
    return _spent(tuner).per_step_us(before, steps)


def _spent(tuner: CapTuner | None) -> Spent:
    named = {t.name: t for t in threading.enumerate() if t.ident is not None}
    worker_s, sampler_s = (_thread_s(named.get(name)) for name in (WORKER, SAMPLER))
    others_s = time.process_time() - time.thread_time()
    session = None if tuner is None else tuner._session
    return Spent(others_s, worker_s, sampler_s, _reader_s(session))


def _thread_s(thread: threading.Thread | None) -> float:
    if thread is None or thread.ident is None:
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _reader_s(session: Session | None) -> float:
    pid = 0 if session is None else session.reader.sampling_pid
    if not pid:
        return 0.0
    # nanoseconds on a processor, of each thread
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


if __name__ == "__main__":
    sys.exit(main())
