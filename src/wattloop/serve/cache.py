"""Caches of answers and pages: by key, stale-while-revalidate, and on disk."""

import hashlib
import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import select

from wattloop.core.config_file import load_settings
from wattloop.core.errors import WattloopError
from wattloop.core.ownership import is_trusted
from wattloop.schedule.campaigns.campaign import source_digest
from wattloop.serve.worker import too_busy
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING, Experiment
from wattloop.store.schema import trials

T = TypeVar("T")


MOST_COMING = 64


"""Answers that may be in the making, or made and not asked for again."""


class KeyedCache:
    """Last answers by key; concurrent requests for one key share one computation.

    A key names all that the answer depends on: a search and how many of its trials have ended.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}
        self._guard = Lock()
        # few: a reader of another page must not wait for ten analyses at once
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="wattloop-analysis")
        self._coming: dict[Hashable, Future[Any]] = {}

    def soon(self, key: Hashable, make: Callable[[], T], wait_s: float) -> T | None:
        """Compute in the background; None when it takes longer than `wait_s`, to be asked again."""
        with self._guard:
            if key in self._kept:
                return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            coming = self._coming.get(key)
            if coming is None:
                self._make_room()
                coming = self._coming[key] = self._workers.submit(self.get, key, make)
        try:
            found: T = coming.result(wait_s)
        except NotYet:
            return None
        finally:
            if coming.done():
                with self._guard:
                    self._coming.pop(key, None)
        return found

    def _make_room(self) -> None:
        """Evict an answer that was not asked for again; refuse while all are being computed."""
        if len(self._coming) < MOST_COMING:
            return
        done = next((key for key, coming in self._coming.items() if coming.done()), None)
        if done is None:
            raise too_busy()
        del self._coming[done]

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached answer, else the result of `make`; errors are not cached."""
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            making = self._making.setdefault(key, Lock())
        with making:
            with self._guard:
                if key in self._kept:
                    return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            try:
                made = make()
            finally:
                with self._guard:
                    self._making.pop(key, None)
            with self._guard:
                self._kept[key] = made
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        return made


# Stale-while-revalidate: an answer is served for a multiple of the time that it takes to compute.
#
# An answer that takes 5 ms is computed for every request. One that takes 200 ms is served for 4 s;
# the next request then gets the old answer and starts a new computation in the background. The
# slower the answer or the busier the machine, the less often it is computed.

QUICK_S = 0.02


TIMES = 20.0


LONGEST_S = 15.0


OLDEST_S = 60.0


MOST_ANSWERS = 256


_log = logging.getLogger("wattloop.serve")


@dataclass(slots=True)
class _Answer:
    value: Any
    made_s: float
    until_s: float
    is_coming: bool = False


class StaleWhileRevalidateCache:
    """Last answers by key, served while a new one is computed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        # one: renewing ten lists at once would make the eleventh reader wait
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="wattloop-renew")

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached answer, else the result of `make`, shared by concurrent requests."""
        with self._guard:
            found = self._shown(key, make)
            if found is not None:
                return found.value  # type: ignore[no-any-return] # kept as it was made
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._guard:
                found = self._shown(key, make)
            return self._make(key, make) if found is None else found.value

    def _shown(self, key: Hashable, make: Callable[[], Any]) -> _Answer | None:
        found = self._known.get(key)
        if found is None or time.monotonic() - found.made_s > OLDEST_S:
            return None
        if found.until_s < time.monotonic() and not found.is_coming:
            found.is_coming = True
            self._worker.submit(self._renew, key, make)
        return found

    def _make(self, key: Hashable, make: Callable[[], T]) -> T:
        begun_s = time.monotonic()
        made = make()
        now_s = time.monotonic()
        took_s = now_s - begun_s
        with self._guard:
            self._making.pop(key, None)
            self._known.pop(key, None)
            if took_s > QUICK_S:
                until_s = now_s + min(TIMES * took_s, LONGEST_S)
                self._known[key] = _Answer(made, begun_s, until_s)
                while len(self._known) > MOST_ANSWERS:
                    self._known.popitem(last=False)
        return made

    def _renew(self, key: Hashable, make: Callable[[], Any]) -> None:
        try:
            self._make(key, make)
        except WattloopError as error:
            with self._guard:
                self._known.pop(key, None)  # the next request computes it and gets the error
            _log.warning("%s", error)


# Pages of finished experiments in the user's cache folder, so that they survive a restart.
#
# The key of a page is a hash of its inputs: the experiment and its trials as stored,
# the settings, the code, and the libraries that analyse and draw.

PARTS = (
    "analyze",
    "characterize",
    "core",
    "report",
    "schedule",
    "serve",
    "study",
    "trials",
    "tune",
)


LIBRARIES = ("altair", "numpy", "scikit-learn", "scipy", "statsmodels")


MOST_PAGES = 64


"""Pages that are kept; the longest unused go first."""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A report as parts of a page: headings and HTML."""

    title: str
    subtitle: str
    sections: list[tuple[str, str]]


class PageCache:
    """Pages of finished experiments on disk.

    Args:
        folder: where; `$XDG_CACHE_HOME/wattloop/pages` unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME")
        usual = (Path(base) if base else Path.home() / ".cache") / "wattloop" / "pages"
        self._folder = usual if folder is None else folder

    def get(
        self, store: Store, experiment: Experiment, make: Callable[[], ReportPage]
    ) -> ReportPage:
        """Return the cached page, else a new one; pages of running experiments are not cached."""
        if experiment.status == RUNNING:
            return make()
        path = self._folder / f"{_digest(store, experiment)}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):  # not there, or broken: made again
            if path.exists() and not is_trusted(path):
                return make()
            found = _page(json.loads(path.read_text("utf-8")))
            path.touch()
            return found
        page = make()
        with suppress(OSError):  # a folder that cannot be written is left
            self._keep(path, page)
        return page

    def _keep(self, path: Path, page: ReportPage) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(asdict(page)), "utf-8")
        part.replace(path)
        files = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for each in files[:-MOST_PAGES]:
            each.unlink(missing_ok=True)


def _page(data: Mapping[str, Any]) -> ReportPage:
    sections = [(str(heading), str(content)) for heading, content in data["sections"]]
    return ReportPage(str(data["title"]), str(data["subtitle"]), sections)


def _digest(store: Store, experiment: Experiment) -> str:
    own = trials.c.experiment_id == experiment.experiment_id
    with store.reading() as connection:
        rows = [
            tuple(row)
            for row in connection.execute(select(trials).where(own).order_by(trials.c.key))
        ]
    parts = (
        *(
            source_digest(PARTS),
            [_version(name) for name in LIBRARIES],
            repr(load_settings(needs=())),
        ),
        *(json.dumps(experiment.to_dict(), sort_keys=True, default=str), rows),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
