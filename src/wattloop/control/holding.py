"""Levers that this process holds: set, read back, and put back."""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from wattloop.control.grip import Grip, Report, failure
from wattloop.control.lever import Lever, Setting
from wattloop.control.looking import check_permissions, looked_at
from wattloop.control.putting_back import Fate, Restored, put_back
from wattloop.control.recorded import Entry
from wattloop.control.writing import checked, rounded, verify, write_all
from wattloop.core.errors import ConfigError, LeverError

__all__ = ["Hold"]

MOST_INTERRUPTIONS = 10


class Hold:
    """Levers that this process holds. Made by `hold`; use it as a context manager."""

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
        """Lever -> value before."""
        self.writes: list[str] = []
        """What was written, or would be in a dry run, for people."""
        self.recovered: list[Restored] = []
        """What a dead owner had left on these devices."""
        self.restored: list[Restored] = []
        """What became of each lever at the end."""
        self._dry_run = dry_run
        self._report = report
        self._grip = Grip(directory, guardian=guardian, report=report)
        self._entries: dict[str, Entry] = {}
        self._pid = os.getpid()
        self._open = False
        # a signal may arrive inside `set`, in the same thread
        self._busy = threading.RLock()

    @property
    def guardian_pid(self) -> int | None:
        """Process number of the guardian, where there is one."""
        return self._grip.guardian_pid

    def __enter__(self) -> "Hold":
        if self._open:  # before anything is taken, or giving up would let go of what is held
            raise LeverError("these levers are held already; a hold is entered once")
        self._pid = os.getpid()
        try:
            if self._dry_run or not self.levers:
                self._look()
                self._open = True
            else:
                check_permissions(self.levers)
                self.recovered = self._grip.take(list(self.levers.values()))
                self._look()
                self._open = True
                entries = {lever: self._entries[name] for name, lever in self.levers.items()}
                self._grip.begin(entries, self._at_the_end)
        except BaseException:
            self._open = False
            self._grip.let_go()
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
        message = failure(failed)
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
        self._check_process()
        with self._busy:
            self._check_open()
            for name in settings:
                self._known(name)
            if not settings:
                return
            values = checked(self.levers, settings)
            parts = {name: self.levers[name].parts_of(value) for name, value in values.items()}
            if self._dry_run:
                for name, value in values.items():
                    self._note(self.levers[name].write_text(value))
                    self._entries[name].add_ours(parts[name])
                return
            for name, own in parts.items():
                # first in memory: a signal may ask for a restore between the two
                self._entries[name].add_ours(own)
                self._entries[name].done -= set(own)
            self._grip.about_to_set(parts)
            write_all(self.levers, values, self._note)
            for name, wanted in parts.items():
                shows = rounded(self.levers[name], wanted)
                if shows:
                    self._entries[name].add_ours(shows)
                    self._grip.about_to_set({name: shows})
                verify(self.levers[name], wanted, shows)

    def put_back(self, *names: str) -> None:
        """Put levers (all unless named) back to what they were, and go on holding them.

        Raises:
            LeverError: one of them did not go back.
        """
        self._check_process()
        with self._busy:
            self._check_open()
            for name in names:
                self._known(name)
            results = self._put_back([self._entries[n] for n in names or self._entries])
            failed = [result for result in results if not result.fate.settled]
            if failed and not self._dry_run:
                raise LeverError(failure(failed))

    def release(self) -> list[Restored]:
        """Put everything back and let go; what could not be put back. Leaving the block calls it.

        Each device is independent of the others.
        """
        if os.getpid() != self._pid:
            return []
        with self._busy:
            if not self._open:
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
                pending = any(entry.pending() for entry in self._entries.values())
                self._grip.let_go(keep_journal=pending)
                # only now: a signal that arrives before restores what is left, then ends us
                self._open = False
            except (KeyboardInterrupt, SystemExit) as error:
                interruption = error
            else:
                break
        return interruption

    def _look(self) -> None:
        self._entries = looked_at(self.levers)
        self.previous = {name: lever.read() for name, lever in self.levers.items()}

    def _at_the_end(self) -> None:
        failed = self.release()
        if failed:
            self._report(f"wattloop: {failure(failed)}")

    def _check_process(self) -> None:
        # before the lock: a thread that had it when we were forked is not here to release it
        if os.getpid() != self._pid:
            raise LeverError(f"the levers are held by process {self._pid}, not by its children")

    def _check_open(self) -> None:
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
            self._grip.settled(result)

        pairs = [(entry, self.levers[entry.name]) for entry in entries]
        if self._dry_run:
            for entry, lever in pairs:
                for part in entry.pending():
                    self._note(lever.write_part_text(part, entry.previous[part]))
                    entry.done.add(part)
            return []
        for entry in entries:
            for part in self._needed_by_others(entry, entries):
                # theirs to put back, from the same previous value
                settled(Restored(entry.name, part, Fate.ALREADY, entry.previous[part]))
        return put_back(pairs, on_settled=settled)

    def _needed_by_others(self, entry: Entry, leaving: Sequence[Entry]) -> list[str]:
        """Parts of this lever that another one of the device, which stays as it is, depends on."""
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
