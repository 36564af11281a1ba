"""Put levers back to what they were; each one on its own, whatever becomes of the others."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from wattloop.control.lever import Lever, Setting, WaitsForAnother, shown
from wattloop.control.recorded import Entry
from wattloop.core.errors import ConfigError, LeverError

__all__ = ["Fate", "Restored", "put_back"]


class Fate(StrEnum):
    """What became of one part of a lever."""

    RESTORED = "restored"
    ALREADY = "already"
    """It stood at its previous value."""
    REBOOTED = "rebooted"
    """The machine was restarted since, and what we set went with it."""
    ABSENT = "absent"
    """The machine was restarted and the device is not there, or not yet; kept for later."""
    CHANGED = "changed"
    """Somebody else has set it since; left alone."""
    FAILED = "failed"
    IN_USE = "in use"
    """Its owner is alive."""
    PLANNED = "planned"
    """A dry run: what would be written."""
    FORGOTTEN = "forgotten"
    FOREIGN = "foreign"
    """Another user wrote, or can have written, the journal: not believed."""

    @property
    def settled(self) -> bool:
        """Nothing left to do."""
        return self in (Fate.RESTORED, Fate.ALREADY, Fate.REBOOTED, Fate.FORGOTTEN)


@dataclass(frozen=True, slots=True)
class Restored:
    """One part of one lever, and what became of it."""

    lever: str
    part: str
    fate: Fate
    previous: Setting = None
    found: Setting = None
    message: str = ""
    owner: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def put_back(
    pairs: Sequence[tuple[Entry, Lever | None]],
    *,
    same_boot: bool = True,
    force: bool = False,
    dry_run: bool = False,
    on_settled: Callable[[Restored], None] = lambda result: None,
) -> list[Restored]:
    """Restore every pending part. Never raises.

    Args:
        pairs: what is known of each lever, and the lever, or None where it is not found any more.
        same_boot: whether the machine runs since the values were set. After a reboot only what
            still shows one of our values is written.
        force: also overwrite what somebody else has set since.
        dry_run: write nothing.
        on_settled: called at once for each part that is settled.
    """
    waiting = [(entry, lever, part) for entry, lever in pairs for part in entry.pending()]
    results: list[Restored] = []
    while waiting:
        put_off: list[tuple[Entry, Lever | None, str]] = []
        reasons: list[Restored] = []
        for entry, lever, part in waiting:
            try:
                result = _one(entry, lever, part, same_boot, force, dry_run)
            except WaitsForAnother as reason:
                put_off.append((entry, lever, part))
                reasons.append(_result(entry, part, Fate.FAILED, message=str(reason)))
                continue
            except Exception as error:  # noqa: BLE001 - one device must not stop the others
                known = isinstance(error, ConfigError | LeverError)
                message = str(error) if known else f"{type(error).__name__}: {error}"
                result = _result(entry, part, Fate.FAILED, message=message)
            results.append(result)
            if result.fate.settled and not dry_run:
                on_settled(result)
        if len(put_off) == len(waiting):
            results += reasons  # each waits for another that is not going to move
            break
        waiting = put_off
    return results


def _one(
    entry: Entry, lever: Lever | None, part: str, same_boot: bool, force: bool, dry_run: bool
) -> Restored:
    previous = entry.previous[part]
    if lever is None:
        if not same_boot:
            return _absent(entry, part)
        raise LeverError(f"{entry.name}: the device {entry.device} is not there any more")
    found, readable = _found(lever, part)
    if lever.reads_back and not readable and not same_boot:
        return _absent(entry, part)
    if readable and lever.same(found, previous):
        return _result(entry, part, Fate.ALREADY, found)
    ours = readable and any(lever.took(value, found) for value in entry.ours.get(part, ()))
    if not same_boot and not (ours or force):
        return _result(entry, part, Fate.REBOOTED, found)
    known = ours if readable else bool(entry.ours.get(part))
    if entry.incomplete and not known and not force:
        stands = shown(found, entry.unit) if readable else "a value that cannot be read"
        raise LeverError(
            f"{_label(entry, part)} stands at {stands}, and its journal has lost a record: whether "
            f"Wattloop or another program set that is unknown. It was "
            f"{shown(previous, entry.unit)} before; 'wattloop restore --force' writes that, "
            "'wattloop restore --forget' leaves it as it is"
        )
    if readable and not ours and not force:
        message = (
            f"{_label(entry, part)} stands at {shown(found, entry.unit)}, which somebody else has "
            f"set since; it was {shown(previous, entry.unit)}. 'wattloop restore --force' writes "
            "that, 'wattloop restore --forget' leaves it"
        )
        return _result(entry, part, Fate.CHANGED, found, message)
    lever.check_part(part, previous)
    if dry_run:
        text = lever.write_part_text(part, previous)
        return _result(entry, part, Fate.PLANNED, found, text)
    lever.write_part(part, previous)
    if lever.reads_back:
        now = lever.read_part(part)
        if not lever.took(previous, now):
            raise LeverError(
                f"{_label(entry, part)} did not go back to {shown(previous, entry.unit)}: "
                f"it shows {shown(now, entry.unit)}"
            )
    return _result(entry, part, Fate.RESTORED, found)


def _absent(entry: Entry, part: str) -> Restored:
    """A driver may be loaded later than we are started."""
    message = (
        f"{_label(entry, part)}: the machine was restarted, and {entry.device} is not there; is "
        "its driver loaded? It is looked at again by the next 'wattloop restore', and dropped by "
        "'wattloop restore --forget'"
    )
    return _result(entry, part, Fate.ABSENT, message=message)


def _found(lever: Lever, part: str) -> tuple[Setting, bool]:
    """(present value, whether it could be read)."""
    if not lever.reads_back:
        return None, False
    try:
        return lever.read_part(part), True
    except LeverError:
        return None, False


def _result(
    entry: Entry, part: str, fate: Fate, found: Setting = None, message: str = ""
) -> Restored:
    return Restored(entry.name, part, fate, entry.previous[part], found, message)


def _label(entry: Entry, part: str) -> str:
    return f"{entry.name} of {part}" if part else entry.name
