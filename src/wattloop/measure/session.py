"""A session: meters being read on behalf of one run, from its beginning to its end."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wattloop.core.clock import Clock
from wattloop.core.records import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings, settings_from
from wattloop.hardware.host import Host
from wattloop.measure.header import journal_header
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE, Job, job_from_environment
from wattloop.measure.meter import Context
from wattloop.measure.node_reader import NodeReader
from wattloop.measure.registry import Inventory, detect
from wattloop.measure.resolve import resolve_window
from wattloop.measure.run_journal import RunJournal
from wattloop.measure.windows import Window
from wattloop.store.journal import journal_directory

if TYPE_CHECKING:
    from wattloop.measure.run_result import RunResult

__all__ = ["Session"]

ROOT_WINDOW_ID = 0
SETTLE_S = 3.0
EDGE_SLACK_S = 0.01
NOTES_LIMIT = 20


class Session:
    """Reads meters in the background, hands out windows, keeps the journal.

    Open one with `Session.open`; close it with `close`, which returns the run's result. Nothing
    here raises because of a device, a disk or another process: what goes wrong is in `notes`.
    """

    def __init__(
        self,
        context: Context,
        inventory: Inventory,
        *,
        run_id: str,
        name: str,
        job: Job | None,
        in_process: bool,
        beside: bool = False,
    ) -> None:
        self.run_id = run_id
        self.name = name
        self.settings = context.settings
        self.clock: Clock = context.clock
        self.host = context.host
        self.job = job
        self.parent_run_id = os.environ.get(RUN_VARIABLE)
        self.notes: list[str] = []
        self.inventory = inventory
        self.reader = NodeReader(
            context,
            inventory,
            run_id=run_id,
            job=job,
            in_process=in_process,
            beside=beside,
            note=self._note_now,
        )
        self.feeds = self.reader.feeds
        self.channels = self.reader.channels
        self.missing: list[Missing] = _wanted(inventory.missing(), context.settings.devices)
        self.started_s = context.clock.now_s()
        self.started_wall_s = context.clock.wall_s()
        self.role = self.reader.role
        self._in_process = in_process
        self._edge_feeds = self.reader.edge_feeds
        self._ids = itertools.count(ROOT_WINDOW_ID)
        self._open: dict[int, Window] = {}
        self._journal = RunJournal(synced=not in_process)
        self._closing = threading.Lock()
        self._abandoned = False
        self._suspended_s = context.clock.suspended_s()
        self.closed: RunResult | None = None
        self.before_end: list[Callable[[], None]] = []
        """Called when the last readings are in and the journal is still open."""

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        name: str = "run",
        command: Sequence[str] | None = None,
        kind: str = "python",
        in_process: bool = True,
        tags: Mapping[str, str] | None = None,
        context: Context | None = None,
        keep: bool = True,
    ) -> Session:
        """Find meters, take the first readings, open the journal and start the sampler.

        Args:
            settings: the user's; read from the environment when not given.
            name: what the run is called.
            command: the program, when one is being watched.
            kind: `command` or `python`.
            in_process: whether this process is the one being measured; a watcher may read more.
            tags: the user's own labels.
            context: machine, settings and clock, for tests and simulations.
            keep: whether the run is written to the store.
        """
        given = context
        if context is None:
            settings = settings_from(os.environ) if settings is None else settings
            context = Context(Host.from_environment(), settings)
        run_id = new_run_id(context.clock.wall_s())
        session = cls(
            context,
            detect(context, explain=False),
            run_id=run_id,
            name=name,
            job=job_from_environment(),
            in_process=in_process,
            beside=given is None,
        )
        session._begin(keep, command, kind, tags or {})
        return session

    # -- windows ---------------------------------------------------------------------------

    def begin(self, name: str = "window", parent: Window | None = None) -> Window:
        """Begin a window; end it with `Window.end` or use it as a context manager."""
        for feed in self._edge_feeds:
            feed.sample_at_edge()
        parent_id = ROOT_WINDOW_ID if parent is None else parent.window_id
        window = Window(self, next(self._ids), name, parent_id, self.clock.now_s())
        self._open[window.window_id] = window
        return window

    def window_ended(self, window: Window) -> None:
        """Called by the window."""
        window.end_s = self.clock.now_s()
        if self._abandoned or self.closed is not None:
            return
        for feed in self._edge_feeds:
            feed.sample_at_edge()
        self._open.pop(window.window_id, None)
        self._journal.add_window(window)

    def resolve(self, window: Window) -> WindowResult:
        """Energy of a window from the readings so far."""
        warnings: tuple[str, ...] = ()
        if self._abandoned:
            warnings = ("this process was forked from the one being measured; energy is there",)
        end_s = self.clock.now_s() if window.end_s is None else window.end_s
        return self.between(
            window.begin_s,
            end_s,
            name=window.name,
            window_id=window.window_id,
            parent_id=window.parent_id,
            warnings=warnings,
        )

    def settled(self, end_s: float) -> bool:
        """Whether every sensor has been read since `end_s`, so that it lies between two points."""
        if self._abandoned or self.closed is not None:
            return True
        # A sensor that fell silent will not sharpen anything any more.
        if self.clock.now_s() > end_s + SETTLE_S:
            return True
        self.reader.refresh()
        lasts_s = (channel.track.last_read_s for channel in self.channels)
        return all(last_s > end_s + EDGE_SLACK_S for last_s in lasts_s)

    def between(
        self,
        begin_s: float,
        end_s: float,
        *,
        name: str = "",
        window_id: int = -1,
        parent_id: int | None = None,
        warnings: Sequence[str] = (),
    ) -> WindowResult:
        """Energy between two instants of the machine's monotonic clock."""
        self.reader.refresh()
        return resolve_window(
            () if self._abandoned else self.channels,
            self.missing,
            name=name,
            window_id=window_id,
            parent_id=parent_id,
            begin_s=begin_s,
            end_s=end_s,
            warnings=warnings,
        )

    def record(self, event: dict[str, Any]) -> None:
        """Put an event (a step, an epoch, a note) into the journal at the next flush."""
        self._journal.add_event(event)

    def note(self, text: str) -> None:
        """Say something about this run to whoever reads its result; the same thing once."""
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)

    def power_w(self) -> dict[str, float]:
        """Power of every domain now."""
        self.reader.refresh()
        powers = ((c.domain.name, c.power_w()) for c in self.channels)
        return {name: power for name, power in powers if power is not None}

    def signals(self) -> dict[str, float]:
        """Utilisation, clocks, temperatures as last read."""
        self.reader.refresh()
        return {k: v for feed in self.feeds for k, v in feed.signal_values.items()}

    # -- ending ----------------------------------------------------------------------------

    def close(
        self,
        status: RunStatus = RunStatus.FINISHED,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        end_s: float | None = None,
    ) -> RunResult:
        """Take the last readings, write the end of the journal, and return the result."""
        with self._closing:
            if self.closed is not None:
                return self.closed
            end_s = self.clock.now_s() if end_s is None else end_s
            hung = not self.reader.stop(end_s)
            if hung:
                self.note("a meter does not answer; its last readings are missing")
            self._end_open_windows(end_s)
            self._call_before_end()
            self._flush(final=True)
            self.role.settle(self.started_s)
            result = self._whole_run(end_s)
            self.closed = self._run_result(result, status, exit_code, signal)
            self._write_end(self.closed)
            self.role.release(end_s)
            if not hung:
                self.inventory.close()
            self.leave_environment()
            return self.closed

    def abandon(self) -> None:
        """In a forked child: let go of everything without touching the parent's files."""
        self._abandoned = True
        self._journal.abandon()
        self.reader.abandon()

    def leave_environment(self) -> None:
        """What this process starts from now on is no longer part of the run."""
        for variable in (JOB_VARIABLE, RUN_VARIABLE):
            if os.environ.get(variable) == self.run_id:
                del os.environ[variable]

    @property
    def journal_path(self) -> str | None:
        """Where the live journal is."""
        path = self._journal.path
        return None if path is None else str(path)

    # -- inside ----------------------------------------------------------------------------

    def _begin(
        self, keep: bool, command: Sequence[str] | None, kind: str, tags: Mapping[str, str]
    ) -> None:
        if self.settings.devices and not self.channels:
            self.note(
                f"none of the devices {', '.join(self.settings.devices)} can be read here; "
                "'wattloop devices' lists what can"
            )
        next(self._ids)  # the root window
        for feed in self.feeds:
            feed.on_gap = self._journal.add_gap
        self.reader.first_readings()
        self.started_s = self.clock.now_s()
        self.started_wall_s = self.clock.wall_s()
        if keep:
            self._open_journal(command, kind, tags)
        self.reader.decide(self._journal.path)
        if self.job is None and self._in_process:
            os.environ[JOB_VARIABLE] = self.run_id
            os.environ[RUN_VARIABLE] = self.run_id
        try:
            self.reader.start(on_flush=self._flush, on_fault=self._fault)
        except RuntimeError as error:  # too many threads, or the interpreter is shutting down
            self.note(f"no thread could be started ({error}); only the ends of windows are read")
        self._note_role()

    def _open_journal(
        self, command: Sequence[str] | None, kind: str, tags: Mapping[str, str]
    ) -> None:
        path = journal_directory(self.settings.store_location) / f"{self.run_id}.journal"
        header = journal_header(self, command=command, kind=kind, tags=tags)
        try:
            self._journal.begin(path, header, self.clock.now_s())
        except OSError as error:
            self.note(
                f"this run will not be kept: cannot write {path} ({error.strerror or error}); "
                "choose another place with --store or WATTLOOP_STORE"
            )

    def _flush(self, final: bool = False) -> None:
        """Everything gathered since the last flush goes to the journal."""
        if self.reader.flush(ending=final):
            self._note_role()
        self._notice_suspend()
        now_s = self.clock.now_s()
        self._journal.write(self.feeds, now_s, lambda end_s: final or self.settled(end_s))
        self.reader.thin_before(now_s)

    def _fault(self, error: Exception) -> None:
        """Something of ours failed in the background; the sampler goes on."""
        self.note(f"{type(error).__name__} while measuring: {error}; readings may be missing")

    def _note_role(self) -> None:
        """Whoever finds the journal without an end must know whether this run counted."""
        if self.job is None:
            return
        role: dict[str, Any] = {"counts": self.role.counts, "counted_by": self.role.counted_by}
        if self.role.counts_from_s > self.started_s:
            role["counts_from_s"] = self.role.counts_from_s
        self.record({"type": "role", "time_s": self.clock.now_s(), **role})

    def _notice_suspend(self) -> None:
        suspended_s = self.clock.suspended_s()
        asleep_s = suspended_s - self._suspended_s
        if asleep_s > 1.0:
            self._suspended_s = suspended_s
            self._note_now(
                f"the machine was suspended for {asleep_s:.0f} s; that time is not in the run"
            )

    def _note_now(self, text: str) -> None:
        """A note that is also in the journal, with its time."""
        self.note(text)
        self.record({"type": "note", "time_s": self.clock.now_s(), "text": text})

    def _end_open_windows(self, end_s: float) -> None:
        for window in list(self._open.values()):
            window.end_s = end_s
            self._journal.add_window(window)
            self.note(f"window '{window.name}' was never closed; it ends with the run")
        self._open.clear()

    def _call_before_end(self) -> None:
        for listener in list(self.before_end):
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - a listener must not cost the run its end
                self.note(f"{type(error).__name__} while the run ended: {error}")

    def _whole_run(self, end_s: float) -> WindowResult:
        """Energy of the run; of what another process of the job has counted, only the rest."""
        warnings = [*self.notes, *self._journal.warnings()]
        from_s = max(self.started_s, min(self.role.counts_from_s, end_s))
        if from_s > self.started_s:
            warnings.append(
                f"another process of this job counted the first {from_s - self.started_s:.1f} s; "
                "this run counts the rest"
            )
        result = self.between(
            from_s, end_s, name=self.name, window_id=ROOT_WINDOW_ID, warnings=warnings
        )
        return result._replace(begin_s=self.started_s)

    def _run_result(
        self, result: WindowResult, status: RunStatus, exit_code: int | None, signal: int | None
    ) -> RunResult:
        from wattloop.measure.run_result import RunResult

        facts: dict[str, Any] = {
            "run_id": self.run_id,
            "status": status,
            "exit_code": exit_code,
            "signal": signal,
            "started_wall_s": self.started_wall_s,
            "counted": self.role.counts,
            "nested": self.role.nested,
            "counted_by": self.role.counted_by,
        }
        try:
            return RunResult.of(result, self.settings, machine_id=self.host.machine_id, **facts)
        except Exception as error:  # noqa: BLE001 - what joules mean must not cost us the joules
            text = f"not accounted for: {type(error).__name__}: {error}"
            return RunResult(result=result._replace(warnings=(*result.warnings, text)), **facts)

    def _write_end(self, run: RunResult) -> None:
        end_s = run.result.end_s
        fault = self._journal.end({"type": "end", "time_s": end_s, **run.to_end_dict()})
        if fault is not None and not any(fault in text for text in run.result.warnings):
            text = f"the end of this run could not be kept: {fault}; it will be listed as died"
            self.note(text)
            result = run.result._replace(warnings=(*run.result.warnings, text))
            self.closed = run.with_result(result)


def new_run_id(wall_s: float) -> str:
    """Sortable by time and unique: `20261115-031500-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(wall_s))
    return f"{stamp}-{os.urandom(3).hex()}"


def _wanted(missing: Sequence[Missing], devices: Sequence[str]) -> list[Missing]:
    if not devices:
        return list(missing)
    return [
        m
        for m in missing
        if any(m.name == d or m.name.startswith((f"{d}:", f"{d}/")) for d in devices)
    ]
