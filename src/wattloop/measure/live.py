"""Live power and energy so far: of this machine, or of a run that another process measures."""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wattloop.core.clock import VirtualClock
from wattloop.core.errors import MeterUnavailable, RunNotFound, WattloopError
from wattloop.core.records import Gap, Scope
from wattloop.core.results import Missing, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.meter_stream import DomainSource, MeterStream, domain_sources
from wattloop.measure.recovery import RecordedMeter
from wattloop.measure.run_journal import SIGNALS_FEED_OFFSET, domain_from_dict
from wattloop.measure.session import Session
from wattloop.measure.window_energy import window_energy
from wattloop.meters import nvidia
from wattloop.store.journal import (
    END,
    EVENT,
    HEADER,
    SAMPLES,
    JournalTail,
    journal_directory,
    journal_is_live,
)
from wattloop.store.run_record import SENSELESS

HISTORY_S = 60
RECENT_GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """State at one instant: energy so far in `result`, present power per domain."""

    result: WindowResult
    power_w: dict[str, float]
    history_w: dict[str, Sequence[float]]
    """Mean power of each of the last seconds; NaN without readings."""
    signals: dict[str, tuple[float, str]]
    """Value and unit of each signal."""
    gaps: tuple[tuple[str, str], ...] = ()
    """Domain and the reason why it cannot be read at present."""
    ended: str = ""
    """Status of the run, once it has ended."""
    steps: int = 0
    """Training steps that the journal has so far; they come in blocks."""
    step_domains_j: Mapping[str, float] = field(default_factory=dict)
    """Energy of these steps by domain."""

    @property
    def step_j(self) -> float | None:
        """Mean energy of a step; None without steps."""
        parts = [
            self.step_domains_j[d.name]
            for d in self.result.counted
            if d.name in self.step_domains_j
        ]
        return sum(parts) / self.steps if parts and self.steps else None

    @property
    def total_w(self) -> float | None:
        """Present power of the domains that make up the total."""
        parts = [self.power_w[d.name] for d in self.result.counted if d.name in self.power_w]
        return sum(parts) if parts else None


class SnapshotSource(Protocol):
    """A source of snapshots."""

    title: str

    def look(self) -> LiveSnapshot: ...

    def close(self) -> None: ...


class DeviceView:
    """Live view of this machine's devices; nothing is written."""

    def __init__(self, settings: Settings) -> None:
        self._session = Session.open(settings, name="watch", in_process=False, keep=False)
        self._history = _History(self._session.channels, self._session.started_s)
        self._units = _units(self._session.feeds)
        self.title = f"this machine ({self._session.host.name})"

    def look(self) -> LiveSnapshot:
        session = self._session
        now_s = session.clock.now_s()
        values = session.signals()
        return LiveSnapshot(
            result=session.between(session.started_s, now_s, name="watch"),
            power_w=session.power_w(),
            history_w=self._history.until(now_s),
            signals={name: (value, self._units[name]) for name, value in values.items()},
            gaps=_gaps(session.channels, now_s),
        )

    def close(self) -> None:
        self._session.close()

    def gpu_processes(self) -> dict[str, int]:
        """Return the process with most memory on each NVIDIA GPU, as far as NVML names any."""
        session = self._session
        identities = {
            c.domain.name: c.domain.identity
            for c in session.channels
            if c.domain.scope is Scope.GPU and c.domain.identity
        }
        found: dict[str, int] = {}
        try:
            nvml = nvidia.open_nvml(session.host) if identities else None
        except MeterUnavailable:
            nvml = None
        if nvml is None:
            return found
        for name, identity in identities.items():
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(identity)
                processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                largest = max(processes, key=lambda p: p.usedGpuMemory or 0, default=None)
                if largest is not None:
                    found[name] = int(largest.pid)
        nvidia.shut_down(nvml)
        return found


