"""Journals as they are read: what is in them, and whether they may be believed.

A journal is two files with the same records, in two places. Records are numbered and have a
checksum, so that what one file has lost is taken from the other. Where a record is lost in both,
or a file is missing, every lever of the journal is looked at again, whatever it says is done.

The place is shared by all users of a machine, and a journal tells its reader what to write and
where. So it counts only when nobody but root or we ourselves can have written it, and whatever
else is found there holds nobody up.
"""

import errno
import json
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.control.descriptors import is_locked
from wattloop.control.lever import Setting
from wattloop.control.lock_holder import lock_holder
from wattloop.control.owner import Owner, user_name
from wattloop.control.place import STATE_VARIABLE, copy_directories
from wattloop.core.errors import LeverError

__all__ = [
    "SUFFIX",
    "VERSION",
    "Entry",
    "Recorded",
    "doubt",
    "is_held",
    "journal_files",
    "journals",
    "locked_by_stranger",
    "read_files",
    "read_journal",
]

VERSION = 1
SUFFIX = ".journal"
MOST_B, STRANGERS_MOST_B = 1 << 30, 1 << 20
"""A line is about 100 bytes: no sweep comes near, and nobody fills the memory of another."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Record = dict[str, Any]


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
        incomplete: a record is lost, so values that the owner set may be missing in `ours`.
    """

    name: str
    device: str
    unit: str = ""
    previous: dict[str, Setting] = field(default_factory=dict)
    ours: dict[str, list[Setting]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    incomplete: bool = False

    def pending(self) -> list[str]:
        """Parts that were touched, or may have been, and are not known to be back."""
        return [
            part
            for part in self.previous
            if (self.incomplete or self.ours.get(part)) and part not in self.done
        ]

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
    """Lines whose checksum is wrong."""
    lost: bool = False
    """A record is missing in both files, or may be: a file is gone, or ends in a damaged line."""
    next_number: int = 1
    """Of the next record."""
    doubt: str = ""
    """Why it is not to be believed."""

    def pending(self) -> list[Entry]:
        """Levers with something to restore."""
        return [entry for entry in self.entries.values() if entry.pending()]


def journals(directory: Path) -> list[Path]:
    """All journals there, the oldest first, also those of which only the second copy is left.

    Links, pipes and names that are not ours are none.

    Raises:
        LeverError: the directory may not be read.
    """
    try:
        found = _journals_in(directory)
    except OSError as error:
        raise LeverError(
            f"{directory}: whether anything is left to restore cannot be read ({error.strerror}); "
            f"run 'sudo env {STATE_VARIABLE}={directory} wattloop restore'"
        ) from None
    for folder in copy_directories(directory):
        with suppress(OSError):
            found = _journals_in(folder) | found
    return [directory / name for name, _ in sorted(found.items(), key=lambda one: one[1])]


def journal_files(path: Path) -> list[Path]:
    """The journal and its second copy, those that are there."""
    uids = {os.geteuid()}
    with suppress(OSError):
        uids.add(path.lstat().st_uid)
    copies = [f / path.name for uid in sorted(uids) for f in copy_directories(path.parent, uid)]
    return [file for file in dict.fromkeys((path, *copies)) if _is_there(file)]


def is_held(path: Path, wait_s: float = 0.0) -> bool:
    """Whether a process has the lock of either file and keeps it for so long.

    Every user can read a journal, and so lock one that is left: a lock of another user than the
    one who wrote it, or root, does not count.
    """
    return any(
        is_locked(file, wait_s) and not locked_by_stranger(file) for file in journal_files(path)
    )


def locked_by_stranger(file: Path) -> bool:
    """Whether a process of neither root, us, nor the user who wrote it has the lock of a file."""
    process = lock_holder(file)
    try:
        return process is not None and process.uid not in (0, os.geteuid(), file.stat().st_uid)
    except OSError:
        return False


def read_journal(path: Path) -> Recorded:
    """What is in it, whoever holds it.

    Raises:
        FileNotFoundError: both files are gone.
        LeverError: it cannot be read, is damaged, or was written by a newer version.
    """
    descriptors = {}
    refusal: OSError | None = None
    try:
        for file in journal_files(path):
            try:
                # a pipe would keep us waiting, a link lead us elsewhere
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptors[file] = os.open(file, flags)
            except FileNotFoundError:
                continue
            except OSError as error:
                refusal = error
        if not descriptors and refusal is not None:
            raise LeverError(f"{path} cannot be read: {refusal.strerror}")
        return read_files(path, descriptors)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def read_files(path: Path, descriptors: Mapping[Path, int]) -> Recorded:
    """As `read_journal`, of the very files that are open."""
    if not descriptors:
        raise FileNotFoundError(errno.ENOENT, "no such journal", str(path))
    reasons = {file: doubt(os.fstat(number)) for file, number in descriptors.items()}
    # a file that another user can have written does not speak where one of ours does
    believed = [file for file in descriptors if not reasons[file]] or list(descriptors)
    contents = []
    for file in believed:
        status = os.fstat(descriptors[file])
        most_b = STRANGERS_MOST_B if reasons[file] else MOST_B
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_b:
            raise LeverError(f"{file} is not a journal; look at it and remove it")
        try:
            data = os.pread(descriptors[file], status.st_size, 0)
        except OSError as error:
            raise LeverError(f"{file} cannot be read: {error.strerror}") from None
        contents.append([_record(line) for line in data.split(b"\n") if line])
    try:
        recorded = _parsed(contents, path)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        recorded = None
    if recorded is None:
        raise LeverError(
            f"{path} is damaged: what levers were before cannot be read from it; compare with "
            "'wattloop devices', then remove it with 'wattloop restore --forget'"
        )
    recorded.doubt = reasons[believed[0]]
    return recorded


def doubt(status: os.stat_result) -> str:
    """Why a journal is not to be believed; empty when only root or we can have written it."""
    if status.st_uid not in (0, os.geteuid()):
        return f"was left by {user_name(status.st_uid)}"
    # our lock files are for everybody, and a second name makes a journal of one
    if status.st_mode & OTHERS_WRITE:
        return "may have been written by any user"
    return ""


def _parsed(contents: list[list[Record | None]], path: Path) -> Recorded | None:
    records, complete = _merged(contents)
    header = records.get(0)
    owner = Owner.from_dict(header.get("owner")) if header else None
    if header is None or owner is None:
        return None
    if header["version"] > VERSION:
        raise LeverError(f"{path} was written by a newer wattloop; restore with that one")
    entries = {str(lever["name"]): _entry(lever) for lever in header["levers"]}
    for number in sorted(records)[1:]:
        record = records[number]
        for lever, parts in record.get("set", {}).items():
            entries[lever].add_ours(parts)
            entries[lever].done -= set(parts)
        if "done" in record:
            lever, part = record["done"]
            entries[lever].done.add(part)
    lost = not complete or len(list(filter(None, contents))) < header.get("files", 1)
    for entry in entries.values() if lost else ():
        entry.incomplete = True
        entry.done.clear()
    damaged = sum(lines.count(None) for lines in contents)
    # with one number left out the loss is seen by the next reader as well
    following = max(records) + (1 if complete else 2)
    return Recorded(
        owner, dict(header["environment"]), entries, damaged, lost, next_number=following
    )


def _merged(contents: list[list[Record | None]]) -> tuple[dict[int, Record], bool]:
    """(Number -> record, from whichever file has it; whether all that were written are there).

    They are if one file is whole and none ends in a damaged line that the others do not have: it
    may have been a record. Journals of earlier versions have no numbers: each line counts as one.
    """
    records: dict[int, Record] = {}
    whole, agreed = False, True
    ends: list[tuple[int, bool]] = []
    for lines in contents:
        numbered = any(record and "n" in record for record in lines)
        number, damaged = -1, False
        numbers = []
        for record in lines:
            damaged = record is None
            if record is None:
                number += 0 if numbered else 1
                continue
            number = int(record.get("n", number + 1))
            numbers.append(number)
            agreed &= records.setdefault(number, record) == record
        whole |= None not in lines and numbers == list(range(len(numbers)))
        ends.append((number, damaged))
    last = max(records, default=-1)
    followed = sorted(records) == list(range(len(records)))
    open_end = any(damaged and end >= last for end, damaged in ends)
    return records, whole and agreed and followed and not open_end


def _journals_in(folder: Path) -> dict[str, float]:
    """Name -> time of the last write."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a glob is silent where nothing may be read
    except FileNotFoundError:
        return {}
    found = {}
    for name in names:
        if name.endswith(SUFFIX) and name.isprintable() and _is_there(folder / name):
            with suppress(OSError):
                found[name] = (folder / name).lstat().st_mtime
    return found


def _is_there(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except OSError:
        return False


def _entry(lever: Mapping[str, Any]) -> Entry:
    name, device, unit = (str(lever[key]) for key in ("name", "device", "unit"))
    previous = dict(lever["previous"])
    words = [name, device, unit, *previous, *(v for v in previous.values() if isinstance(v, str))]
    if not all(word.isprintable() for word in words):
        raise ValueError("no such word is ours, and it would reach a terminal")
    return Entry(name, device, unit, previous)


def _record(line: bytes) -> Record | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
