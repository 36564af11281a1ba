"""Lever session: lock, journal, write, read back, and restore levers around a block."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from wattloop.control.journal import Journal, JournalEntry, journal_path, state_directory
from wattloop.control.lever import Lever, Setting, WriteOrderError, format_setting
from wattloop.control.lock import DeviceLock, Owner, may_set
from wattloop.control.restore import RestoreResult, RestoreStatus, restore, restore_levers
from wattloop.control.watchdog import GUARDIAN_VARIABLE, RestoreWatchdog
from wattloop.core.errors import ConfigError, LeverError

# Exit hook: work to be done however the process ends, at exit and on fatal signals.
#
# A signal with a handler of the program is left to it: `KeyboardInterrupt` and `SystemExit` pass
# through the `with` block. A signal that would end the program at once is caught, and then ends the
# program as it would have.

FATAL = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


class ExitHook:
    """Call `act` before the process ends, until `cancel`. Not in forked children."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._pid = os.getpid()
        _active.append(self)
        atexit.register(self.perform)
        if _is_main_thread():
            for number in FATAL:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _on_signal)

    def cancel(self) -> None:
        atexit.unregister(self.perform)
        if self in _active:
            _active.remove(self)
        # only the main thread may change handlers; without work ours has no effect
        if not _active and _is_main_thread():
            for number in FATAL:
                if signal.getsignal(number) is _on_signal:
                    signal.signal(number, signal.SIG_DFL)

    def perform(self) -> None:
        if os.getpid() == self._pid:
            self._act()


_active: list[ExitHook] = []


def _on_signal(number: int, frame: FrameType | None) -> None:
    try:
        for ending in reversed(list(_active)):
            ending.perform()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


Report = Callable[[str], None]
MOST_INTERRUPTIONS = 10
_said: set[str] = set()
"""Notes about the machine that this process has already printed."""


