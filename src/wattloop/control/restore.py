"""Restore levers to their previous values: at the end of a session, after `kill -9` or a crash."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from wattloop.control.journal import (
    Journal,
    JournalContent,
    JournalEntry,
    is_held,
    journal_files,
    journals,
    read_journal,
    state_directory,
    untrusted_reason,
)
from wattloop.control.lever import Lever, Setting, WriteOrderError, format_setting
from wattloop.control.lock import DeviceLock, Owner
from wattloop.control.registry import find_levers
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError, WattloopError
from wattloop.core.settings import settings_from
from wattloop.hardware.host import Host
from wattloop.meters.base import Context


class RestoreStatus(StrEnum):
    """Result of restoring one part of a lever."""

    RESTORED = "restored"
    ALREADY = "already"
    """It already had its previous value."""
    REBOOTED = "rebooted"
    """The machine was rebooted since, and our value was lost with it."""
    ABSENT = "absent"
    """The machine was rebooted and the device is missing, or not there yet; tried again later."""
    CHANGED = "changed"
    """Another process has set it since; left alone."""
    FAILED = "failed"
    IN_USE = "in use"
    """Its owner is alive."""
    PLANNED = "planned"
    """A dry run: the value that would be written."""
    FORGOTTEN = "forgotten"
    FOREIGN = "foreign"
    """Another user wrote, or can have written, the journal: not trusted."""

    @property
    def settled(self) -> bool:
        return self.value in ("restored", "already", "rebooted", "forgotten")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """One part of one lever, and its status."""

    lever: str
    part: str
    fate: RestoreStatus
    previous: Setting = None
    found: Setting = None
    message: str = ""
    owner: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def restore_levers(
    pairs: Sequence[tuple[JournalEntry, Lever | None]],
    *,
    same_boot: bool = True,
    force: bool = False,
    dry_run: bool = False,
    on_settled: Callable[[RestoreResult], None] = lambda result: None,
) -> list[RestoreResult]:
    """Restore every pending part; the lever of an entry is None where it is not found.

    Never raises. After a reboot (not `same_boot`) only what still shows one of our values is
    written. `force` also overwrites values that another process has set since.
    """
    waiting = [(entry, lever, part) for entry, lever in pairs for part in entry.pending()]
    results: list[RestoreResult] = []
    while waiting:
        put_off: list[tuple[JournalEntry, Lever | None, str]] = []
        reasons: list[RestoreResult] = []
        for entry, lever, part in waiting:
            try:
                result = _one(entry, lever, part, same_boot, force, dry_run)
            except WriteOrderError as reason:
                put_off.append((entry, lever, part))
                reasons.append(_result(entry, part, RestoreStatus.FAILED, message=str(reason)))
                continue
            except Exception as error:  # noqa: BLE001 - one device must not stop the others
                known = isinstance(error, ConfigError | LeverError)
                message = str(error) if known else f"{type(error).__name__}: {error}"
                result = _result(entry, part, RestoreStatus.FAILED, message=message)
            results.append(result)
            if result.fate.settled and not dry_run:
                on_settled(result)
        if len(put_off) == len(waiting):
            results += reasons  # each waits for another that will not change
            break
        waiting = put_off
    return results


def _one(
    entry: JournalEntry, lever: Lever | None, part: str, same_boot: bool, force: bool, dry_run: bool
) -> RestoreResult:
    previous = entry.previous[part]
    if lever is None:
        if not same_boot:
            return _absent(entry, part)
        raise LeverError(f"{entry.name}: the device {entry.device} is not there any more")
    found, readable = _found(lever, part)
    if lever.reads_back and not readable and not same_boot:
        return _absent(entry, part)
    if readable and lever.same(found, previous):
        return _result(entry, part, RestoreStatus.ALREADY, found)
    ours = readable and any(lever.took(value, found) for value in entry.ours.get(part, ()))
    if not same_boot and not (ours or force):
        return _result(entry, part, RestoreStatus.REBOOTED, found)
    known = ours if readable else bool(entry.ours.get(part))
    before = format_setting(previous, entry.unit)
    if entry.incomplete and not known and not force:
        stands = format_setting(found, entry.unit) if readable else "a value that cannot be read"
        raise LeverError(
            f"{_label(entry, part)} is at {stands}, and its journal has lost a record: whether "
            f"Wattloop or another program set that is unknown. It was {before} before; 'wattloop "
            "restore --force' writes that, 'wattloop restore --forget' leaves it as it is"
        )
    if readable and not ours and not force:
        message = (
            f"{_label(entry, part)} is at {format_setting(found, entry.unit)}, which another "
            f"process has set since; it was {before}. 'wattloop restore --force' writes that, "
            "'wattloop restore --forget' leaves it"
        )
        return _result(entry, part, RestoreStatus.CHANGED, found, message)
    lever.check_part(part, previous)
    if dry_run:
        text = lever.write_part_text(part, previous)
        return _result(entry, part, RestoreStatus.PLANNED, found, text)
    lever.write_part(part, previous)
    if lever.reads_back:
        now = lever.read_part(part)
        if not lever.took(previous, now):
            raise LeverError(
                f"{_label(entry, part)} did not go back to {format_setting(previous, entry.unit)}: "
                f"it shows {format_setting(now, entry.unit)}"
            )
    return _result(entry, part, RestoreStatus.RESTORED, found)


def _absent(entry: JournalEntry, part: str) -> RestoreResult:
    """Return the status of a missing device: its driver may be loaded later."""
    message = (
        f"{_label(entry, part)}: the machine was restarted, and {entry.device} is not there; is "
        "its driver loaded? It is looked at again by the next 'wattloop restore', and dropped by "
        "'wattloop restore --forget'"
    )
    return _result(entry, part, RestoreStatus.ABSENT, message=message)


def _found(lever: Lever, part: str) -> tuple[Setting, bool]:
    """Return (present value, True if it could be read)."""
    if not lever.reads_back:
        return None, False
    try:
        return lever.read_part(part), True
    except LeverError:
        return None, False


def _result(
    entry: JournalEntry, part: str, fate: RestoreStatus, found: Setting = None, message: str = ""
) -> RestoreResult:
    return RestoreResult(entry.name, part, fate, entry.previous[part], found, message)


def _label(entry: JournalEntry, part: str) -> str:
    return f"{entry.name} of {part}" if part else entry.name


PATIENCE_S = 10.0
"""Time to wait for another process that restores the same device."""

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
) -> list[RestoreResult]:
    """Restore the values left by dead owners; living owners are left alone.

    Each device is restored on its own: one that has vanished stops none of the others, and what
    could not be restored stays in its journal. `devices` are those whose locks the caller holds.
    `force` also overwrites values that another process has set since, and trusts journals of other
    users. `forget` writes nothing and drops what is left.
    """
    place = state_directory(directory, create=False)
    results: list[RestoreResult] = []
    for path in [journal] if journal else journals(place):
        try:
            work = Leftover(path, place, dry_run=dry_run, force=force, forget=forget)
            found = work.restore(devices, patience_s)
            results += [replace(result, owner=work.owner) for result in found]
        except FileNotFoundError:
            continue  # another process removed it first
        except WattloopError as error:
            results.append(RestoreResult("", "", RestoreStatus.FAILED, message=str(error)))
    return results


class Leftover:
    """One leftover journal, to be restored by this process."""

    def __init__(
        self, path: Path, place: Path, *, dry_run: bool, force: bool, forget: bool
    ) -> None:
        self.owner = ""
        self._path, self._place = path, place
        self._dry_run, self._force, self._forget = dry_run, force, forget

    def restore(self, held: Collection[str] | None, patience_s: float) -> list[RestoreResult]:
        """Restore the journal. Locks come first, in the common order: devices, then the journal."""
        try:
            recorded = self._read()
        except LeverError as error:
            reasons = [untrusted_reason(file.lstat()) for file in journal_files(self._path)]
            reason = reasons[0] if reasons else ""
            if not all(reasons) or not reason:
                raise
            # any user can leave any file there; that must not block a session
            if held is not None:
                return []
            message = f"{self._path} {reason}: {error}"
            return [RestoreResult("", "", RestoreStatus.FOREIGN, message=message)]
        if recorded is None:
            return []
        self.owner = str(recorded.owner)
        # alive without the lock: it could not restore everything, and has given up
        if recorded.owner.alive and is_held(self._path, DYING_S):
            devices = {entry.device for entry in recorded.entries.values()}
            if not recorded.doubt and devices.intersection(held or ()):
                # the journal is locked and we hold its device lock: the owner's lock file was
                # removed
                raise DeviceBusy(f"{', '.join(sorted(devices))}: held by {self.owner}")
            return [
                _result(e, part, RestoreStatus.IN_USE, message=f"held by {self.owner}")
                for e in recorded.entries.values()
                for part in e.previous
            ]
        wanted = {e.device for e in recorded.pending() if held is None or e.device in held}
        if held is not None and not wanted:
            return []
        if self._refused(recorded, held):
            return self._foreign(recorded, wanted)
        state_directory(self._place)  # it may have been removed when everything was restored
        locks, busy = self._locks(wanted - set(held or ()), patience_s)
        try:
            journal = Journal.take_over(self._path, patience_s)
            if journal is None:
                left = recorded.pending() if journal_files(self._path) else []
                message = "another process holds the journal; try again when it has ended"
                return _pending_results(left, RestoreStatus.FAILED, message)
            try:
                recorded = journal.recorded()
                if self._refused(recorded, held):
                    return self._foreign(recorded, wanted)
                return self._restore_entries(journal, recorded, wanted, busy)
            finally:
                journal.close()
        finally:
            for lock in locks:
                lock.release()

    def _restore_entries(
        self, journal: Journal, recorded: JournalContent, wanted: set[str], busy: Mapping[str, str]
    ) -> list[RestoreResult]:
        mine = [e for e in recorded.pending() if e.device in wanted and e.device not in busy]
        results = [
            result
            for e in recorded.pending()
            if e.device in busy
            for result in _pending_results([e], RestoreStatus.FAILED, busy[e.device])
        ]

        def settled(result: RestoreResult) -> None:
            recorded.entries[result.lever].done.add(result.part)
            journal.done(result.lever, result.part)

        if self._forget:
            dropped = _pending_results(mine, RestoreStatus.FORGOTTEN)
            results += dropped
            for result in () if self._dry_run else dropped:
                settled(result)
        elif mine:
            # another user's environment would make us load their library, or write where they say
            with _environment({} if recorded.doubt else recorded.environment):
                results += restore_levers(
                    _paired(mine),
                    same_boot=recorded.owner.boot_id == Host().boot_id,
                    force=self._force,
                    dry_run=self._dry_run,
                    on_settled=settled,
                )
        if not self._dry_run and not recorded.pending():
            journal.remove()
        return results

    def _read(self) -> JournalContent | None:
        try:
            return read_journal(self._path)
        except LeverError:
            if self._forget and not self._dry_run:
                journal = Journal.take_over(self._path)
                if journal is not None:
                    journal.remove()
                    return None
            raise

    def _refused(self, recorded: JournalContent, held: Collection[str] | None) -> bool:
        """Return True for a journal of another user than root and this one, unless forced."""
        return bool(recorded.doubt) and not (self._force or (self._forget and held is None))

    def _foreign(self, recorded: JournalContent, wanted: Collection[str]) -> list[RestoreResult]:
        message = (
            f"{self._path} {recorded.doubt}; run 'wattloop restore' as the user who left it, or "
            "'wattloop restore --force' if you trust what it says they were before"
        )
        mine = [e for e in recorded.pending() if e.device in wanted]
        return _pending_results(mine, RestoreStatus.FOREIGN, message)

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


def _paired(entries: list[JournalEntry]) -> list[tuple[JournalEntry, Lever | None]]:
    """Pair each entry with the lever of the same device, whatever number the device has now."""
    kinds = {entry.device.partition(":")[0] for entry in entries}
    context = Context(Host.from_environment(), settings_from(os.environ, needs=()))
    found = {
        (lever.device, lever.name.rpartition("/")[2]): lever
        for lever in find_levers(context, kinds=kinds)
    }
    return [(e, found.get((e.device, e.name.rpartition("/")[2]))) for e in entries]


def _pending_results(
    entries: Iterable[JournalEntry], fate: RestoreStatus, message: str = ""
) -> list[RestoreResult]:
    return [_result(e, part, fate, message=message) for e in entries for part in e.pending()]


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Use the environment in which the owner found its devices."""
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
