"""Kernel workers: processes that run kernels, started with a framework's environment."""

import functools
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import wattloop
from wattloop.core.errors import WattloopError
from wattloop.hardware.host import Host
from wattloop.kernels.backend import TARGETS, Backend, Unsupported
from wattloop.kernels.loaded_kernel import LoadedKernel, forget_peak, load, peak_b
from wattloop.kernels.registry import backend_named
from wattloop.meters.perf import PROGRAM_EVENTS, ProgramCounters

# Timing of kernels: warm-up, batches, the median and its interval.
#
# Runs are started in batches that end with a synchronisation, so that the wait for the device is
# paid once per batch and not per run. The number of batches follows from the time asked for, which
# has to be long against the energy sensor's update (100 ms on NVIDIA), never from a fixed count.

BATCH_S = 0.05
"""A batch is long against the cost of waiting for a device, about 10 us."""
MIN_BATCHES = 5
"""As many as the thesis repeats each experiment."""
BURST_S = 0.03
"""Short against the second or so in which a GPU's power limit takes hold."""
PAUSE_S = 0.7
BURSTS = 3
MANY, Z_975 = 100, 1.959964
MAX_RUNS = 100_000
"""Per batch, should a run take no time at all."""


class Runnable(Protocol):
    """Protocol of work that can be timed."""

    def run(self) -> None: ...

    def synchronise(self) -> None:
        """Wait for all of them."""
        ...


class Timing(NamedTuple):
    """Times of many runs.

    Attributes:
        begin_s, end_s: the measured stretch on the machine's monotonic clock, warm-up excluded.
        batch_s: seconds per run, one value for each batch.
        counts: of hardware events in the measured stretch.
    """

    begin_s: float
    end_s: float
    runs: int
    per_batch: int
    batch_s: tuple[float, ...]
    counts: Mapping[str, float] = {}

    @property
    def time_s(self) -> float:
        return statistics.median(self.batch_s)

    @property
    def interval_s(self) -> tuple[float, float]:
        return median_interval(self.batch_s)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


def time_runs(
    work: Runnable,
    seconds: float,
    *,
    now_s: Callable[[], float],
    warmup_s: float = 0.3,
    each_waits: bool = False,
    read_counts: Callable[[], Mapping[str, float]] = dict,
) -> Timing:
    """Run `work` for about so many seconds, after a warm-up; at least five batches.

    With `each_waits` every run is waited for: some frameworks would queue up results.
    `read_counts` returns counters that only grow.
    """
    batch = functools.partial(_batch_s, work, now_s, each_waits)
    per_batch = _warmed_up(batch, warmup_s, min(BATCH_S, seconds / MIN_BATCHES), now_s)
    before = read_counts()
    begin_s = now_s()
    times_s: list[float] = []
    while len(times_s) < MIN_BATCHES or now_s() - begin_s < seconds:
        times_s.append(batch(per_batch) / per_batch)
    end_s = now_s()
    counts = {name: count - before[name] for name, count in read_counts().items()}
    runs = per_batch * len(times_s)
    return Timing(begin_s, end_s, runs, per_batch, tuple(times_s), counts)


