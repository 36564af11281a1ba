"""State of the server that pages share: store, templates, caches, workers."""

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, select_autoescape

from wattloop.core.cache import ComputedCache, LruCache, StaleWhileRevalidateCache
from wattloop.core.errors import StoreLocked, StoreUnwritable
from wattloop.core.settings import load_settings
from wattloop.core.units import (
    ENERGY_UNITS,
    format_duration,
    format_energy,
    format_mass,
    format_money,
    format_power,
    format_share,
    short_energy,
)
from wattloop.fleet.nodes import NodeTable
from wattloop.fleet.tokens import Caller
from wattloop.measure.live import FollowedJournals
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.predict.workload.files import workload_from
from wattloop.predict.workload.workload import Workload
from wattloop.schedule.estimates.analytic import shipped_workload
from wattloop.schedule.estimates.fleet_file import load_fleet
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimator import WorkloadKey
from wattloop.schedule.estimates.oracle_service import OracleService
from wattloop.schedule.estimates.workload_estimates import traced_workload
from wattloop.schedule.jobs.kind import JobKind
from wattloop.serve.options import ServeOptions
from wattloop.serve.page_cache import PageCache
from wattloop.serve.worker import ImportQueue, Worker, WorkQueue, too_busy
from wattloop.store.database import Store
from wattloop.store.ingest.uploads import Ingest
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import TOTALS, TOTALS_BY
from wattloop.version import __version__

# Log of refused requests: caller, request and reason; floods are counted, not written.

EVERY_S = 10.0
MOST_KINDS = 1_000
LONGEST = 200
_log = logging.getLogger("wattloop.refusals")


class Refusals:
    """Recorder of refusals; one line per kind and caller every ten seconds, with the count."""

    def __init__(self, book: NodeTable) -> None:
        self._book = book
        self._guard = threading.Lock()
        self._last: LruCache[tuple[str, str], tuple[float, int]] = LruCache(MOST_KINDS)
        self.count = 0
        """All of them since the server started."""

    def note(self, caller: Caller, address: str, what: str, why: str) -> None:
        what, why = _line(what), _line(why)
        if caller.node:
            self._book.record_refusal(caller.node, f"{what}: {why}")
        now_s = time.monotonic()
        with self._guard:
            self.count += 1
            key = (str(caller) + address, why[:40])
            last_s, unsaid = self._last.get(key) or (-EVERY_S, 0)
            is_due = now_s - last_s >= EVERY_S
            self._last.put(key, (now_s, 0) if is_due else (last_s, unsaid + 1))
        if is_due:
            more = f" ({unsaid} more like it before)" if unsaid else ""
            _log.warning("refused %s from %s: %s: %s%s", caller, address, what, why, more)