class JournalView:
    """Live view of a run that another process measures, from its journal."""

    def __init__(self, path: Path) -> None:
        self._tail = JournalTail(path)
        self._header: dict[str, Any] = {}
        self._feeds: list[MeterStream] = []
        self._channels: list[DomainSource] = []
        self._signals: dict[str, tuple[float, str]] = {}
        self._last_s = 0.0
        self._steps = 0
        self._step_domains_j: dict[str, float] = {}
        self._ended = ""
        self._history: _History | None = None
        self._path = path
        self.title = path.stem

    def look(self) -> LiveSnapshot:
        """Read the journal and return a snapshot; it lags by up to a second."""
        for kind, data in self._tail.poll():
            self._take(kind, data)
        if not self._header:
            raise RunNotFound(f"{self._path}: no readable beginning; the run may just be starting")
        if not self._ended and not journal_is_live(self._path):
            self._ended = "died: the measuring process is gone"
        begin_s = float(self._header["started_s"])
        end_s = max(begin_s, self._last_s)
        powers = ((c.domain.name, c.power_w()) for c in self._channels)
        assert self._history is not None
        return LiveSnapshot(
            result=window_energy(
                self._channels,
                [Missing(**m) for m in self._header.get("missing", ())],
                name=self._header["name"],
                window_id=0,
                parent_id=None,
                begin_s=begin_s,
                end_s=end_s,
            ),
            power_w={name: power for name, power in powers if power is not None},
            history_w=self._history.until(end_s),
            signals=dict(self._signals),
            gaps=_gaps(self._channels, end_s),
            ended=self._ended,
            steps=self._steps,
            step_domains_j=dict(self._step_domains_j),
        )

    def close(self) -> None:
        """Close the journal; the run continues."""
        self._tail.close()

    def _take(self, kind: bytes, data: Any) -> None:
        if kind == HEADER:
            self._begin(data)
        elif kind == SAMPLES and data.feed >= SIGNALS_FEED_OFFSET:
            self._take_signals(data)
        elif kind == SAMPLES and data.feed < len(self._feeds):
            self._take_samples(data)
        elif kind == EVENT and data.get("type") == "gap":
            self._take_gap(data)
        elif kind == EVENT and data.get("type") == "steps":
            self._take_steps(data)
        elif kind == END:
            self._ended = str(data.get("status", "ended"))

    def _begin(self, header: dict[str, Any]) -> None:
        self._header = header
        self.title = f"run {header['run_id']} ({header['name']})"
        self._feeds = [
            MeterStream(
                RecordedMeter([domain_from_dict(d) for d in f["domains"]]), VirtualClock(), i
            )
            for i, f in enumerate(header["feeds"])
        ]
        devices = header.get("settings", {}).get("devices", ())
        self._channels = domain_sources(self._feeds, devices)
        self._history = _History(self._channels, float(header["started_s"]))

    def _take_samples(self, block: Any) -> None:
        feed = self._feeds[block.feed]
        for i, time_s in enumerate(block.times_s):
            values = block.values[i * block.width : (i + 1) * block.width]
            feed.take(time_s, [Gap("not read") if math.isnan(v) else v for v in values])
            self._last_s = max(self._last_s, time_s)
        feed.drained()  # these readings are not written to another journal
        feed.thin_before(self._last_s)

    def _take_signals(self, block: Any) -> None:
        signals = self._header["feeds"][block.feed - SIGNALS_FEED_OFFSET]["signals"]
        newest = block.values[-block.width :] if block.width else ()
        for signal, value in zip(signals, newest, strict=False):
            self._signals[signal["name"]] = (value, signal["unit"])

    def _take_gap(self, event: dict[str, Any]) -> None:
        """Record a gap with its reason, which only the event has; the sample is just missing."""
        for channel in self._channels:
            if channel.domain.name == event.get("domain"):
                track = channel.feed.tracks[channel.index]
                track.last_gap = (float(event["time_s"]), str(event["reason"]))

    def _take_steps(self, event: dict[str, Any]) -> None:
        counts = event.get("count")
        self._steps += sum(counts) if counts else len(event["index"])
        for name, column in zip(event["domains"], event["energy_j"], strict=False):
            energy_j = sum(value for value in column if value is not None)
            self._step_domains_j[name] = self._step_domains_j.get(name, 0.0) + energy_j


