"""Background tasks of the server: imports, node records, retention, loading of libraries."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from wattloop.core.errors import RunSenseless, StoreError, WattloopError
from wattloop.fleet.nodes import write_nodes
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.serve.state import AppState
from wattloop.store.experiments import list_experiments
from wattloop.store.journal_import import import_orphaned
from wattloop.store.retention import apply_retention

_log = logging.getLogger("wattloop.serve")


@dataclass(slots=True)
class _Duty:
    do: Callable[[], object]
    every_s: float
    due_s: float = 0.0


class MaintenanceThread:
    """Thread of periodic tasks; a failed task runs again at its next turn."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        ingest, store = state.ingest, state.store
        self._duties = [
            _Duty(lambda: self._import_complete(search=True), 60.0),
            _Duty(lambda: self._import_complete(search=False), 2.0),
            _Duty(lambda: import_orphaned(store, finalize_orphaned_run), 5.0),
            _Duty(ingest.abandoned, 30.0),
            _Duty(self._keep_nodes, 10.0),
        ]
        if state.options.retain is not None:
            self._duties.append(_Duty(self._retain, 3_600.0))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="wattloop-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current task."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)
        self._state.imports.close()
        try:
            self._keep_nodes()
        except StoreError as error:
            _log.warning("nodes are not remembered: %s", error)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            for duty in self._duties:
                if time.monotonic() >= duty.due_s and not self._stop.is_set():
                    self._do(duty)

    def _do(self, duty: _Duty) -> None:
        try:
            duty.do()
        except StoreError:
            pass  # logged by the first reader; nothing is lost
        except Exception:  # noqa: BLE001 - one odd run must not stop the others
            _log.exception("a duty failed; it is tried again")
        duty.due_s = time.monotonic() + duty.every_s

    def _import_complete(self, *, search: bool) -> None:
        for run_id in self._state.ingest.complete(search=search):
            self._state.imports.submit(run_id)

    def _keep_nodes(self) -> None:
        fresh = self._state.nodes.changed()
        try:
            write_nodes(self._state.store, fresh)
        except StoreError:
            self._state.nodes.mark_changed(fresh)
            raise

    def _retain(self) -> None:
        policy = self._state.options.retain
        assert policy is not None
        dropped = apply_retention(self._state.store, policy, stop=self._stop)
        if dropped.samples or dropped.levels or dropped.runs:
            _log.warning("old runs, as --retain says: %s", dropped)


PATIENCE_S = 1.0
"""So long a sender waits for its run to be in the store; later it asks again."""


async def wait_imported(state: AppState, run_ids: Sequence[str]) -> dict[str, bool | str]:
    """Return for each run whether it is stored, or why it never will be; missing: not yet."""
    if not run_ids:
        return {}
    work = {asyncio.wrap_future(state.imports.submit(run_id)): run_id for run_id in run_ids}
    done, later = await asyncio.wait(work, timeout=PATIENCE_S)
    for future in later:
        future.add_done_callback(lambda f: f.cancelled() or f.exception())  # said by the ingest
    found: dict[str, bool | str] = {}
    for future in done:
        if future.cancelled():  # the server ends
            continue
        error = future.exception()
        if error is None:
            found[work[future]] = future.result().ended
        elif isinstance(error, RunSenseless):
            found[work[future]] = str(error)
        else:
            raise error
    return found


def warm_up(state: AppState) -> threading.Thread:
    """Load in the background what the first readers would wait for.

    The oracle first: users who submit a job wait for it. Libraries of analyses only where there is
    a search: they take 250 MB.
    """

    def load() -> None:
        try:
            load_all()
        except RuntimeError as error:  # Ctrl-C: Python ends, and takes no new work of threads
            if "shutdown" not in str(error):
                raise

    def load_all() -> None:
        # pages import this module
        from wattloop.serve.pages.assets import vega_text
        from wattloop.serve.pages.overview import overview_parts

        with suppress(WattloopError):  # the next query reports the error
            state.oracle.warm_up()
        with suppress(WattloopError):
            overview_parts(state)
        with suppress(WattloopError):  # pages that need what is not installed say so themselves
            vega_text()
        if list_experiments(state.store, "search"):
            _load()
        # libraries stay: Python's collector need not look at them every few answers
        gc.collect()
        gc.freeze()

    thread = threading.Thread(target=load, name="wattloop-warm-up", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    with suppress(ImportError):
        import sklearn.cluster
        import sklearn.decomposition
        import sklearn.metrics
        import statsmodels.api

        del sklearn, statsmodels
