"""Worker processes of kernels: start with the framework's environment, and messages."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import wattloop

TAIL_LINES = 5


@dataclass(frozen=True)
class Case:
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
    cases: tuple[Case, ...]
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
        for target in (self._hear, self._overhear):
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

    def _hear(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed while reading
            for line in self._process.stdout:
                with suppress(json.JSONDecodeError):
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def _overhear(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):
            for line in self._process.stderr:
                self._said = [*self._said, line][-TAIL_LINES:]
