"""Worker process for expensive or untrusted work, and queues of work and of imports.

A simulation of a stored scenario and a prediction read text that others wrote, and take seconds of
processor time. `Worker` runs them in a child process with limits of time and memory: a task that
crashes, hangs or grows ends that process and nothing else. `WorkQueue` refuses requests when too
many wait already, so that such work never takes the threads that answer pages.
"""

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from wattloop.core.errors import ConfigError
from wattloop.store.ingest.uploads import Ingest, Received

T = TypeVar("T")
LIMIT_S = 120.0
"""Wall time of one task: the largest that a page offers take some 10 s on an idle machine."""
MEMORY_B = 4 * 2**30
"""Data of the process: PyTorch and the trace of the largest model of the table need about 2 GiB."""
LARGEST_ANSWER_B = 256 * 2**20
RETRY_S = 5
BUSY = 503


class Worker:
    """One child process that does one task at a time; started at its first use.

    Args:
        limit_s: wall time of one task.
        memory_b: data of the process.
    """

    def __init__(self, *, limit_s: float = LIMIT_S, memory_b: int = MEMORY_B) -> None:
        self._limit_s = limit_s
        self._memory_b = memory_b
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, task: str, **arguments: Any) -> Any:
        """Return the result of a task of `wattloop.serve.worker_tasks`, as plain data.

        Raises:
            ConfigError: the task refuses its arguments, failed, or broke a limit.
        """
        with self._lock:
            process = self._started()
            try:
                answer = self._answer(process, {"task": task, **arguments})
            except BaseException:
                self._end()  # its pipe may hold half an answer
                raise
        if "refused" in answer:
            raise ConfigError(answer["refused"])
        return answer["result"]

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._end()
            limits = (str(self._limit_s), str(self._memory_b))
            self._process = subprocess.Popen(
                # -P: a file json.py in the current folder is not imported
                [sys.executable, "-P", "-m", "wattloop.serve.worker_tasks", *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # its own group: Ctrl-C in the terminal is for the server, which then ends it
                start_new_session=True,
            )
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]", question: Any) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        until_s = time.monotonic() + self._limit_s
        with suppress(BrokenPipeError):  # it ended before: said below
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        source, parts, size_b = process.stdout.fileno(), [], 0
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([source], [], [], left_s)[0]:
                raise ConfigError(
                    f"it took longer than the {self._limit_s:g} s a server has for it"
                )
            part = os.read(source, 2**20)
            if not part:
                raise ConfigError(
                    f"the process that worked on it ended by itself ({_ending(process)}): it may "
                    f"have needed more than {self._memory_b / 2**30:g} GiB of memory"
                )
            parts.append(part)
            size_b += len(part)
            if part.endswith(b"\n"):
                break
            if size_b > LARGEST_ANSWER_B:
                raise ConfigError(f"its result is larger than {LARGEST_ANSWER_B} bytes")
        found: dict[str, Any] = json.loads(b"".join(parts))
        return found

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class WorkQueue:
    """Threads for slow requests; a request beyond the queue is refused.

    Args:
        name: of the threads.
        threads: requests that are worked on at a time.
        waiting: requests that may wait for one of them.
    """

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"wattloop-{name}")
        self._most = threads + waiting
        self._lock = threading.Lock()
        self._open = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in one of the threads and return its result.

        Raises:
            HTTPException: 503 with `Retry-After`, when too many wait.
        """
        with self._lock:
            if self._open >= self._most:
                raise too_busy()
            self._open += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._left)  # also where the reader hung up in the meantime
        return await asyncio.wrap_future(future)

    def _left(self, _: "Future[Any]") -> None:
        with self._lock:
            self._open -= 1


def too_busy() -> HTTPException:
    """Return the refusal of a request that exceeds the queue."""
    return HTTPException(
        BUSY, "too many such requests wait already; try again", {"Retry-After": str(RETRY_S)}
    )


def _ending(process: "subprocess.Popen[bytes]") -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    code = process.returncode
    if code is None:
        return "it closed its output"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


LONGEST_REST_S = 0.1


class ImportQueue:
    """Queue of complete runs; a waiting run is not queued again."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        # one: packing a run is work for a processor, which pages and pieces need more
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="wattloop-import")
        self._guard = threading.Lock()
        self._waiting: dict[str, Future[Received]] = {}
        self._closing = threading.Event()
        self._rest_until_s = 0.0

    def submit(self, run_id: str) -> "Future[Received]":
        """Queue a run for import."""
        with self._guard:
            known = self._waiting.get(run_id)
            if known is None:
                known = self._waiting[run_id] = self._worker.submit(self._import, run_id)
            return known

    def close(self) -> None:
        """Stop after the current import; the other runs stay on disk."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _import(self, run_id: str) -> Received:
        # after a run the processor is for pages and pieces for as long again
        self._closing.wait(max(0.0, self._rest_until_s - time.monotonic()))
        begun_s = time.monotonic()
        try:
            return self._ingest.import_run(run_id)
        finally:
            now_s = time.monotonic()
            self._rest_until_s = now_s + min(now_s - begun_s, LONGEST_REST_S)
            with self._guard:
                self._waiting.pop(run_id, None)