class FollowedJournals:
    """Snapshots of several live journals, renewed by one thread at most once in `EVERY_S`.

    The first look at the journal of a long run takes seconds, so a caller gets what is known.
    """

    EVERY_S = 1.0

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wattloop-follow")
        self._guard = threading.Lock()
        self._views: dict[Path, JournalView] = {}
        self._known: dict[Path, LiveSnapshot] = {}
        self._renewing: Future[None] | None = None
        self._renewed_s = -math.inf

    def look(self, paths: Collection[Path], wait_s: float) -> dict[Path, LiveSnapshot]:
        """Return the last snapshot of each journal; waits for new ones for `wait_s` at most."""
        with self._guard:
            is_due = time.monotonic() - self._renewed_s >= self.EVERY_S
            if (is_due or not self._views.keys() >= set(paths)) and self._renewing is None:
                self._renewing = self._thread.submit(self._renew, frozenset(paths))
            renewing = self._renewing
        if renewing is not None:
            with suppress(TimeoutError):
                renewing.result(wait_s)
        return {path: self._known[path] for path in paths if path in self._known}

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        for view in self._views.values():
            view.close()

    def _renew(self, paths: frozenset[Path]) -> None:
        try:
            wanted = paths | {p for p, seen in self._known.items() if not seen.ended}
            for path in self._views.keys() - wanted:
                self._views.pop(path).close()
                self._known.pop(path, None)
            for path in wanted:
                self._renew_one(path)
        finally:
            with self._guard:
                self._renewing = None
                self._renewed_s = time.monotonic()

    def _renew_one(self, path: Path) -> None:
        try:
            view = self._views.get(path) or JournalView(path)
            self._views[path] = view
            self._known[path] = view.look()
        # ended this moment, or written by another machine, whose journals may hold anything
        except (WattloopError, OSError, *SENSELESS):
            self._known.pop(path, None)


def find_live_journal(store_location: str, run: str) -> Path:
    """Return the journal of the live run whose identifier is or begins with `run`.

    Raises:
        RunNotFound: with the runs that are being measured now.
    """
    paths = sorted(journal_directory(store_location).glob("*.journal"))
    live = [path for path in paths if journal_is_live(path)]
    matches = [path for path in live if path.stem == run] or [
        path for path in live if path.stem.startswith(run)
    ]
    if len(matches) == 1:
        return matches[0]
    now = ", ".join(path.stem for path in live) or "none"
    if matches:
        raise RunNotFound(f"{run} may be {' or '.join(p.stem for p in matches)}; give more of it")
    raise RunNotFound(
        f"no live run {run} in {store_location}; measured now: {now}. Ended runs are shown by "
        f"'wattloop runs show {run}'"
    )


class _History:
    """Mean power per second, computed once for each full second."""

    def __init__(self, channels: Sequence[DomainSource], begin_s: float) -> None:
        self._channels = channels
        self._next_s = begin_s
        self._values: dict[str, deque[float]] = {
            c.domain.name: deque(maxlen=HISTORY_S) for c in channels
        }

    def until(self, now_s: float) -> dict[str, Sequence[float]]:
        self._next_s = max(self._next_s, now_s - HISTORY_S - 1)
        while self._next_s + 1.0 <= now_s:
            for channel in self._channels:
                span = channel.between(self._next_s, self._next_s + 1.0)
                value = math.nan if span is None or span.covered <= 0 else span.energy_j
                self._values[channel.domain.name].append(value)
            self._next_s += 1.0
        return {name: tuple(values) for name, values in self._values.items()}


def _gaps(channels: Iterable[DomainSource], now_s: float) -> tuple[tuple[str, str], ...]:
    found = []
    for channel in channels:
        track = channel.track
        if track.lost is not None:
            found.append((channel.domain.name, f"lost: {track.lost[1]}"))
        elif track.last_gap is not None and now_s - track.last_gap[0] < RECENT_GAP_S:
            found.append((channel.domain.name, track.last_gap[1]))
    return tuple(found)


def _units(feeds: Iterable[MeterStream]) -> dict[str, str]:
    return {signal.name: signal.unit for feed in feeds for signal in feed.signals}
