"""Measurement session: the meters, sampler, windows and journal of one run, and its result."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from wattloop.core.errors import WattloopError
from wattloop.core.records import Scope, picked
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings, settings_from
from wattloop.hardware.host import Host
from wattloop.measure.concurrent_runs import Presence, SharedTime, runs_folder
from wattloop.measure.job import RUN_VARIABLE, Job, current_job, current_pool, enter_job, leave_job
from wattloop.measure.meter_stream import DomainSource, selected
from wattloop.measure.process_share import ProcessShares, is_divided
from wattloop.measure.run_journal import RunJournal, journal_header, new_run_id
from wattloop.measure.sampler import NodeReader
from wattloop.measure.window_energy import Window, window_energy
from wattloop.meters.base import Context
from wattloop.meters.registry import Inventory, detect
from wattloop.meters.visible_gpus import HiddenGpus, gpus_left_out
from wattloop.store.journal import is_other_file, journal_directory


class RunResult(NamedTuple):
    """Energy of a run, its accounting, and whether this run counts the devices.

    A process that shares its node with others of the same job does not count what another one
    already counts: then `counted` is False and `counted_by` names that run. A rank among others
    then reports no energy of its own; a run nested in another (`nested`) does, as a part of it.
    """

    run_id: str
    status: RunStatus
    exit_code: int | None
    signal: int | None
    started_wall_s: float
    result: WindowResult
    accounting: Mapping[str, Any] = MappingProxyType({})
    summary: str = ""
    counted: bool = True
    counted_by: str | None = None
    nested: bool = False
    left_out: tuple[HiddenGpus, ...] = ()
    """GPUs of the machine that the environment hides from the program: excluded from all numbers of
    the run."""
    shared: SharedTime | None = None
    """Time in which other runs counted the same devices."""
    saving: Mapping[str, Any] | None = None
    """What `wattloop run --save` saved, and how that is known."""

    def _repr_html_(self) -> str:
        from wattloop.core.results import result_html

        lines = [self.summary] if self.summary else []
        return result_html(self.result, [*lines, f"run {self.run_id}, {self.status.value}"])

    def accounted(self, settings: Settings, machine_id: str) -> RunResult:
        """Return a copy with its accounting: idle energy, carbon, cost and labels."""
        from wattloop.accounting.summary import account

        if settings.share == "process" or any(map(is_divided, self.result.domains)):
            lines, idle_note = None, "the idle line is that of the whole machine"
        else:
            lines, idle_note = _idle(settings, machine_id, self.started_wall_s)
        accounting = account(
            self.result,
            settings,
            idle_lines=lines,
            idle_note=idle_note,
            started_wall_s=self.started_wall_s,
        )
        return self._replace(accounting=accounting.to_dict(), summary=accounting.line)

    def with_warning(self, text: str) -> RunResult:
        """Return a copy with one more warning."""
        return self._replace(result=self.result._replace(warnings=(*self.result.warnings, text)))

    @property
    def energy_j(self) -> float | None:
        """Joules; None when nothing could be read or another run counts them."""
        return self.result.energy_j if self.reported else None

    @property
    def reported(self) -> bool:
        """True if this run reports the devices it read."""
        return self.counted or self.nested

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Parts that are not in the total."""
        if self.reported:
            return self.result.missing
        reason = f"counted once on this node, by run {self.counted_by or 'of another rank'}"
        return tuple(Missing(d.name, reason) for d in self.result.domains)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        result = self.result
        cost = self.accounting.get("cost") or {}
        domains = [
            picked(d, "name energy_j provenance uncertainty_j source scope in_total covered")
            for d in result.domains
            if d.energy_j is not None
        ]
        return {
            **picked(self, "run_id status exit_code signal started_wall_s"),
            "duration_s": result.duration_s,
            "energy_j": self.energy_j,
            "uncertainty_j": result.uncertainty_j if self.reported else None,
            "complete": result.complete and self.reported,
            "domains": domains if self.reported else [],
            "missing": [missing._asdict() for missing in self.missing],
            "warnings": list(result.warnings),
            "carbon_g": self.accounting.get("carbon_g"),
            "cost": cost.get("amount"),
            "currency": cost.get("currency"),
            "labels": self.accounting.get("labels", {}),
            "accounting": dict(self.accounting),
            "counted": self.counted,
            "counted_by": self.counted_by,
            "left_out": [
                {"name": name, "reason": each.because}
                for each in self.left_out
                for name in each.names
            ],
            "shared": None if self.shared is None else self.shared.to_dict(),
            "saving": None if self.saving is None else dict(self.saving),
            "summary": self.summary,
        }

    def to_end_dict(self) -> dict[str, Any]:
        """Return the data of the last frame of a journal."""
        return {
            "wall_s": self.started_wall_s + self.result.duration_s,
            "status": self.status.value,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "result": self.result.to_dict(),
            "accounting": dict(self.accounting),
            "counted": self.counted,
            "counted_by": self.counted_by,
            "shared": None if self.shared is None else self.shared.to_dict(),
            "saving": None if self.saving is None else dict(self.saving),
        }