def burst_s(work: Runnable, *, now_s: Callable[[], float], sleep: Callable[[float], None]) -> float:
    """Seconds per run in a burst that is over before a GPU's power limit takes hold.

    Dense kernels draw more than a card may: after some tens of milliseconds its clock falls, and
    stays down. What people call the speed of a GPU is often that of the first moment, so both are
    told: this, and the time that lasts. Median of three bursts with pauses between.
    """
    batch = functools.partial(_batch_s, work, now_s, False)
    work.synchronise()
    once_s = max(batch(1), 1e-9)
    runs = max(MIN_BATCHES, min(MAX_RUNS, round(BURST_S / once_s)))
    times_s = []
    for _ in range(BURSTS):
        sleep(PAUSE_S)
        batch(1)
        times_s.append(batch(runs) / runs)
    return statistics.median(times_s)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the median that assumes nothing about the distribution.

    The k-th smallest and k-th largest value enclose the median unless fewer than k of n values
    lie on one side of it, which has the probability of a binomial(n, 1/2). Below six values no
    pair reaches 95%: the extremes are given. Above a hundred the normal distribution will do.
    """
    ordered = sorted(values)
    number, tail, below = len(ordered), 0.0, 0
    if number > MANY:
        below = math.floor((number - Z_975 * math.sqrt(number)) / 2)
    while number <= MANY and below < number // 2:
        tail += math.comb(number, below) / 2**number
        if tail > 0.025:
            break
        below += 1
    rank = max(0, below - 1)
    return ordered[rank], ordered[number - 1 - rank]


def _batch_s(work: Runnable, now_s: Callable[[], float], each_waits: bool, runs: int) -> float:
    begin_s = now_s()
    for _ in range(runs):
        work.run()
        if each_waits:
            work.synchronise()
    work.synchronise()
    return now_s() - begin_s


def _warmed_up(
    batch: Callable[[int], float], warmup_s: float, batch_s: float, now_s: Callable[[], float]
) -> int:
    """Run until warm, and until a batch is known to be long enough; returns its runs."""
    begin_s, runs = now_s(), 1
    while True:
        took_s = batch(runs)
        enough = took_s >= batch_s / 2 or runs >= MAX_RUNS
        runs = max(1, min(MAX_RUNS, round(runs * batch_s / max(took_s, 1e-9)), 10 * runs))
        if enough and now_s() - begin_s >= warmup_s:
            return runs


TAIL_LINES = 5


@dataclass(frozen=True)
class KernelCase:
    """One kernel at one size in one format."""

    kernel: str
    size: int
    dtype: str


@dataclass(frozen=True)
class KernelJob:
    """Everything one worker does.

    Attributes:
        gpu: the driver's number of the GPU, where `device` is `gpu`.
        cpus: the CPUs to stay on; empty leaves that to the system.
    """

    backend: str
    style: str
    threads: int
    device: str
    cases: tuple[KernelCase, ...]
    seconds: float
    warmup_s: float
    gpu: int | None = None
    cpus: tuple[int, ...] = ()


def worker_environment(job: KernelJob, base: Mapping[str, str]) -> dict[str, str]:
    """Variables that frameworks read when they are imported."""
    environment = dict(base)
    threads = str(job.threads)
    for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA"):
        environment[f"{name}_NUM_THREADS"] = threads
    # scalar code: LLVM may neither widen loops nor join neighbouring statements
    vectorise = "0" if job.style == "scalar" else "1"
    environment |= {"NUMBA_LOOP_VECTORIZE": vectorise, "NUMBA_SLP_VECTORIZE": vectorise}
    if job.style in TARGETS:
        name, features = TARGETS[job.style]
        environment |= {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    # frameworks take what they need of a GPU's memory, not most of it
    environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment["CUPY_TF32"] = "1" if any(c.dtype == "tf32" for c in job.cases) else "0"
    if job.device == "cpu":
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    elif job.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(job.gpu)
    # a checkout that is not installed has to be found by the child too
    source = str(Path(wattloop.__file__).parent.parent)
    known = environment.get("PYTHONPATH", "")
    if source not in known.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (known, source)))
    return environment


class KernelWorker:
    """A running worker; a context manager that leaves nothing behind."""

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: list[str] = []
        # A session of its own: ctrl-C is ours to handle.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wattloop.kernels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )
        for target in (self._read_messages, self._read_errors):
            threading.Thread(target=target, daemon=True).start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(order)) + "\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Of its process, which leads a session of its own."""
        return self._process.pid

    @classmethod
    def of(cls, job: KernelJob) -> "KernelWorker":
        return cls(asdict(job), worker_environment(job, os.environ))

    def messages(self, patience_s: float) -> Iterator[dict[str, Any]]:
        """What it tells, until it ends. Raises TimeoutError: nothing was heard for so long."""
        while True:
            try:
                message = self._messages.get(timeout=patience_s)
            except queue.Empty:
                raise TimeoutError(f"nothing heard for {patience_s:g} s") from None
            if message is None:
                return
            yield message

    def end_reason(self) -> str:
        code = self._process.wait()
        last = " ".join(self._said[-1:]).strip()[:300]
        if code == -signal.SIGKILL:
            return "the worker was killed, most likely because memory ran out; use a smaller size"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the worker ended with {how}" + (f": {last}" if last else "")

    def __enter__(self) -> "KernelWorker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.close()

    def _read_messages(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed while reading
            for line in self._process.stdout:
                with suppress(json.JSONDecodeError):
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):
            for line in self._process.stderr:
                self._said = [*self._said, line][-TAIL_LINES:]


