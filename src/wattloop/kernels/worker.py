"""Kernel workers: processes that run kernels, started with a framework's environment."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import wattloop
from wattloop.core.errors import WattloopError
from wattloop.kernels.backend import Backend, Unsupported
from wattloop.kernels.loaded_kernel import LoadedKernel, forget_peak, load, peak_b
from wattloop.kernels.registry import backend_named
from wattloop.kernels.timing import burst_s, time_runs

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
    timing = time_runs(
        loaded,
        job["seconds"],
        now_s=time.monotonic,
        warmup_s=job["warmup_s"],
        each_waits=not on_gpu,
    )
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
