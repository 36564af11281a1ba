"""`python -m wattloop.kernels.worker`: the worker process that runs kernels.

Threads, vectorisation and the memory pool of most frameworks are decided when they are imported,
so each (framework, style, threads) has its process; and energy is measured from
outside. One JSON line comes in (see `Job`), one goes out for each event (see `launch`). Standard
output belongs to the protocol: what frameworks print goes to standard error. The process ends when
its standard input does, so it never outlives who started it.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from wattloop.core.errors import WattloopError
from wattloop.kernels.backend import Backend, Unsupported
from wattloop.kernels.loaded_kernel import LoadedKernel, forget_peak, load, peak_b
from wattloop.kernels.registry import backend_named
from wattloop.kernels.timing import burst_s, timed

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
    timing = timed(
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