# The worker: `python -m wattloop.kernels.worker`. Threads, vectorisation and the memory pool of
# most frameworks are decided when they are imported, so each (framework, style, threads) has its
# own process, and energy is measured from outside. One JSON line comes in (`KernelJob`), one goes
# out for each event. Standard output belongs to the protocol: what frameworks print goes to
# standard error. The process ends when its standard input does, so it never outlives its parent.

Tell = Callable[[dict[str, Any]], None]


def main() -> int:
    tell = _protocol()
    line = sys.stdin.readline()
    if not line:
        return 0
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = json.loads(line)
    cpus = job.get("cpus")
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        if "sleep_s" in job:
            _sleep(job, tell)
            return 0
        backend = backend_named(job["backend"])(job["device"], job["style"], job["threads"])
    except WattloopError as error:
        tell({"type": "unavailable", "reason": str(error)})
        return 0
    tell(_facts(backend))
    for number, case in enumerate(job["cases"]):
        tell({"type": "begin", "case": number})
        tell({"case": number, **_outcome(job, case, tell, number)})
    return 0


def _facts(backend: Backend) -> dict[str, Any]:
    return {
        "type": "ready",
        "version": backend.version(),
        "device_name": backend.device_name(),
        "methods": dict(backend.methods),
    }


def _outcome(job: dict[str, Any], case: dict[str, Any], tell: Tell, number: int) -> dict[str, Any]:
    """One case; whatever a framework throws is an outcome, not an end."""
    forget_peak()
    loaded: LoadedKernel | None = None
    try:
        loaded = load(
            case["kernel"],
            job["backend"],
            case["size"],
            dtype=case["dtype"],
            device=job["device"],
            style=job["style"],
            threads=job["threads"],
        )
        return _measured(loaded, job, tell, number)
    except Unsupported as error:
        return {"type": "skipped", "reason": str(error)}
    except WattloopError as error:
        return {"type": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - frameworks raise what they like
        text = str(error).strip().splitlines() or [""]
        return {"type": "failed", "reason": f"{type(error).__name__}: {text[0][:300]}"}
    finally:
        if loaded is not None:
            loaded.close()


def _measured(loaded: LoadedKernel, job: dict[str, Any], tell: Tell, number: int) -> dict[str, Any]:
    first = loaded.check()
    if not first.ok:
        return _wrong(first.error, first.what)
    tell({"type": "measuring", "case": number})
    on_gpu = job["device"] == "gpu"
    burst = burst_s(loaded, now_s=time.monotonic, sleep=time.sleep) if on_gpu else None
    # The processor's counters say little about work on a GPU.
    counters = ProgramCounters(Host(), {} if on_gpu else PROGRAM_EVENTS)
    timing = time_runs(
        loaded,
        job["seconds"],
        now_s=time.monotonic,
        warmup_s=job["warmup_s"],
        each_waits=not on_gpu,
        read_counts=counters.read,
    )
    counters.close()
    # what was timed is what gets checked
    check = loaded.check()
    if not check.ok:
        return _wrong(check.error, check.what)
    low_s, high_s = timing.interval_s
    return {
        "type": "measured",
        "begin_s": timing.begin_s,
        "end_s": timing.end_s,
        "runs": timing.runs,
        "per_batch": timing.per_batch,
        "batches": len(timing.batch_s),
        "time_s": timing.time_s,
        "burst_time_s": burst,
        "counts": dict(timing.counts),
        "not_counted": counters.reasons,
        "time_low_s": low_s,
        "time_high_s": high_s,
        "check_error": check.error,
        "check": check.what,
        "peak_host_b": peak_b(),
        "peak_device_b": loaded.backend.peak_memory_b(),
    }


def _wrong(error: float, what: str) -> dict[str, Any]:
    return {
        "type": "wrong",
        "reason": f"the result is wrong: {error:.3g} times the allowed deviation ({what})",
    }


def _sleep(job: dict[str, Any], tell: Tell) -> None:
    """Threads that sleep, for what a machine draws with many of them (thesis, table 3.14)."""
    for number, duration_s in enumerate(job["sleep_s"]):
        sleepers = [
            threading.Thread(target=time.sleep, args=(duration_s,)) for _ in range(job["threads"])
        ]
        begin_s = time.monotonic()
        for sleeper in sleepers:
            sleeper.start()
        for sleeper in sleepers:
            sleeper.join()
        tell({"type": "slept", "case": number, "begin_s": begin_s, "end_s": time.monotonic()})


def _protocol() -> Tell:
    """Keep standard output for ourselves."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return tell


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # the thread that waits for the parent still holds standard input
    os._exit(code)
