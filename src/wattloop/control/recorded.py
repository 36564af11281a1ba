"""Journals as they are read: what is in them, and whether they may be believed.

The place is shared by all users of a machine, and a journal tells its reader what to write and
where. So it counts only when nobody but root or we ourselves can have written it, and whatever
else is found there holds nobody up.
"""

import json
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.control.lever import Setting
from wattloop.control.owner import Owner, user_name
from wattloop.control.place import STATE_VARIABLE
from wattloop.core.errors import LeverError

__all__ = ["SUFFIX", "VERSION", "Entry", "Recorded", "doubt", "journals", "read_journal"]

VERSION = 1
SUFFIX = ".journal"
MOST_B, STRANGERS_MOST_B = 1 << 30, 1 << 20
"""A line is about 100 bytes: no sweep comes near, and nobody fills the memory of another."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
    doubt: str = ""
    """Why it is not to be believed."""

    def pending(self) -> list[Entry]:
        """Levers with something to restore."""
        return [entry for entry in self.entries.values() if entry.pending()]


def journals(directory: Path) -> list[Path]:
    """All journals there, the oldest first. Links, pipes and names that are not ours are none.

    Raises:
        LeverError: the directory may not be read.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208 - a glob is silent where nothing may be read
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LeverError(
            f"{directory}: whether anything is left to restore cannot be read ({error.strerror}); "
            f"run 'sudo env {STATE_VARIABLE}={directory} wattloop restore'"
        ) from None
    found = []
    for name in names:
        if not name.endswith(SUFFIX) or not name.isprintable():
            continue
        with suppress(OSError):
            status = (directory / name).lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime, directory / name))
    return [path for _, path in sorted(found)]


def read_journal(path: Path) -> Recorded:
    """What is in it, whoever holds it.

    Raises:
        FileNotFoundError: it is gone.
        LeverError: it cannot be read, is damaged, or was written by a newer version.
    """
    try:
        # a pipe would keep us waiting, a link lead us elsewhere
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LeverError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return read_open(descriptor, path)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, path: Path) -> Recorded:
    """As `read_journal`, of the very file that is open."""
    status = os.fstat(descriptor)
    reason = doubt(status)
    most_b = STRANGERS_MOST_B if reason else MOST_B
    if not stat.S_ISREG(status.st_mode) or status.st_size > most_b:
        raise LeverError(f"{path} is no journal; look at it and remove it")
    try:
        recorded = _parsed(os.pread(descriptor, status.st_size, 0).split(b"\n"), path)
    except OSError as error:
        raise LeverError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        recorded = None
    if recorded is None:
        raise LeverError(
            f"{path} is damaged: what levers were before cannot be read from it; compare with "
            "'wattloop devices', then remove it"
        )
    recorded.doubt = reason
    return recorded


def doubt(status: os.stat_result) -> str:
    """Why a journal is not to be believed; empty when only root or we can have written it."""
    if status.st_uid not in (0, os.geteuid()):
        return f"was left by {user_name(status.st_uid)}"
    # our lock files are for everybody, and a second name makes a journal of one
    if status.st_mode & OTHERS_WRITE:
        return "may have been written by any user"
    return ""


def _parsed(lines: list[bytes], path: Path) -> Recorded | None:
    records = [_record(line) for line in lines if line]
    header = records[0] if records else None
    owner = Owner.from_dict(header.get("owner")) if header else None
    if header is None or owner is None:
        return None
    if header["version"] > VERSION:
        raise LeverError(f"{path} was written by a newer wattloop; restore with that one")
    entries = {str(lever["name"]): _entry(lever) for lever in header["levers"]}
    for record in filter(None, records[1:]):
        for lever, parts in record.get("set", {}).items():
            entries[lever].add_ours(parts)
            entries[lever].done -= set(parts)
        if "done" in record:
            lever, part = record["done"]
            entries[lever].done.add(part)
    return Recorded(owner, dict(header["environment"]), entries, records.count(None))


def _entry(lever: Mapping[str, Any]) -> Entry:
    name, device, unit = (str(lever[key]) for key in ("name", "device", "unit"))
    previous = dict(lever["previous"])
    words = [name, device, unit, *previous, *(v for v in previous.values() if isinstance(v, str))]
    if not all(word.isprintable() for word in words):
        raise ValueError("no such word is ours, and it would reach a terminal")
    return Entry(name, device, unit, previous)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