class LeverSession:
    """Levers that this process has locked: the context manager of `lever_session`.

    Entering locks the devices, so that no value changes while it is read, then starts the watchdog
    and writes the journal. Levers with `kept_elsewhere` need none of these.
    """

    def __init__(
        self,
        levers: Sequence[Lever],
        *,
        directory: Path | None,
        dry_run: bool,
        guardian: bool,
        report: Report,
    ) -> None:
        self.levers = {lever.name: lever for lever in levers}
        self.previous: dict[str, Setting] = {}
        """Lever -> previous value."""
        self.writes: list[str] = []
        """Writes that were done, or would be in a dry run, for people."""
        self.recovered: list[RestoreResult] = []
        """Values that a dead owner had left on these devices."""
        self.restored: list[RestoreResult] = []
        """Status of each lever at the end."""
        self._directory = directory
        self._dry_run = dry_run
        self._with_guardian = guardian
        self._report = report
        self._entries: dict[str, JournalEntry] = {}
        self._locks: list[DeviceLock] = []
        self._journal: Journal | None = None
        self._journaled: set[str] = set()
        self._watchdog: RestoreWatchdog | None = None
        self._exit_hook: ExitHook | None = None
        self._pid = os.getpid()
        self._open = False
        # a signal may arrive inside `set`, in the same thread
        self._busy = threading.RLock()

    @property
    def guardian_pid(self) -> int | None:
        return None if self._watchdog is None else self._watchdog.pid

    def __enter__(self) -> "LeverSession":
        # before anything is acquired, or a failure would release another session's locks
        if self._open:
            raise LeverError("these levers are held already; a hold is entered once")
        self._pid = os.getpid()
        try:
            if self._dry_run or not self.levers:
                self._snapshot()
                self._open = True
            else:
                check_permissions(self.levers)
                own = [lever for lever in self.levers.values() if not lever.kept_elsewhere]
                self._lock(own)
                self._snapshot()
                self._open = True
                self._exit_hook = ExitHook(self._on_exit)
                self._begin_journal(own)
        except BaseException:
            self._open = False
            self._unlock()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failed = self.release()
        if not failed:
            return
        message = format_failure(failed)
        if error is None:
            raise LeverError(message)
        error.add_note(message)
        self._report(f"wattloop: {message}")

    def set(self, settings: Mapping[str, Setting]) -> None:
        """Set levers, each to a value the device accepts, and read it back.

        Every value is checked before the first is written.

        Raises:
            ConfigError: a lever that is not in this session, or a value outside the device's
                limits.
            LeverError: a device refuses, is lost, or shows another value afterwards.
        """
        with self._locked(settings):
            if not settings:
                return
            values = check_values(self.levers, settings)
            parts = {name: self.levers[name].parts_of(value) for name, value in values.items()}
            if self._dry_run:
                for name, value in values.items():
                    self._note(self.levers[name].write_text(value))
                    self._entries[name].add_ours(parts[name])
                return
            for name, own in parts.items():
                # first in memory: a signal may request a restore between the two
                self._entries[name].add_ours(own)
                self._entries[name].done -= set(own)
            self._about_to_set(parts)
            write_all(self.levers, values, self._note)
            for name, wanted in parts.items():
                shows = read_rounded(self.levers[name], wanted)
                if shows:
                    self._entries[name].add_ours(shows)
                    self._about_to_set({name: shows})
                verify(self.levers[name], wanted, shows)

    def restore(self, *names: str) -> None:
        """Restore levers (all unless named) and continue. Raises LeverError if one fails."""
        with self._locked(names):
            results = self._restore([self._entries[n] for n in names or self._entries])
            failed = [result for result in results if not result.fate.settled]
            if failed and not self._dry_run:
                raise LeverError(format_failure(failed))

    def release(self) -> list[RestoreResult]:
        """Restore everything, each device on its own, and unlock; return what failed."""
        if os.getpid() != self._pid:
            return []
        with self._busy:
            if not self._open:
                return []
            interruption = self._restore_and_unlock()
        for result in self.restored:
            if result.fate is RestoreStatus.CHANGED:
                self._report(f"wattloop: {result.message}")
        if interruption is not None:
            raise interruption
        return [result for result in self.restored if result.fate is RestoreStatus.FAILED]

    def _lock(self, levers: Sequence[Lever]) -> None:
        """Lock the devices and restore what dead owners left on them; report it."""
        if not levers:
            return
        place = state_directory(self._directory)
        owner = Owner.this_process()
        devices = sorted({lever.device for lever in levers})
        for device in devices:  # in one order for all processes, which prevents deadlocks
            counts = may_set([lever for lever in levers if lever.device == device])
            self._locks.append(DeviceLock.take(device, place, owner, counts=counts))
        self.recovered = restore(place, devices=devices)
        units = {lever.name: lever.state().unit for lever in levers}
        for result in self.recovered:
            if result.fate is RestoreStatus.RESTORED:
                previous = format_setting(result.previous, units.get(result.lever, ""))
                text = f"restored {result.lever} to {previous}, left by {result.owner}"
                self._report(f"wattloop: {text}")
            elif result.fate is RestoreStatus.CHANGED:
                self._report(f"wattloop: {result.lever}: a value set by another process is kept")
            elif result.fate is RestoreStatus.FOREIGN:
                self._report(f"wattloop: {result.message}")
        failed = [result for result in self.recovered if result.fate is RestoreStatus.FAILED]
        if failed:
            raise LeverError(format_failure(failed))
        if any(result.fate is RestoreStatus.CHANGED for result in self.recovered):
            # another process's later change is the value that we restore to
            restore(place, devices=devices, forget=True)

    def _begin_journal(self, levers: Sequence[Lever]) -> None:
        """Start the watchdog, then write the journal: one without a watchdog would be left over."""
        if not levers:
            return
        owner = Owner.this_process()
        path = journal_path(state_directory(self._directory), owner)
        if self._with_guardian:
            try:
                self._watchdog = RestoreWatchdog(path)
            except OSError as error:
                self._report(
                    f"wattloop: no guardian ({error}); after 'kill -9' run 'wattloop restore'"
                )
        entries = {lever: self._entries[lever.name] for lever in levers}
        # only variables that find the devices: every user can read the journal, so no passwords
        environment: dict[str, str] = {}
        for lever in levers:
            environment |= lever.where()
        self._journal = Journal.create(path, owner, entries, environment)
        self._journaled = {lever.name for lever in levers}
        if self._journal.note and self._journal.note not in _said:
            _said.add(self._journal.note)
            self._report(f"wattloop: {self._journal.note}")

    def _about_to_set(self, parts: Mapping[str, Mapping[str, Setting]]) -> None:
        """Journal the values; on the disk when this returns."""
        own = {lever: values for lever, values in parts.items() if lever in self._journaled}
        if own:
            assert self._journal is not None
            self._journal.about_to_set(own)

    def _unlock(self, *, keep_journal: bool = False) -> None:
        """Release everything; the journal stays while a value is still to be restored."""
        if self._exit_hook is not None:
            self._exit_hook.cancel()
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close() if keep_journal else journal.remove()
        while self._locks:
            self._locks.pop().release()
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.dismiss()

    def _restore_and_unlock(self) -> BaseException | None:
        """Restore everything; a ctrl-C meanwhile is deferred until that is done."""
        interruption = None
        for _ in range(MOST_INTERRUPTIONS):
            try:
                self.restored += self._restore(list(self._entries.values()))
                pending = any(entry.pending() for entry in self._entries.values())
                self._unlock(keep_journal=pending)
                # only now: a signal that arrives earlier restores the rest, then ends the process
                self._open = False
            except (KeyboardInterrupt, SystemExit) as error:
                interruption = error
            else:
                break
        return interruption

    def _snapshot(self) -> None:
        self._entries = snapshot_levers(self.levers)
        self.previous = {name: lever.read() for name, lever in self.levers.items()}

    def _on_exit(self) -> None:
        failed = self.release()
        if failed:
            self._report(f"wattloop: {format_failure(failed)}")

    @contextmanager
    def _locked(self, names: Iterable[str]) -> Iterator[None]:
        # before the lock: a thread that held it at the fork does not exist in the child
        if os.getpid() != self._pid:
            raise LeverError(f"the levers are held by process {self._pid}, not by its children")
        with self._busy:
            if not self._open:
                raise LeverError(
                    "the levers are not held any more; set them inside the 'with' block"
                )
            for name in names:
                if name not in self.levers:
                    held = ", ".join(self.levers) or "none"
                    raise ConfigError(f"{name} is not among the levers held ({held})")
            yield

    def _restore(self, entries: Sequence[JournalEntry]) -> list[RestoreResult]:
        def settled(result: RestoreResult) -> None:
            self._entries[result.lever].done.add(result.part)
            if self._journal is not None and result.lever in self._journaled:
                self._journal.done(result.lever, result.part)

        pairs = [(entry, self.levers[entry.name]) for entry in entries]
        if self._dry_run:
            for entry, lever in pairs:
                for part in entry.pending():
                    self._note(lever.write_part_text(part, entry.previous[part]))
                    entry.done.add(part)
            return []
        for entry in entries:
            for part in self._needed_by_others(entry, entries):
                # the other lever restores these, from the same previous value
                settled(
                    RestoreResult(entry.name, part, RestoreStatus.ALREADY, entry.previous[part])
                )
        return restore_levers(pairs, on_settled=settled)

    def _needed_by_others(self, entry: JournalEntry, leaving: Sequence[JournalEntry]) -> list[str]:
        """Return the parts of this lever that another changed lever of the device depends on."""
        staying = [
            other
            for other in self._entries.values()
            if other.device == entry.device and other not in leaving
        ]
        shared = self.levers[entry.name].shared_parts
        return [
            part
            for part in entry.pending()
            if part in shared and any(part in other.pending() for other in staying)
        ]

    def _note(self, text: str) -> None:
        self.writes += text.splitlines()