def _line(text: str) -> str:
    """Format text of callers as one line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST]


class StoredCounters:
    """Totals of all runs that were ever stored: they never fall while the server runs.

    A sum that appears while the server runs is zero in the first answer, since `increase()` leaves
    out what the first sample of a series has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, ...], dict[str, float]] | None = None

    def shown(self, ever: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what to show of `stored_totals`."""
        rows = []
        with self._lock:
            shown = {} if self._shown is None else self._shown
            for row in ever:
                key = tuple(str(row[name]) for name in TOTALS_BY)
                # added in another order, a sum differs in its 16th digit: to `increase()` a reset
                now = {name: float(f"{row[name]:.10g}") for name in TOTALS}
                if key in shown:
                    # an earlier release deletes without a note, and a copy may be restored
                    now = {name: max(value, shown[key][name]) for name, value in now.items()}
                elif self._shown is not None:
                    now = dict.fromkeys(TOTALS, 0.0)
                shown[key] = now
                rows.append({**row, **now})
            self._shown = shown
        return rows


NAVIGATION = (
    ("/", "Overview"),
    ("/jobs", "Runs"),
    ("/compare", "Compare"),
    ("/sweeps", "Sweeps"),
    ("/searches", "Searches"),
    ("/predict", "Predict"),
    ("/simulate", "Simulate"),
    ("/study", "Study"),
    ("/nodes", "Nodes"),
)
"""Where -> what it is called, in the order of the verbs."""
TIDY_EVERY_S = 5.0
PATIENCE_S = 0.1
"""So long a page waits for an analysis before it says that it comes."""


class AppState:
    """Store, templates, caches and workers of one server.

    Args:
        options: what it was told.
        store: open, shared by all threads.
    """

    def __init__(self, options: ServeOptions, store: Store) -> None:
        self.options = options
        self.store = store
        # files and addresses are the operator's: those in stored runs are of other machines
        self.settings = load_settings()
        self.streams = 0
        self.cache = ComputedCache(refuse=too_busy)
        # its threads wait for the simulator: analyses of others have their own
        self.simulated = ComputedCache(refuse=too_busy)
        self.answers = StaleWhileRevalidateCache()
        self.pages = PageCache()
        self.ingest = Ingest(store, finalize_orphaned_run)
        self.predictor, self.simulator = Worker(), Worker()
        # a process works on one prediction at a time; others wait for it
        self.predictions = WorkQueue("predict", threads=1, waiting=16)
        self.batches = WorkQueue("batch", threads=4, waiting=32)
        self.submissions = WorkQueue("submit", threads=4, waiting=64)
        self.simulations = WorkQueue("simulate", threads=1, waiting=8)
        self.oracle = OracleService(
            load_fleet(options.cluster, options.mapping) if options.cluster else None,
            History(store),
            self._traced,
        )
        self.imports = ImportQueue(self.ingest)
        self.followed = FollowedJournals()
        self.nodes = NodeTable()
        self.stored_counters = StoredCounters()
        self.refusals = Refusals(self.nodes)
        self._tidied_s = -math.inf
        self.templates = Environment(
            loader=PackageLoader("wattloop.serve", "templates"),
            autoescape=select_autoescape(default=True),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "energy": _or_dash(format_energy),
            "power": _or_dash(format_power),
            "duration": _or_dash(format_duration),
            "mass": _or_dash(format_mass),
            "moment": _moment,
            "short": _or_dash(short_energy),
            "money": _or_dash(format_money),
            "many": _many,
            "share": format_share,
            "day": _day,
        }

    def tidy(self) -> None:
        """Import journals of ended writers, every few seconds at most."""
        now_s = time.monotonic()
        if self.store.read_only or now_s - self._tidied_s < TIDY_EVERY_S:
            return
        self._tidied_s = now_s
        with suppress(StoreLocked, StoreUnwritable):  # busy: next time
            import_orphaned(self.store, finalize_orphaned_run)
            self.ingest.abandoned()

    def close(self) -> None:
        self.predictor.close()
        self.simulator.close()
        self.followed.close()

    def _traced(self, key: WorkloadKey) -> Workload:
        """Return a workload: shipped ones at once, others from the predictor's process."""
        kind = JobKind(key.model, key.precision, sequence=key.sequence)
        if shipped_workload(kind, key.batch).is_file():
            return traced_workload(key)
        return workload_from(self.predictor.call("workload", **key._asdict()))

    def page(
        self, template: str, request: Request, *, status: int = 200, **data: Any
    ) -> HTMLResponse:
        """Render a page from a template; `data` is what its JSON has, too."""
        context: Mapping[str, Any] = {
            "navigation": NAVIGATION,
            "here": request.url.path,
            "version": __version__,
            "energy_units": ENERGY_UNITS,
            "store_name": self.store.where,
            **data,
        }
        return HTMLResponse(self.templates.get_template(template).render(context), status)

    def waiting(self, request: Request) -> HTMLResponse:
        """Render a page that reloads itself until the result is computed."""
        return self.page("waiting.html", request, status=202)


def static_text(name: str) -> str:
    """Return a file of `static/`."""
    return resources.files("wattloop.serve").joinpath("static", name).read_text("utf-8")


async def _state(request: Request) -> AppState:  # not a function for a thread: it only looks
    found: AppState = request.app.state.wattloop
    return found


State = Annotated[AppState, Depends(_state)]


def _or_dash(shown: Any) -> Any:
    def text(value: float | None) -> str:
        return "–" if value is None or not math.isfinite(value) else str(shown(value))

    return text


def _day(wall_s: float | None) -> str:
    """Format a time without seconds, and without the year of today."""
    text = _moment(wall_s)
    is_this_year = text[:5] == f"{datetime.now():%Y-}"
    return text if text == "–" else text[5 if is_this_year else 0 : -3]


def _many(count: int, word: str) -> str:
    """Format `1 job`, `1,200 jobs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _moment(wall_s: float | None) -> str:
    if wall_s is None:
        return "–"
    try:
        return f"{datetime.fromtimestamp(wall_s).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # no year of any calendar
        return "–"
