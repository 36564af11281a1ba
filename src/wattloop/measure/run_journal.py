"""The journal of a run as its session writes it, and its progress for other processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.files import CLOSE_ON_EXEC, NO_FOLLOW, NO_WAIT, atomic_write_json
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope
from wattloop.core.text import without_query_secrets
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.window_energy import Window
from wattloop.store.journal import JournalWriter
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.measure.session import Session


def _seed_suffixes() -> None:
    global _suffixes  # noqa: PLW0603 - a forked child must not continue its parent's numbers
    _suffixes = itertools.count(int.from_bytes(os.urandom(3), "big"))


_suffixes: Iterator[int]
_seed_suffixes()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seed_suffixes)


def new_run_id(wall_s: float, journals: Path | None = None) -> str:
    """Return a new run id, sortable by time: `20261115-031500-3f9a1c`.

    Ids do not repeat within a process. An id whose journal is in the folder `journals` belongs to
    a run of another process, and is not returned.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    while True:
        # An odd factor maps 2^24 numbers in a row to 2^24 different ones.
        run_id = f"{stamp}-{next(_suffixes) * 0x9E3779 % (1 << 24):06x}"
        # not Path.exists, which raises in a folder that cannot be read
        if journals is None or not os.path.exists(journals / f"{run_id}.journal"):  # noqa: PTH110
            return run_id


