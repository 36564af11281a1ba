"""Put back what dead owners left: after `kill -9`, a crash of the machine, or a lost device."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from wattloop.control.journal import Journal
from wattloop.control.lever import Lever
from wattloop.control.lock import DeviceLock
from wattloop.control.owner import Owner
from wattloop.control.place import state_directory
from wattloop.control.putting_back import Fate, Restored, put_back
from wattloop.control.recorded import (
    Entry,
    Recorded,
    doubt,
    is_held,
    journal_files,
    journals,
    read_journal,
)
from wattloop.control.registry import inventory
from wattloop.core.errors import DeviceBusy, LeverError, WattloopError
from wattloop.core.settings import settings_from
from wattloop.hardware.host import Host
from wattloop.measure.meter import Context

__all__ = ["Restored", "restore"]

PATIENCE_S = 10.0
"""How long to wait for another process that restores the same device at this moment."""
DYING_S = 0.1
"""A process that has just been killed may hold its locks a moment longer."""


def restore(
    directory: Path | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
    forget: bool = False,
    devices: Collection[str] | None = None,
    journal: Path | None = None,
    patience_s: float = PATIENCE_S,
) -> list[Restored]:
    """Restore what owners that are dead left behind; living ones are left alone.

    Each device is restored on its own: one that has vanished stops none of the others, and what
    could not be restored stays in its journal.

    Args:
        directory: where journals are, unless it is the machine's place.
        dry_run: write nothing, say what would be written.
        force: also overwrite what somebody else has set since, and take previous values from
            journals of other users, on the devices that this process finds.
        forget: do not write; drop what is left in the journals of dead owners.
        devices: only these, whose locks the caller holds.
        journal: this one only.
        patience_s: how long to wait for another process that restores at this moment.
    """
    place = state_directory(directory, create=False)
    results: list[Restored] = []
    for path in [journal] if journal else journals(place):
        try:
            work = Leftover(path, place, dry_run=dry_run, force=force, forget=forget)
            results += work.restore(devices, patience_s)
        except FileNotFoundError:
            continue  # another process was quicker
        except WattloopError as error:
            results.append(Restored("", "", Fate.FAILED, message=str(error)))
    return results


class Leftover:
    """One journal, to be restored by this process."""

    def __init__(
        self, path: Path, place: Path, *, dry_run: bool, force: bool, forget: bool
    ) -> None:
        self._path = path
        self._place = place
        self._dry_run = dry_run
        self._force = force
        self._forget = forget

    def restore(self, held: Collection[str] | None, patience_s: float) -> list[Restored]:
        """Locks first, in the order everybody takes them: devices, then the journal."""
        try:
            recorded = self._read()
        except LeverError as error:
            reasons = [doubt(file.lstat()) for file in journal_files(self._path)]
            reason = reasons[0] if reasons else ""
            if not all(reasons) or not reason:
                raise
            # anybody can leave anything there; that must not stop a hold
            message = f"{self._path} {reason}: {error}"
            return [] if held is not None else [Restored("", "", Fate.FOREIGN, message=message)]
        if recorded is None:
            return []
        # alive but without the lock: it could not restore everything, and has let go
        if recorded.owner.alive and is_held(self._path, DYING_S):
            devices = {entry.device for entry in recorded.entries.values()}
            if not recorded.doubt and devices.intersection(held or ()):
                # its journal is locked and its lock on the device is ours: that file was removed
                raise DeviceBusy(f"{', '.join(sorted(devices))}: held by {recorded.owner}")
            return _named(recorded, _in_use(recorded))
        wanted = {e.device for e in recorded.pending() if held is None or e.device in held}
        if held is not None and not wanted:
            return []
        if self._refused(recorded, held):
            return self._foreign(recorded, wanted)
        state_directory(self._place)  # it may have been removed with all that was in it
        locks, busy = self._locks(wanted - set(held or ()), patience_s)
        try:
            journal = Journal.take_over(self._path, patience_s)
            if journal is None:
                return _named(recorded, _taken(recorded)) if journal_files(self._path) else []
            try:
                recorded = journal.recorded()
                if self._refused(recorded, held):
                    return self._foreign(recorded, wanted)
                return _named(recorded, self._settle(journal, recorded, wanted, busy))
            finally:
                journal.close()
        finally:
            for lock in locks:
                lock.release()

    def _settle(
        self, journal: Journal, recorded: Recorded, wanted: set[str], busy: Mapping[str, str]
    ) -> list[Restored]:
        mine = [e for e in recorded.pending() if e.device in wanted and e.device not in busy]
        results = [
            Restored(e.name, part, Fate.FAILED, e.previous[part], message=busy[e.device])
            for e in recorded.pending()
            if e.device in busy
            for part in e.pending()
        ]

        def settled(result: Restored) -> None:
            recorded.entries[result.lever].done.add(result.part)
            journal.done(result.lever, result.part)

        if self._forget:
            dropped = [
                Restored(e.name, part, Fate.FORGOTTEN, e.previous[part])
                for e in mine
                for part in e.pending()
            ]
            results += dropped
            for result in () if self._dry_run else dropped:
                settled(result)
        elif mine:
            # with those of another user we would load their library, or write where they say
            with _environment({} if recorded.doubt else recorded.environment):
                results += put_back(
                    _paired(mine),
                    same_boot=recorded.owner.boot_id == Host().boot_id,
                    force=self._force,
                    dry_run=self._dry_run,
                    on_settled=settled,
                )
        if not self._dry_run and not recorded.pending():
            journal.remove()
        return results

    def _read(self) -> Recorded | None:
        try:
            return read_journal(self._path)
        except LeverError:
            if self._forget and not self._dry_run:
                journal = Journal.take_over(self._path)
                if journal is not None:
                    journal.remove()
                    return None
            raise

    def _refused(self, recorded: Recorded, held: Collection[str] | None) -> bool:
        """A journal tells us what to write: we take it from ourselves and from root only."""
        asked_to_forget = self._forget and held is None
        return bool(recorded.doubt) and not (self._force or asked_to_forget)

    def _foreign(self, recorded: Recorded, wanted: Collection[str]) -> list[Restored]:
        message = (
            f"{self._path} {recorded.doubt}; run 'wattloop restore' as the user who left it, or "
            "'wattloop restore --force' if you trust what it says they were before"
        )
        return _named(
            recorded,
            [
                Restored(e.name, part, Fate.FOREIGN, e.previous[part], message=message)
                for e in recorded.pending()
                if e.device in wanted
                for part in e.pending()
            ],
        )

    def _locks(
        self, devices: Collection[str], patience_s: float
    ) -> tuple[list[DeviceLock], dict[str, str]]:
        owner = Owner.this_process()
        locks: list[DeviceLock] = []
        busy: dict[str, str] = {}
        for device in sorted(devices):
            try:
                locks.append(DeviceLock.take(device, self._place, owner, patience_s))
            except LeverError as reason:
                busy[device] = str(reason)
        return locks, busy


def _paired(entries: list[Entry]) -> list[tuple[Entry, Lever | None]]:
    """Each with the lever of the same device, whatever number the device has today."""
    kinds = {entry.device.partition(":")[0] for entry in entries}
    context = Context(Host.from_environment(), settings_from(os.environ, needs=()))
    found = {
        (lever.device, lever.name.rpartition("/")[2]): lever
        for lever in inventory(context, kinds=kinds).levers
    }
    return [(e, found.get((e.device, e.name.rpartition("/")[2]))) for e in entries]


def _in_use(recorded: Recorded) -> list[Restored]:
    message = f"held by {recorded.owner}"
    return [
        Restored(e.name, part, Fate.IN_USE, e.previous[part], message=message)
        for e in recorded.entries.values()
        for part in e.previous
    ]


def _taken(recorded: Recorded) -> list[Restored]:
    message = "another process holds the journal; try again when it has ended"
    return [
        Restored(e.name, part, Fate.FAILED, e.previous[part], message=message)
        for e in recorded.pending()
        for part in e.pending()
    ]


def _named(recorded: Recorded, results: list[Restored]) -> list[Restored]:
    return [replace(result, owner=str(recorded.owner)) for result in results]


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """The variables with which the owner found its devices, for as long as we look for them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
