"""Promises of workers: configured before a framework is imported, heard during work, ended after
it.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from wattloop.kernels.worker import KernelCase, KernelJob, KernelWorker, worker_environment

TRIAD = KernelCase("triad", 2_000, "fp32")


def job(**changes: object) -> KernelJob:
    facts = {
        "backend": "numpy", "style": "library", "threads": 1, "device": "cpu",
        "cases": (TRIAD,), "seconds": 0.05, "warmup_s": 0.0,
    }  # fmt: skip
    return KernelJob(**{**facts, **changes})  # type: ignore[arg-type]  # facts are as wide as Job's


def test_environment_decides_threads_vectors_and_devices() -> None:
    """All variables that frameworks read at import are set, and the user's other variables stay."""
    found = worker_environment(job(threads=3, style="scalar"), {"HOME": "/x", "PYTHONPATH": "/y"})
    assert found["HOME"] == "/x"
    assert found["PYTHONPATH"].startswith("/y" + os.pathsep)
    assert {found[f"{n}_NUM_THREADS"] for n in ("OMP", "MKL", "OPENBLAS", "NUMBA")} == {"3"}
    assert found["NUMBA_LOOP_VECTORIZE"] == found["NUMBA_SLP_VECTORIZE"] == "0"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    on_gpu = worker_environment(job(device="gpu", gpu=2, style="jit"), {})
    assert on_gpu["CUDA_VISIBLE_DEVICES"] == "2"
    assert on_gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert on_gpu["NUMBA_LOOP_VECTORIZE"] == "1"
    assert on_gpu["CUPY_TF32"] == "0"
    tf32 = worker_environment(job(cases=(KernelCase("gemm", 8, "tf32"),)), {})
    assert tf32["CUPY_TF32"] == "1"


def test_a_worker_tells_what_it_measured() -> None:
    """Ready, begin, measuring, measured, on the monotonic clock of this machine."""
    begin_s = time.monotonic()
    with KernelWorker.of(job(cases=(TRIAD, KernelCase("triad", 2**40, "fp32"), TRIAD))) as worker:
        told = list(worker.messages(60))
    kinds = [m["type"] for m in told]
    assert kinds == [
        "ready", "begin", "measuring", "measured", "begin", "refused", "begin", "measuring",
        "measured",
    ]  # fmt: skip
    first = told[3]
    assert begin_s < first["begin_s"] < first["end_s"] < time.monotonic()
    assert first["time_low_s"] <= first["time_s"] <= first["time_high_s"]
    assert first["runs"] == first["per_batch"] * first["batches"]
    assert first["check_error"] <= 1
    assert first["peak_host_b"] > 1e6
    # An event that is not counted has a reason, on any machine.
    events = {"cycles", "instructions", "cache_misses"}
    assert events <= first["counts"].keys() | first["not_counted"].keys()
    assert all(count >= 0 for count in first["counts"].values())


def test_threads_are_pinned() -> None:
    """The worker stays on its given CPUs."""
    cpu = min(os.sched_getaffinity(0))
    with KernelWorker.of(job(cpus=(cpu,), seconds=30.0)) as worker:
        for message in worker.messages(60):
            if message["type"] == "measuring":
                assert os.sched_getaffinity(worker.pid) == {cpu}
                break


def test_a_missing_framework_is_a_message() -> None:
    """The error shows no traceback."""
    with KernelWorker.of(job(backend="cupy", device="cpu")) as worker:
        (told,) = worker.messages(60)
    assert told == {"type": "unavailable", "reason": "cupy runs on gpu, not on cpu"}


def test_a_killed_worker_says_so() -> None:
    """The kernel sends SIGKILL when memory runs out, and the message mentions it."""
    with KernelWorker.of(job(seconds=30.0)) as worker:
        for message in worker.messages(60):
            if message["type"] == "measuring":
                os.kill(worker.pid, signal.SIGKILL)
        assert "memory ran out" in worker.end_reason()


def test_a_silent_worker_is_given_up() -> None:
    """After too long a silence the wait ends, and leaving ends the worker."""
    with KernelWorker.of(job(seconds=30.0)) as worker:
        with pytest.raises(TimeoutError):
            for _ in worker.messages(0.3):
                pass
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_never_outlives_its_parent() -> None:
    """kill -9 of the parent process ends the worker too."""
    program = (
        "import json, os, sys, time\n"
        "from wattloop.kernels.worker import KernelCase, KernelJob, KernelWorker\n"
        "cases = (KernelCase('triad', 2000, 'fp32'),)\n"
        "job = KernelJob('numpy', 'library', 1, 'cpu', cases, 60.0, 0.0)\n"
        "worker = KernelWorker.of(job)\n"
        "for message in worker.messages(60):\n"
        "    if message['type'] == 'measuring':\n"
        "        print(worker.pid, flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(json.loads(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    deadline_s = time.monotonic() + 120
    while _alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line of proc
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
