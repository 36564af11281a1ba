"""What a hold has in its hands: locks, journal, guardian, and a last wish for when we end."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wattloop.control.ending import Ending
from wattloop.control.guardian import Guardian
from wattloop.control.journal import Journal
from wattloop.control.lever import Lever, Setting, shown
from wattloop.control.lock import DeviceLock, may_set
from wattloop.control.owner import Owner
from wattloop.control.place import state_directory
from wattloop.control.putting_back import Fate, Restored
from wattloop.control.recorded import Entry
from wattloop.control.restore import restore
from wattloop.core.errors import LeverError

__all__ = ["Grip", "Report", "failure"]

Report = Callable[[str], None]

_said: set[str] = set()
"""Notes about the machine that this process has given."""


class Grip:
    """Taken in two steps: devices, so that nothing moves while it is looked at; then the journal.

    Levers that are kept elsewhere need neither.

    Raises LeverError and DeviceBusy while it is taken. `let_go` may be called at any time, also
    twice.
    """

    def __init__(self, directory: Path | None, *, guardian: bool, report: Report) -> None:
        self._directory = directory
        self._with_guardian = guardian
        self._report = report
        self._locks: list[DeviceLock] = []
        self._journal: Journal | None = None
        self._journaled: set[str] = set()
        self._guardian: Guardian | None = None
        self._ending: Ending | None = None

    @property
    def guardian_pid(self) -> int | None:
        """Process number of the guardian, where there is one."""
        return None if self._guardian is None else self._guardian.pid

    def take(self, levers: Sequence[Lever]) -> list[Restored]:
        """Lock the devices and restore what dead owners left on them; says what that was."""
        levers = [lever for lever in levers if not lever.kept_elsewhere]
        if not levers:
            return []
        place = state_directory(self._directory)
        owner = Owner.this_process()
        devices = sorted({lever.device for lever in levers})
        for device in devices:  # in one order for everybody, so that nobody waits in a circle
            counts = may_set([lever for lever in levers if lever.device == device])
            self._locks.append(DeviceLock.take(device, place, owner, counts=counts))
        leftovers = restore(place, devices=devices)
        units = {lever.name: lever.state().unit for lever in levers}
        for result in leftovers:
            self._tell(result, units.get(result.lever, ""))
        failed = [result for result in leftovers if result.fate is Fate.FAILED]
        if failed:
            raise LeverError(failure(failed))
        if any(result.fate is Fate.CHANGED for result in leftovers):
            # whoever changed it since has the last word: that is what we restore to
            restore(place, devices=devices, forget=True)
        return leftovers

    def begin(self, entries: Mapping[Lever, Entry], at_the_end: Callable[[], None]) -> None:
        """Write the journal, start the guardian, and have `at_the_end` called when we end."""
        self._ending = Ending(at_the_end)
        entries = {lever: entry for lever, entry in entries.items() if not lever.kept_elsewhere}
        if not entries:
            return
        place = state_directory(self._directory)
        # what finds the devices, and nothing else: everybody can read it, passwords are not for it
        environment: dict[str, str] = {}
        for lever in entries:
            environment |= lever.where()
        self._journal = Journal.create(place, Owner.this_process(), entries, environment)
        self._journaled = {lever.name for lever in entries}
        if self._journal.note and self._journal.note not in _said:
            _said.add(self._journal.note)
            self._report(f"wattloop: {self._journal.note}")
        if self._with_guardian:
            try:
                self._guardian = Guardian(self._journal.path)
            except OSError as error:
                self._report(
                    f"wattloop: no guardian ({error}); after 'kill -9' run 'wattloop restore'"
                )

    def about_to_set(self, parts: Mapping[str, Mapping[str, Setting]]) -> None:
        """On the disk when this returns."""
        own = {lever: values for lever, values in parts.items() if lever in self._journaled}
        if own:
            assert self._journal is not None
            self._journal.about_to_set(own)

    def settled(self, result: Restored) -> None:
        """A part is back."""
        if self._journal is not None and result.lever in self._journaled:
            self._journal.done(result.lever, result.part)

    def let_go(self, *, keep_journal: bool = False) -> None:
        """Give everything up; the journal stays while anything is still to be restored."""
        if self._ending is not None:
            self._ending.cancel()
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close() if keep_journal else journal.remove()
        while self._locks:
            self._locks.pop().release()
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.dismiss()

    def _tell(self, result: Restored, unit: str) -> None:
        if result.fate is Fate.RESTORED:
            previous = shown(result.previous, unit)
            self._report(f"wattloop: restored {result.lever} to {previous}, left by {result.owner}")
        elif result.fate is Fate.CHANGED:
            self._report(f"wattloop: {result.lever}: a value set by somebody else is kept")
        elif result.fate is Fate.FOREIGN:
            self._report(f"wattloop: {result.message}")


def failure(failed: Sequence[Restored]) -> str:
    """What could not be restored, why, and what to do."""
    reasons = "; ".join(dict.fromkeys(result.message for result in failed))
    return (
        f"not restored: {reasons}. The journal keeps it: run 'wattloop restore' when that is "
        "mended, or 'wattloop restore --forget' to give it up"
    )