def _idle(settings: Settings, machine_id: str, now_wall_s: float) -> tuple[Any, str]:
    """Return this machine's idle lines, if it has any, and their age."""
    import platform

    from wattloop.accounting.idle import idle_path, load_idle

    try:
        record = load_idle(idle_path(settings.store_location, machine_id))
    except WattloopError as error:
        return None, str(error)
    if record is None:
        return None, ""
    return record.lines, record.note(now_wall_s, platform.release())


SETTLE_S = 3.0
EDGE_SLACK_S = 0.01
NOTES_LIMIT = 20
ASLEEP_S = 1.0
"""A shorter difference between the clocks is not a suspend: they were read a moment apart."""
ROOT_WINDOW_ID = 0


class Session:
    """A session that reads meters in the background, opens windows and writes the journal.

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
        separate_process: bool = False,
    ) -> None:
        self.run_id = run_id
        self.name = name
        self.settings = context.settings
        self.host = context.host
        self.job = job
        self.pool = current_pool() if job is None else None
        self.parent_run_id = os.environ.get(RUN_VARIABLE)
        self.notes: list[str] = []
        self.inventory = inventory
        self.clock = context.clock
        self._suspended_s = context.clock.suspended_s()
        self._journal = RunJournal(synced=not in_process)
        self.reader = reader = NodeReader(
            context,
            inventory,
            run_id=run_id,
            job=job,
            in_process=in_process,
            separate_process=separate_process,
            note=self._note_now,
        )
        self.role = reader.role
        self.feeds = reader.feeds
        self.channels = reader.channels
        devices = context.settings.devices
        self.missing = [part for part in inventory.missing() if selected(part.name, devices)]
        self._abandoned = False
        self.shares: ProcessShares | None = None
        """Divides the energy of the devices between this run and others, if configured."""
        self.started_s = context.clock.now_s()
        self.started_wall_s = context.clock.wall_s()
        split = {channel.domain.name for channel in self.channels if channel.domain.is_split}
        if context.settings.share == "process" or split:
            from wattloop.accounting.idle import fitted_idle_power

            gpus = [channel.domain.name for channel in self.channels if _is_gpu(channel)]
            only = None if context.settings.share == "process" else split
            folder = runs_folder(create=True) if separate_process else None
            idle_w = fitted_idle_power(context.settings, context.host.machine_id)
            self.shares = ProcessShares(context.host, gpus, inventory.meters, only, folder, idle_w)
        self._in_process = in_process
        self._edge_feeds = reader.edge_feeds
        self._ids = itertools.count(ROOT_WINDOW_ID)
        self._open: dict[int, Window] = {}
        self._closing = threading.Lock()
        self.closed: RunResult | None = None
        # With an injected clock or machine, times of other runs have no meaning.
        self._presence = Presence(self, real=separate_process)
        self.left_out: tuple[HiddenGpus, ...] = ()
        self.ended_s: float | None = None
        self.before_end: list[Callable[[], None]] = []
        """Called after the last readings, while the journal is still open."""
        self.around_stop: tuple[list[Callable[[], None]], list[Callable[[], None]]] = ([], [])
        """Called before `wattloop run` stops with its program (ctrl-Z), and when both continue."""
        self.saving: dict[str, Any] | None = None
        """What the saver of `wattloop run --save` has reached so far."""

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
            name: name of the run.
            command: the program, under `wattloop run`.
            kind: `command` or `python`.
            in_process: whether this process is the one being measured. `wattloop run` may
                read more.
            tags: the user's own labels.
            context: machine, settings and clock, for tests and simulations.
            keep: whether the run is written to the store.
        """
        given = context
        if context is None:
            settings = settings_from(os.environ) if settings is None else settings
            context = Context(Host.from_environment(), settings)
        journals = journal_directory(context.settings.store_location)
        run_id = new_run_id(context.clock.wall_s(), journals)
        inventory, job = detect(context, explain=False), current_job()
        left_out = _gpus_left_out(context, inventory, job)
        hidden = [f"-{name}" for each in left_out for name in each.names]
        if hidden:
            devices = (*context.settings.devices, *hidden)
            context = context._replace(settings=context.settings._replace(devices=devices))
            job = None if job is None else job.for_devices(hidden)
        session = cls(
            context,
            inventory,
            run_id=run_id,
            name=name,
            job=job,
            in_process=in_process,
            separate_process=given is None,
        )
        session.left_out = tuple(left_out)
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
        window.end_s = self.clock.now_s()
        if self._abandoned or self.closed is not None:
            return
        for feed in self._edge_feeds:
            feed.sample_at_edge()
        self._open.pop(window.window_id, None)
        self._journal.add_window(window)

    def resolve(self, window: Window) -> WindowResult:
        """Compute the energy of a window from the readings so far."""
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
        """Return True if later readings cannot improve the energy up to `end_s`."""
        if self._abandoned or self.closed is not None:
            return True
        return self.read_since(end_s)

    def record(self, event: dict[str, Any]) -> None:
        """Write an event (a step, an epoch, a note) to the journal at the next flush."""
        self._journal.add_event(event)

    def record_saving(self, saving: dict[str, Any]) -> None:
        """Replace what the run says of its saving; also in the journal, if this process dies."""
        self.saving = saving
        self.record({"type": "saving", "time_s": self.clock.now_s(), "saving": saving})

    def note(self, text: str) -> None:
        """Add a note to the run's result, each text once."""
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)

    # -- readings ---------------------------------------------------------------------------

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
        """Return the energy between two instants of the machine's monotonic clock."""
        self.reader.refresh()
        result = window_energy(
            () if self._abandoned else self.channels,
            self.missing,
            name=name,
            window_id=window_id,
            parent_id=parent_id,
            begin_s=begin_s,
            end_s=end_s,
            warnings=warnings,
        )
        if self.shares is None or self._abandoned:
            return result
        return self.shares.applied(result, self.channels)

    def read_since(self, end_s: float) -> bool:
        """Return True if every sensor was read after `end_s`: it lies between two points."""
        # A sensor without readings will not improve the result.
        if self.clock.now_s() > end_s + SETTLE_S:
            return True
        self.reader.refresh()
        lasts_s = (channel.track.last_read_s for channel in self.channels)
        return all(last_s > end_s + EDGE_SLACK_S for last_s in lasts_s)

    def power_w(self) -> dict[str, float]:
        """Return the present power of every domain."""
        self.reader.refresh()
        powers = ((c.domain.name, c.power_w()) for c in self.channels)
        return {name: power for name, power in powers if power is not None}

    def signals(self) -> dict[str, float]:
        """Return the last utilisation, clocks and temperatures."""
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
            end_s = self.ended_s = self.clock.now_s() if end_s is None else end_s
            self._presence.announce_end(end_s)
            if self.shares is not None:
                self.shares.announce_end(end_s)
            hung = not self.reader.stop(end_s)
            if hung and self._journal.wait_for_writer():
                hung = not self.reader.stop(end_s)
            if hung:
                self.note("a meter does not answer; its last readings are missing")
            self._end_open_windows(end_s)
            self._call_before_end()
            self._flush(final=True)
            self.role.settle(self.started_s, end_s, self.feeds)
            left_out = [each.text for each in self.left_out]
            warnings = [*self.notes, *left_out, *self._journal.warnings()]
            result = self._whole_run(end_s, warnings)
            shared = self._presence.end(result, end_s)
            run = self._run_result(result, shared, status, exit_code, signal)
            self.closed = self._end_journal(run)
            self.role.release(end_s, self.feeds)
            if not hung:
                self.inventory.close()
            self.leave_environment()
            return self.closed

    def abandon(self) -> None:
        """In a forked child: drop everything without touching the parent's files."""
        self._abandoned = True
        self._journal.abandon()
        self.reader.abandon()

    def enter_environment(self) -> None:
        """Make processes started from now on part of the run."""
        if self.job is None and self._in_process:
            enter_job(self.run_id)

    def leave_environment(self) -> None:
        """End `enter_environment`: processes started from now on are not part of the run."""
        leave_job(self.run_id)

    @property
    def journal_path(self) -> str | None:
        path = self._journal.path
        return None if path is None else str(path)

    # -- inside ----------------------------------------------------------------------------

    def _begin(
        self, keep: bool, command: Sequence[str] | None, kind: str, tags: Mapping[str, str]
    ) -> None:
        asked = [device for device in self.settings.devices if not device.startswith("-")]
        if asked and not self.channels:
            self.note(
                f"none of the devices {', '.join(asked)} can be read here; "
                "'wattloop devices' lists what can"
            )
        next(self._ids)  # the root window
        for feed in self.feeds:
            feed.on_gap = self._journal.add_gap
        self.reader.first_readings()
        self.started_s = self.clock.now_s()
        self.started_wall_s = self.clock.wall_s()
        if self.shares is not None:
            self.shares.look(self.started_s)
            self.shares.begin(self.channels, self.started_s)
        if keep:
            self._presence.begin(self.started_s)
            self._begin_journal(journal_header(self, command=command, kind=kind, tags=tags))
        self.reader.decide(self._journal.path)
        self._presence.update(self._journal)
        self.enter_environment()
        try:
            self.reader.start(on_flush=self._flush, on_fault=self._note_fault)
        except RuntimeError as error:  # too many threads, or the interpreter is shutting down
            self.note(f"no thread could be started ({error}); only the ends of windows are read")
        self._record_role()

    def _flush(self, final: bool = False) -> None:
        """Write everything gathered since the last flush to the journal."""
        if self.reader.flush(ending=final):
            self._record_role()
        self._presence.update(self._journal)
        if self.shares is not None:
            self.shares.look(self.clock.now_s(), self.record)
            self.shares.book()
        self._notice_suspend()
        now_s = self.clock.now_s()
        self._journal.write(self.feeds, now_s, lambda end_s: final or self.settled(end_s))
        self.reader.thin_before(now_s)

    def _end_open_windows(self, end_s: float) -> None:
        for window in list(self._open.values()):
            window.end_s = end_s
            self._journal.add_window(window)
            self.note(f"window '{window.name}' was never closed; it ends with the run")
        self._open.clear()

    def _whole_run(self, end_s: float, warnings: list[str]) -> WindowResult:
        """Return the energy of the run, without what another process of the job counted."""
        from_s = max(self.started_s, min(self.role.counts_from_s, end_s))
        if from_s > self.started_s:
            warnings = [
                *warnings,
                f"another process of this job counted the first {from_s - self.started_s:.1f} s; "
                "this run counts the rest",
            ]
        if self.shares is not None:
            self.shares.end(from_s, end_s)
        result = self.between(
            from_s, end_s, name=self.name, window_id=ROOT_WINDOW_ID, warnings=warnings
        )
        return result._replace(begin_s=self.started_s)

    def _run_result(
        self,
        result: WindowResult,
        shared: SharedTime | None,
        status: RunStatus,
        exit_code: int | None,
        signal: int | None,
    ) -> RunResult:
        """Return the result with its accounting, as far as possible."""
        if shared is not None:
            text = shared.text(result.energy_j)
            result = result._replace(warnings=(*result.warnings, text))
        settings = self.settings
        if self.shares is not None and settings.share == "process":
            part = self.shares.cpu_part(self.channels, result.begin_s, result.end_s)
            settings = settings.of_part(part)
        run = RunResult(
            run_id=self.run_id,
            status=status,
            exit_code=exit_code,
            signal=signal,
            started_wall_s=self.started_wall_s,
            result=result,
            counted=self.role.counts,
            nested=self.role.nested,
            counted_by=self.role.counted_by,
            left_out=self.left_out,
            shared=shared,
            saving=self.saving,
        )
        try:
            return run.accounted(settings, self.host.machine_id)
        except Exception as error:  # noqa: BLE001 - what joules mean must not cost us the joules
            return run.with_warning(f"not accounted for: {type(error).__name__}: {error}")

    def _call_before_end(self) -> None:
        for listener in list(self.before_end):
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - a listener must not cost the run its end
                self.note(f"{type(error).__name__} while the run ended: {error}")

    # -- journal and notes -----------------------------------------------------------------

    def _begin_journal(self, header: dict[str, Any]) -> None:
        """Create the journal; a run whose journal cannot be created is still measured."""
        location = self.settings.store_location
        path = journal_directory(location) / f"{self.run_id}.journal"
        text = (
            f"this run stays a journal: {location} is not a store"
            if is_other_file(location)
            else ""
        )
        try:
            self._journal.begin(path, header, self.clock.now_s())
        except OSError as error:
            reason = error.strerror or str(error).removeprefix(f"{path}: ")
            text = f"this run will not be kept: cannot write {path} ({reason})"
        if text:
            text += "; choose another place with --store or WATTLOOP_STORE"
            self.note(text)
            if self._in_process:  # `wattloop run` prints notes
                warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _end_journal(self, run: RunResult) -> RunResult:
        """Write the end of the journal; return the result, with a warning where that failed."""
        end = {"type": "end", "time_s": run.result.end_s, **run.to_end_dict()}
        fault = self._journal.end(end)
        if fault is None:
            return run
        text = (
            f"the end of this run could not be kept: {fault}; it will be listed as died, with "
            f"{_energy_in(self._journal.path)}"
        )
        self.note(text)
        return run.with_warning(text)

    def _note_now(self, text: str) -> None:
        """Add a note that is also written to the journal, with its time."""
        self.note(text)
        self.record({"type": "note", "time_s": self.clock.now_s(), "text": text})

    def _note_fault(self, error: Exception) -> None:
        """Add a note on an internal failure in the background; the sampler continues."""
        self.note(f"{type(error).__name__} while measuring: {error}; readings may be missing")

    def _record_role(self) -> None:
        """Record whether this run counts; needed if the journal remains without an end."""
        if self.job is None:
            return
        role = self.role
        event: dict[str, Any] = {"counts": role.counts, "counted_by": role.counted_by}
        if role.counts_from_s > self.started_s:
            event["counts_from_s"] = role.counts_from_s
        self.record({"type": "role", "time_s": self.clock.now_s(), **event})

    def _notice_suspend(self) -> None:
        """Add a note when the machine was suspended since the last call."""
        suspended_s = self.clock.suspended_s()
        asleep_s = suspended_s - self._suspended_s
        if asleep_s > ASLEEP_S:
            self._suspended_s = suspended_s
            self._note_now(
                f"the machine was suspended for {asleep_s:.0f} s; that time is not in the run"
            )


def _energy_in(path: Path | None) -> str:
    """Compute the energy that the store will import from a journal without an end."""
    from wattloop.core.units import format_energy
    from wattloop.measure.recovery import finalize_orphaned_run
    from wattloop.store.journal import read_journal

    try:
        journal = None if path is None else read_journal(path)
        energy_j = None if journal is None else finalize_orphaned_run(journal)["result"]["energy_j"]
    except Exception:  # noqa: BLE001 - the program matters more than this sentence
        energy_j = None
    return "no energy" if energy_j is None else f"the {format_energy(energy_j)} read until then"


def _is_gpu(channel: DomainSource) -> bool:
    return channel.domain.scope is Scope.GPU and "/" not in channel.domain.name


def _gpus_left_out(context: Context, inventory: Inventory, job: Job | None) -> list[HiddenGpus]:
    """Return GPUs that the environment hides from the program, unless the user has named GPUs."""
    if any(name == "all" or name.startswith("gpu:") for name in context.settings.devices):
        return []
    ranks = job is not None and (job.world_size or 1) > 1
    return gpus_left_out(context, inventory, os.environ, ranks=ranks)
