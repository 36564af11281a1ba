"""The journal of a hold: what each lever was, and everything it was about to be set to.

One file per owner, lines of `CRC-32 JSON`. It is complete and on the disk before anything is set,
grows by a line (on the disk) before each change, and is removed when everything is restored. Its
owner holds its `flock`; a journal without a lock is a leftover.
"""

import json
import os
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.control.descriptors import close_private, keep_private, try_lock
from wattloop.control.lever import Lever, Setting
from wattloop.control.owner import Owner
from wattloop.control.place import fsync_directory
from wattloop.core.errors import LeverError

__all__ = ["Entry", "Journal", "Recorded", "journals", "read_journal"]

VERSION = 1
SUFFIX = ".journal"


@dataclass(slots=True)
class Entry:
    """What is known of one lever.

    Attributes:
        name: of the lever.
        device: of the lever.
        unit: for people.
        previous: part -> value before the hold.
        ours: part -> values that the owner was about to set or found after setting.
        done: parts that need no restoring any more.
    """

    name: str
    device: str
    unit: str = ""
    previous: dict[str, Setting] = field(default_factory=dict)
    ours: dict[str, list[Setting]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def pending(self) -> list[str]:
        """Parts that were touched and are not known to be back."""
        return [part for part in self.previous if self.ours.get(part) and part not in self.done]

    def add_ours(self, parts: Mapping[str, Setting]) -> None:
        """Values that may be found there from now on."""
        for part, value in parts.items():
            known = self.ours.setdefault(part, [])
            if value not in known:
                known.append(value)


@dataclass(slots=True)
class Recorded:
    """A journal as read."""

    owner: Owner
    environment: dict[str, str]
    entries: dict[str, Entry]
    damaged: int = 0
    """Lines whose checksum is wrong: torn by a crash, and so never acted upon."""

    def pending(self) -> list[Entry]:
        """Levers with something to restore."""
        return [entry for entry in self.entries.values() if entry.pending()]


class Journal:
    """A journal that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(
        cls, directory: Path, owner: Owner, levers: Mapping[Lever, Entry], environment: Any
    ) -> "Journal":
        """Written whole, on the disk, locked, and only then visible under its name.

        Raises:
            LeverError: the disk does not take it.
        """
        path = directory / f"{owner.pid}-{owner.started}-{secrets.token_hex(4)}{SUFFIX}"
        fresh = path.with_suffix(".new")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            descriptor = keep_private(os.open(fresh, flags, 0o644))
        except OSError as error:
            raise LeverError(_no_journal(path, error)) from None
        journal = cls(path, descriptor)
        header = {
            "version": VERSION,
            "owner": owner.to_dict(),
            "environment": dict(environment),
            "levers": [
                {"name": e.name, "device": e.device, "unit": e.unit, "previous": e.previous}
                for e in levers.values()
            ],
        }
        try:
            try_lock(descriptor)
            journal._append(header)
            fresh.rename(path)
            fsync_directory(directory)
        except BaseException as error:
            fresh.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            close_private(descriptor)
            if isinstance(error, OSError):
                raise LeverError(_no_journal(path, error)) from None
            raise
        return journal

    @classmethod
    def take_over(cls, path: Path, wait_s: float = 0.0) -> "Journal | None":
        """The journal of an owner that died; None while somebody holds it or when it is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LeverError(
                f"{path} cannot be opened ({error.strerror}); run 'sudo wattloop restore'"
            ) from None
        keep_private(descriptor)
        if not try_lock(descriptor, wait_s) or os.fstat(descriptor).st_nlink == 0:
            close_private(descriptor)
            return None
        return cls(path, descriptor)

    def about_to_set(self, parts: Mapping[str, Mapping[str, Setting]]) -> None:
        """Lever -> part -> value, on the disk when this returns.

        Raises:
            LeverError: the disk does not take it; nothing may be set.
        """
        try:
            self._append({"set": {lever: dict(own) for lever, own in parts.items()}})
        except OSError as error:
            raise LeverError(_no_journal(self.path, error)) from None

    def done(self, lever: str, part: str) -> None:
        """This part needs no restoring any more."""
        with suppress(OSError):  # at worst it is looked at once more
            self._append({"done": [lever, part]}, to_disk=False)

    def remove(self) -> None:
        """Everything is back."""
        with suppress(OSError):
            self.path.unlink()
            fsync_directory(self.path.parent)
        close_private(self._descriptor)

    def close(self) -> None:
        """Leave it to whoever comes next."""
        close_private(self._descriptor)

    def _append(self, record: Mapping[str, Any], *, to_disk: bool = True) -> None:
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if torn else b"") + _line(record)
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(28, "no space left on the device")
        if to_disk:
            os.fsync(self._descriptor)


def journals(directory: Path) -> list[Path]:
    """All journals there, the oldest first."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            found.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(found)]


def read_journal(path: Path) -> Recorded:
    """What is in it, whoever holds it.

    Raises:
        LeverError: its beginning is damaged, or it was written by a newer version.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LeverError(f"{path} cannot be read: {error.strerror}") from None
    records = [_record(line) for line in lines if line]
    header = records[0] if records else None
    owner = Owner.from_dict(header.get("owner")) if header else None
    if header is None or owner is None:
        raise LeverError(
            f"{path} is damaged: what levers were before cannot be read from it; compare with "
            "'wattloop devices', then remove it"
        )
    if header["version"] > VERSION:
        raise LeverError(f"{path} was written by a newer wattloop; restore with that one")
    entries = {
        str(lever["name"]): Entry(
            str(lever["name"]), str(lever["device"]), str(lever["unit"]), dict(lever["previous"])
        )
        for lever in header["levers"]
    }
    for record in filter(None, records[1:]):
        for lever, parts in record.get("set", {}).items():
            entries[lever].add_ours(parts)
            entries[lever].done -= set(parts)
        if "done" in record:
            lever, part = record["done"]
            entries[lever].done.add(part)
    return Recorded(owner, dict(header["environment"]), entries, records.count(None))


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _no_journal(path: Path, error: OSError) -> str:
    return f"{path}: the journal cannot be written ({error.strerror}), so nothing is set"