def format_failure(failed: Sequence[RestoreResult]) -> str:
    """Describe the values that could not be restored, the reason, and the remedy."""
    reasons = "; ".join(dict.fromkeys(result.message for result in failed))
    return (
        f"not restored: {reasons}. The journal keeps it: run 'wattloop restore' when that is "
        "mended, or 'wattloop restore --forget' to give it up"
    )


def check_permissions(levers: Mapping[str, Lever]) -> None:
    """Raise LeverError, with the remedy, for a lever this user may not set."""
    for lever in levers.values():
        if refusal := lever.state().refusal:
            raise LeverError(refusal)


def snapshot_levers(levers: Mapping[str, Lever]) -> dict[str, JournalEntry]:
    """Read every part of every lever. Raises LeverError if one could not be restored."""
    entries = {}
    for name, lever in levers.items():
        entry = JournalEntry(name, lever.device, lever.state().unit, dict(lever.parts()))
        for part, value in entry.previous.items():
            try:
                lever.check_part(part, value)
            except ConfigError as reason:
                raise LeverError(
                    f"{reason}: that is its present value, and it could not be put back to it; "
                    "set it to a value within the limits first"
                ) from None
        entries[name] = entry
    return entries


def check_values(
    levers: Mapping[str, Lever], settings: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Return the values as devices accept them. Raises ConfigError."""
    values = {name: levers[name].accepted(value) for name, value in settings.items()}
    for name in values:
        conflict = levers[name].conflict(values)
        if conflict:
            raise ConfigError(conflict)
    return values


def write_all(
    levers: Mapping[str, Lever], values: Mapping[str, Setting], note: Callable[[str], None]
) -> None:
    """Write accepted values; one that waits for another is written after it.

    Raises:
        LeverError: a device refuses.
    """
    waiting = dict(values)
    while waiting:
        put_off: dict[str, Setting] = {}
        for name, value in waiting.items():
            try:
                levers[name].write(value)
            except WriteOrderError:
                if len(waiting) == 1:
                    raise
                put_off[name] = value
            else:
                note(levers[name].write_text(value))
        if len(put_off) == len(waiting):
            raise LeverError(f"{', '.join(put_off)}: each waits for the other to be set")
        waiting = put_off


def read_rounded(lever: Lever, wanted: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return parts that show a slightly different value than the one written."""
    if not lever.reads_back:
        return {}
    shows = lever.parts()
    return {part: shows[part] for part, value in wanted.items() if shows.get(part) != value}


def verify(lever: Lever, wanted: Mapping[str, Setting], shows: Mapping[str, Setting]) -> None:
    """Raise LeverError for a part that shows another value than the one written."""
    unit = lever.state().unit
    for part, value in shows.items():
        if not lever.took(wanted[part], value):
            raise LeverError(
                f"{lever.name}{' of ' + part if part else ''} did not take "
                f"{format_setting(wanted[part], unit)}: it shows {format_setting(value, unit)}"
            )


def lever_session(
    levers: Sequence[Lever],
    *,
    directory: Path | None = None,
    dry_run: bool = False,
    guardian: bool = True,
    report: Report | None = None,
) -> LeverSession:
    """Lock levers for the duration of a `with` block.

    A dry run writes nothing; `LeverSession.writes` lists what would be written. The guardian is a
    small process that restores if this one is killed with `kill -9`; `WATTLOOP_GUARDIAN=0` switches
    it off too. `report` receives messages, which go to standard error unless it is given.
    """
    return LeverSession(
        levers,
        directory=directory,
        dry_run=dry_run,
        guardian=guardian and os.environ.get(GUARDIAN_VARIABLE, "1") != "0",
        report=report or _say,
    )


@contextmanager
def applied(lever: Lever, value: Setting, **options: object) -> Iterator[LeverSession]:
    """Set one lever to one value for the duration of a block; options as for `lever_session`."""
    with lever_session([lever], **options) as held:  # type: ignore[arg-type]  # checked by hold itself
        held.set({lever.name: value})
        yield held


def _say(message: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(message + "\n")
        except (OSError, ValueError):
            return
