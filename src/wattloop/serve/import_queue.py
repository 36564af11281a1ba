"""Queue that imports delivered runs into the store, one at a time, in the background."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from wattloop.store.ingest.uploads import Ingest, Received

LONGEST_REST_S = 0.1


class ImportQueue:
    """Queue of complete runs; a waiting run is not queued again."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        # one: packing a run is work for a processor, which pages and pieces need more
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="wattloop-fold")
        self._guard = threading.Lock()
        self._waiting: dict[str, Future[Received]] = {}
        self._closing = threading.Event()
        self._rest_until_s = 0.0

    def settle(self, run_id: str) -> "Future[Received]":
        """Queue a run for import."""
        with self._guard:
            known = self._waiting.get(run_id)
            if known is None:
                known = self._waiting[run_id] = self._worker.submit(self._settle, run_id)
            return known

    def close(self) -> None:
        """Stop after the current import; the other runs stay on disk."""
        self._closing.set()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _settle(self, run_id: str) -> Received:
        # after a run the processor is for pages and pieces for as long again
        self._closing.wait(max(0.0, self._rest_until_s - time.monotonic()))
        begun_s = time.monotonic()
        try:
            return self._ingest.settle(run_id)
        finally:
            now_s = time.monotonic()
            self._rest_until_s = now_s + min(now_s - begun_s, LONGEST_REST_S)
            with self._guard:
                self._waiting.pop(run_id, None)
