"""Hold levers: nobody else sets them, every change is journaled, and all of it is put back.

with hold([lever_named(levers, "gpu:0/power_limit")]) as held:
    held.set({"gpu:0/power_limit": 250.0})
    ...
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from wattloop.control.ending import Ending
from wattloop.control.guardian import Guardian, guardian_wanted
from wattloop.control.journal import Entry, Journal
from wattloop.control.lever import Lever, Setting, shown
from wattloop.control.lock import DeviceLock
from wattloop.control.owner import Owner
from wattloop.control.place import state_directory
from wattloop.control.putting_back import Fate, Restored, put_back
from wattloop.control.restore import PATIENCE_S, restore
from wattloop.control.writing import checked, rounded, verify, write_all
from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError, LeverError

__all__ = ["Hold", "applied", "hold"]

Report = Callable[[str], None]
MOST_INTERRUPTIONS = 10


def hold(
    levers: Sequence[Lever],
    *,
    clock: Clock | None = None,
    directory: Path | None = None,
    dry_run: bool = False,
    guardian: bool = True,
    report: Report | None = None,
) -> "Hold":
    """Levers for the time of a `with` block.

    Args:
        levers: what will be set.
        clock: unused by real devices; kept with the hold for those that live on a virtual clock.
        directory: where locks and journals are, unless it is the machine's place.
        dry_run: write nothing anywhere; `Hold.writes` has what would be written.
        guardian: start a small process that restores if this one is killed with `kill -9`.
            `WATTLOOP_GUARDIAN=0` switches it off too.
        report: what is told of leftovers and of values that somebody else set; standard error
            unless given.
    """
    return Hold(
        levers,
        clock=clock,
        directory=directory,
        dry_run=dry_run,
        guardian=guardian and guardian_wanted(),
        report=report or _say,
    )


@contextmanager
def applied(lever: Lever, value: Setting, **options: object) -> Iterator["Hold"]:
    """One lever at one value for the time of a block; options as for `hold`."""
    with hold([lever], **options) as held:  # type: ignore[arg-type]  # checked by hold itself
        held.set({lever.name: value})
        yield held


class Hold:
    """Levers that this process holds. Made by `hold`; use it as a context manager."""

    def __init__(
        self,
        levers: Sequence[Lever],
        *,
        clock: Clock | None,
        directory: Path | None,
        dry_run: bool,
        guardian: bool,
        report: Report,
    ) -> None:
        self.levers = {lever.name: lever for lever in levers}
        self.clock = clock
        self.previous: dict[str, Setting] = {}
        """Lever -> value before."""
        self.writes: list[str] = []
        """What was written, or would be in a dry run, for people."""
        self.recovered: list[Restored] = []
        """What a dead owner had left on these devices."""
        self.restored: list[Restored] = []
        """What became of each lever at the end."""
        self._directory = directory
        self._dry_run = dry_run
        self._with_guardian = guardian
        self._report = report
        self._pid = os.getpid()
        self._open = False
        # a signal may arrive inside `set`, in the same thread
        self._busy = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._locks: list[DeviceLock] = []
        self._journal: Journal | None = None
        self._guardian: Guardian | None = None
        self._ending: Ending | None = None

    @property
    def guardian_pid(self) -> int | None:
        """Process number of the guardian, where there is one."""
        return None if self._guardian is None else self._guardian.pid

    def __enter__(self) -> "Hold":
        self._pid = os.getpid()
        if not self._dry_run:
            self._check_permissions()
        try:
            if self.levers and not self._dry_run:
                self._take_locks()
            self._look()
            self._open = True
            if self.levers and not self._dry_run:
                self._begin()
        except BaseException:
            self._let_go()
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
        message = _failure(failed)
        if error is None:
            raise LeverError(message)
        error.add_note(message)
        self._report(f"wattloop: {message}")

    def set(self, settings: Mapping[str, Setting]) -> None:
        """Set levers, each to a value the device accepts, and see that it took.

        Every value is checked before the first is written.

        Raises:
            ConfigError: a lever that is not held, or a value outside the device's limits.
            LeverError: a device refuses, is lost, or shows another value afterwards.
        """
        with self._busy:
            self._check_open()
            for name in settings:
                self._known(name)
            values = checked(self.levers, settings)
            parts = {name: self.levers[name].parts_of(value) for name, value in values.items()}
            if self._dry_run:
                for name, value in values.items():
                    self._note(self.levers[name].write_text(value))
                    self._entries[name].add_ours(parts[name])
                return
            assert self._journal is not None
            for name, own in parts.items():
                # first in memory: a signal may ask for a restore between the two
                self._entries[name].add_ours(own)
                self._entries[name].done -= set(own)
            self._journal.about_to_set(parts)
            write_all(self.levers, values, self._note)
            for name, wanted in parts.items():
                shows = rounded(self.levers[name], wanted)
                if shows:
                    self._entries[name].add_ours(shows)
                    self._journal.about_to_set({name: shows})
                verify(self.levers[name], wanted, shows)

    def put_back(self, *names: str) -> None:
        """Put levers (all unless named) back to what they were, and go on holding them.

        Raises:
            LeverError: one of them did not go back.
        """
        with self._busy:
            self._check_open()
            for name in names:
                self._known(name)
            results = self._put_back([self._entries[n] for n in names or self._entries])
            failed = [result for result in results if not result.fate.settled]
            if failed and not self._dry_run:
                raise LeverError(_failure(failed))

    def release(self) -> list[Restored]:
        """Put everything back and let go; what could not be put back. Leaving the block calls it.

        Each device is independent of the others.
        """
        with self._busy:
            if not self._open or os.getpid() != self._pid:
                return []
            interruption = self._released()
        for result in self.restored:
            if result.fate is Fate.CHANGED:
                self._report(f"wattloop: {result.message}")
        if interruption is not None:
            raise interruption
        return [result for result in self.restored if result.fate is Fate.FAILED]

    def _released(self) -> BaseException | None:
        """Put everything back; ctrl-C meanwhile is kept until that is done."""
        interruption = None
        for _ in range(MOST_INTERRUPTIONS):
            try:
                self.restored += self._put_back(list(self._entries.values()))
                self._let_go()
                # only now: a signal that arrives before restores what is left, then ends us
                self._open = False
            except (KeyboardInterrupt, SystemExit) as error:
                interruption = error
            else:
                break
        return interruption

    def _check_permissions(self) -> None:
        for lever in self.levers.values():
            state = lever.state()
            if not state.available:
                remedy = f"; {state.remedy}" if state.remedy else ""
                raise LeverError(f"{lever.name} cannot be set: {state.reason}{remedy}")

    def _take_locks(self) -> None:
        place = state_directory(self._directory)
        owner = Owner.this_process()
        devices = sorted({lever.device for lever in self.levers.values()})
        for device in devices:  # in one order for everybody, so that nobody waits in a circle
            self._locks.append(DeviceLock.take(device, place, owner))
        self.recovered = restore(place, devices=devices, patience_s=PATIENCE_S)
        for result in self.recovered:
            self._tell_leftover(result)
        failed = [result for result in self.recovered if result.fate is Fate.FAILED]
        if failed:
            raise LeverError(_failure(failed))
        if any(result.fate is Fate.CHANGED for result in self.recovered):
            # whoever changed it since has the last word: that is what we restore to
            restore(place, devices=devices, forget=True, patience_s=PATIENCE_S)

    def _tell_leftover(self, result: Restored) -> None:
        if result.fate is Fate.RESTORED:
            unit = self._unit(result.lever)
            self._report(
                f"wattloop: restored {result.lever} to {shown(result.previous, unit)}, left by "
                f"{result.owner}"
            )
        elif result.fate is Fate.CHANGED:
            self._report(f"wattloop: {result.lever}: a value set by somebody else is kept")

    def _unit(self, name: str) -> str:
        return self.levers[name].state().unit if name in self.levers else ""

    def _look(self) -> None:
        """What everything is now, and that it can be put back to that."""
        for name, lever in self.levers.items():
            entry = Entry(name, lever.device, lever.state().unit, dict(lever.parts()))
            for part, value in entry.previous.items():
                try:
                    lever.check_part(part, value)
                except ConfigError as reason:
                    raise LeverError(
                        f"{reason}: that is its present value, and it could not be put back to "
                        "it; set it to a value within the limits first"
                    ) from None
            self._entries[name] = entry
            self.previous[name] = lever.read()

    def _begin(self) -> None:
        place = state_directory(self._directory)
        environment = {k: v for k, v in os.environ.items() if k.startswith("WATTLOOP_")}
        for lever in self.levers.values():
            environment |= lever.where()
        entries = {lever: self._entries[name] for name, lever in self.levers.items()}
        self._journal = Journal.create(place, Owner.this_process(), entries, environment)
        self._ending = Ending(self._at_the_end)
        if self._with_guardian:
            try:
                self._guardian = Guardian(self._journal.path)
            except OSError as error:
                self._report(
                    f"wattloop: no guardian ({error}); after 'kill -9' run 'wattloop restore'"
                )

    def _at_the_end(self) -> None:
        failed = self.release()
        if failed:
            self._report(f"wattloop: {_failure(failed)}")

    def _let_go(self) -> None:
        """Give up journal, locks, guardian; the journal stays while anything is pending."""
        if self._ending is not None:
            self._ending.cancel()
        journal, self._journal = self._journal, None
        if journal is not None:
            if any(entry.pending() for entry in self._entries.values()):
                journal.close()
            else:
                journal.remove()
        while self._locks:
            self._locks.pop().release()
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.dismiss()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise LeverError(f"the levers are held by process {self._pid}, not by its children")
        if not self._open:
            raise LeverError("the levers are not held any more; set them inside the 'with' block")

    def _known(self, name: str) -> Lever:
        lever = self.levers.get(name)
        if lever is None:
            held = ", ".join(self.levers) or "none"
            raise ConfigError(f"{name} is not among the levers held ({held})")
        return lever

    def _put_back(self, entries: Sequence[Entry]) -> list[Restored]:
        def settled(result: Restored) -> None:
            self._entries[result.lever].done.add(result.part)
            if self._journal is not None:
                self._journal.done(result.lever, result.part)

        pairs = [(entry, self.levers[entry.name]) for entry in entries]
        if self._dry_run:
            for entry, lever in pairs:
                for part in entry.pending():
                    self._note(lever.write_part_text(part, entry.previous[part]))
                    entry.done.add(part)
            return []
        return put_back(pairs, on_settled=settled)

    def _note(self, text: str) -> None:
        self.writes += text.splitlines()


def _failure(failed: Sequence[Restored]) -> str:
    reasons = "; ".join(dict.fromkeys(result.message for result in failed))
    return f"not restored: {reasons}. The journal keeps it: run 'wattloop restore'"


def _say(message: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(message + "\n")
        except (OSError, ValueError):
            return