def journal_header(
    session: Session, *, command: Sequence[str] | None, kind: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the plain data of the first frame of a journal."""
    job = session.job or session.pool
    settings = {**session.settings._asdict(), "sources": dict(session.settings.sources)}
    return {
        "run_id": session.run_id,
        "name": session.name,
        "command": list(command) if command is not None else None,
        "kind": kind,
        "started_wall_s": session.started_wall_s,
        "started_s": session.started_s,
        "boot_id": session.host.boot_id,
        "host": session.host.name,
        "machine_id": session.host.machine_id,
        "pid": os.getpid(),
        "user": process_user(),
        "cwd": _cwd(),
        "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
        "version": __version__,
        "settings": without_secrets(settings),
        "tags": dict(tags),
        "job": None if job is None else job.to_dict(),
        "parent_run_id": session.parent_run_id,
        "feeds": [feed_to_dict(feed) for feed in session.feeds],
        "missing": [missing._asdict() for missing in session.missing],
    }


def feed_to_dict(feed: MeterStream) -> dict[str, Any]:
    return {
        "meter": feed.meter.name,
        "domains": [domain._asdict() for domain in feed.domains],
        "signals": [signal._asdict() for signal in feed.signals],
    }


def domain_from_dict(data: Mapping[str, Any]) -> Domain:
    """Convert back from `domain._asdict()`; fields of later versions are ignored."""
    known = set(Domain._fields)
    values = {name: value for name, value in data.items() if name in known}
    return Domain(
        **{
            **values,
            "kind": DomainKind(values["kind"]),
            "scope": Scope(values["scope"]),
            "provenance": Provenance(values["provenance"]),
        }
    )


def process_user() -> str:
    """Return the name of the user who owns this process."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers often run as a number without a name
        return str(os.getuid())
    except ImportError:  # Windows
        return os.environ.get("USERNAME", "")


def _cwd() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - the text is stored, no path is built from it
    except OSError:
        return ""


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove passwords in URLs, which must not reach a file."""
    kept = dict(settings)
    for name in ("redfish_url", "carbon_url", "carbon_provider", "store"):
        text = str(kept.get(name) or "")
        scheme, separator, rest = text.partition("://")
        if separator:
            user = "***@" if "@" in rest else ""
            kept[name] = without_query_secrets(f"{scheme}://{user}{rest.rpartition('@')[2]}")
    return kept


SIGNALS_FEED_OFFSET = 1_000
"""Signals of a stream are written under its index plus this."""
SYNC_EVERY_S = 5.0
WINDOWS_LIMIT = 50_000
"""Windows beyond this number are measured and returned, but not written one by one."""


class RunJournal:
    """The journal of one run; before `begin` everything is accepted and nothing is written.

    Windows and events may be added from any thread. One thread writes at a time: the end of a run
    waits for the sampler's thread, which may have thousands of windows to write.

    Args:
        synced: whether to sync the file to disk; that may take long, so only in a
            separate process.
    """

    def __init__(self, *, synced: bool) -> None:
        self._synced = synced
        self._synced_s = 0.0
        self._writer: JournalWriter | None = None
        self._events: deque[dict[str, Any]] = deque()
        self._windows: deque[Window] = deque()
        self._written_windows = 0
        self._writing = threading.Lock()

    def begin(self, path: Path, header: dict[str, Any], now_s: float) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be written.
        """
        self._writer = JournalWriter(path, header)
        self._synced_s = now_s

    def take_over(self, writer: JournalWriter) -> None:
        """Continue a journal that an earlier process began."""
        self._writer = writer

    @property
    def path(self) -> Path | None:
        return None if self._writer is None else self._writer.path

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """Events that wait to be written."""
        return tuple(self._events)

    def add_event(self, event: dict[str, Any]) -> None:
        """Add an event: a step, an epoch, a note."""
        self._events.append(event)

    def add_gap(self, time_s: float, domain: str, gap: Gap) -> None:
        self.add_event(
            {
                "type": "gap",
                "time_s": time_s,
                "domain": domain,
                "reason": gap.reason,
                "lost": gap.lost,
            }
        )

    def add_window(self, window: Window) -> None:
        self._windows.append(window)

    def write(
        self, feeds: Iterable[MeterStream], now_s: float, settled: Callable[[float], bool]
    ) -> None:
        """Write the buffered frames; windows whose end is not `settled` yet wait."""
        with self._writing:
            self._write(feeds, now_s, settled)

    def wait_for_writer(self) -> bool:
        """Wait for the thread that is writing; return False when none is."""
        if self._writing.acquire(blocking=False):
            self._writing.release()
            return False
        with self._writing:
            return True

    def _write(
        self, feeds: Iterable[MeterStream], now_s: float, settled: Callable[[float], bool]
    ) -> None:
        for feed in feeds:
            self._write_samples(feed)
        self._write_windows(settled)
        while self._events:
            event = self._events.popleft()
            if self._writer is not None:
                self._writer.event(event)
        if self._writer is not None and self._synced and now_s - self._synced_s > SYNC_EVERY_S:
            self._writer.sync()
            self._synced_s = now_s

    def end(self, outcome: dict[str, Any]) -> str | None:
        """Write the end of the run and close the file; return the reason if that failed."""
        if self._writer is None:
            return None
        with self._writing:
            written = self._writer.end(outcome)
            self._writer.close()
        return None if written else self._writer.fault or f"{self._writer.path}: closed"

    def release(self) -> None:
        """Close the file without an end: another process continues it, or it crashed."""
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        """In a forked child: drop the file without touching the parent's."""
        if self._writer is not None:
            self._writer.abandon()

    def warnings(self) -> list[str]:
        """Warnings about content that is not in the file."""
        warnings = []
        if self._writer is not None and self._writer.fault is not None:
            warnings.append(
                f"the disk refused readings ({self._writer.fault}): the energy holds them, the "
                "stored curve may not"
            )
        if self._written_windows > WINDOWS_LIMIT:
            warnings.append(
                f"{self._written_windows} windows; only the first {WINDOWS_LIMIT} are kept one "
                "by one"
            )
        return warnings

    def _write_samples(self, feed: MeterStream) -> None:
        times_s, values, signal_times_s, signal_values = feed.drained()
        writer = self._writer
        if writer is not None and times_s:
            writer.samples(feed.index, len(feed.domains), times_s, values)
        if writer is not None and signal_times_s:
            index = feed.index + SIGNALS_FEED_OFFSET
            writer.samples(index, len(feed.signals), signal_times_s, signal_values)

    def _write_windows(self, settled: Callable[[float], bool]) -> None:
        for _ in range(len(self._windows)):
            window = self._windows.popleft()
            if not settled(window.end_s or 0.0):
                self._windows.append(window)
                continue
            self._written_windows += 1
            if self._written_windows > WINDOWS_LIMIT:
                continue
            result = window.result  # computed while the curve still has all its points
            if self._writer is not None:
                self._writer.event({"type": "window", "window": result.to_dict()})


# Progress of a run for other processes of the machine, such as the agent of the node: a small file
# next to the step files of its program, replaced every few seconds.

PROGRESS_FILE = "progress.json"
MOST_PROGRESS_B = 16_384
PHASES = (
    *("start-up", "compilation", "checkpoint", "evaluation", "waiting for data", "pause"),
    *("training", "tail"),
)
"""Phases of a run with steps, in the order in which they are shown."""


class RunProgress(NamedTuple):
    """Steps and phases of a run so far. Times are of the machine's monotonic clock.

    Attributes:
        samples, tokens: of all steps; None where the program does not tell.
        last_step_s: end of the last step; None before the first.
        phases: phase -> seconds, and joules where they are known, up to `until_s`.
        until_s: the time after it belongs to no phase yet.
        local_rank: of the process that measures; ranks of one node make the same steps.
    """

    steps: int = 0
    samples: float | None = None
    tokens: float | None = None
    last_step_s: float | None = None
    phases: Mapping[str, tuple[float, float | None]] = {}
    until_s: float = 0.0
    local_rank: int = 0

    def write(self, folder: Path) -> None:
        """Write the file. Raises OSError: the folder is gone, or the disk is full."""
        atomic_write_json(folder / PROGRESS_FILE, self._asdict(), mode=0o600)

    @classmethod
    def read(cls, folder: Path, uid: int) -> RunProgress | None:
        """Read the file of another user's run; None unless it is a plain file of that user.

        It may say anything: numbers are checked, and other phases than `PHASES` are left out.
        """
        try:
            flags = os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC
            with os.fdopen(os.open(folder / PROGRESS_FILE, flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
                    return None
                data = json.loads(file.read(MOST_PROGRESS_B))
            phases = data["phases"]
            return cls(
                steps=int(_amount(data["steps"]) or 0),
                samples=_amount(data["samples"]),
                tokens=_amount(data["tokens"]),
                last_step_s=_amount(data["last_step_s"]),
                phases={
                    name: (_amount(phases[name][0]) or 0.0, _amount(phases[name][1]))
                    for name in PHASES
                    if name in phases
                },
                until_s=_amount(data["until_s"]) or 0.0,
                local_rank=int(_amount(data["local_rank"]) or 0),
            )
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
            return None


def _amount(value: Any) -> float | None:
    """Return a number that may be an amount; raises ValueError for another."""
    if value is None:
        return None
    number = float(value)
    if isinstance(value, bool | str) or not 0 <= number < 1e18 or not math.isfinite(number):
        raise ValueError(value)
    return number
