"""Journal of a lever session: previous and intended values, in two directories, with checksums."""

import errno
import hashlib
import json
import os
import secrets
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.control.lever import Lever, Setting
from wattloop.control.lock import Owner, close_private, keep_private, lock_holder
from wattloop.core.errors import LeverError
from wattloop.core.files import (
    CLOSE_ON_EXEC,
    NO_FOLLOW,
    NO_WAIT,
    fsync_directory,
    is_locked,
    try_lock,
    user_id,
    user_name,
    user_path,
)

# State directory: locks and journals, shared by all users of the machine. The second copy of each
# journal is in another directory: clearing one of them leaves the other.

STATE_VARIABLE = "WATTLOOP_STATE_DIR"
DEFAULT_PLACE = Path("/var/tmp/wattloop-control")
"""Survives a reboot, is the same for every user, and can be created by any user.

/var/lib would need root to prepare it, and two places would mean two locks for one device.
"""

EVERYBODY = 0o1777
COPY_VARIABLE = "WATTLOOP_STATE_COPY_DIR"
ROOT_COPIES = Path("/var/lib/wattloop/levers")
USER_COPIES = "/tmp/wattloop-levers-{uid}"
"""Not in the home: machines may share it, and values of levers belong to one machine."""


def state_directory(directory: Path | None = None, *, create: bool = True) -> Path:
    """Return the given directory, that of `WATTLOOP_STATE_DIR`, or the machine's."""
    named = os.environ.get(STATE_VARIABLE)
    path = directory or (user_path(named) if named else DEFAULT_PLACE)
    if create:
        try:
            _make(path)
        except OSError as error:
            raise LeverError(
                f"{path}: journals of levers cannot be kept there ({error.strerror}), so nothing "
                f"is set; name a writable directory with {STATE_VARIABLE}"
            ) from None
    return path.absolute()


def copy_directories(place: Path, uid: int | None = None) -> list[Path]:
    """Return directories for second copies of a user's journals, the preferred one first."""
    uid = user_id() if uid is None else uid
    key = hashlib.sha256(os.fsencode(place)).hexdigest()[:12]
    named = os.environ.get(COPY_VARIABLE)
    if named:
        return [user_path(named).absolute() / key]
    roots = [ROOT_COPIES] if uid == 0 else []
    return [root / key for root in (*roots, Path(USER_COPIES.format(uid=uid)))]


def make_copy_directory(path: Path) -> None:
    """Create one of `copy_directories`. Raises OSError if others could replace files there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    for folder in (path.parent, path):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user_id():
            raise PermissionError(13, f"{folder} is not a directory of this user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(13, f"other users may write to {folder}")


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o777, parents=True)
    # Another user may have created a link there to redirect our writes.
    flags = os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW | CLOSE_ON_EXEC
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if path == DEFAULT_PLACE and user_id() in (0, found.st_uid):
            if user_id() == 0 and found.st_uid != 0:
                os.fchown(descriptor, 0, 0)
            if stat.S_IMODE(found.st_mode) != EVERYBODY:
                os.fchmod(descriptor, EVERYBODY)
    finally:
        os.close(descriptor)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(13, "not writable for this user")


# Reading of journals, and trust in them.
#
# A journal is two files with the same records, in two directories. Records are numbered and have a
# checksum, so a record lost in one file is read from the other. If a record is lost in both, or a
# file is missing, every lever of the journal is checked again, also those recorded as done.
#
# The directory is shared by all users of a machine, and a journal tells its reader which values to
# write where. So a journal is trusted only if no user but root or the reader can have written it.
# Other files in the directory never block a session.

VERSION = 1
SUFFIX, NEW = ".journal", ".new"
MOST_B, STRANGERS_MOST_B = 1 << 30, 1 << 20
"""A line has about 100 bytes. No sweep reaches this limit, and a user cannot fill another's
memory."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Record = dict[str, Any]


@dataclass(slots=True)
class JournalEntry:
    """Journaled values of one lever.

    Attributes:
        previous: part -> value before the session.
        ours: part -> values that the owner intended to set or read back.
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
        """Parts that were or may have been changed, and are not known to be restored."""
        return [
            part
            for part in self.previous
            if (self.incomplete or self.ours.get(part)) and part not in self.done
        ]

    def add_ours(self, parts: Mapping[str, Setting]) -> None:
        for part, value in parts.items():
            known = self.ours.setdefault(part, [])
            if value not in known:
                known.append(value)


@dataclass(slots=True)
class JournalContent:
    """Content of a journal."""

    owner: Owner
    environment: dict[str, str]
    entries: dict[str, JournalEntry]
    damaged: int = 0
    """Number of lines with a wrong checksum."""
    lost: bool = False
    """True if a record is or may be missing in both files: a file is gone, or ends in a damaged
    line."""
    next_number: int = 1
    """Number of the next record."""
    doubt: str = ""
    """Reason why the journal is not trusted."""

    def pending(self) -> list[JournalEntry]:
        """Levers with values to restore."""
        return [entry for entry in self.entries.values() if entry.pending()]


def journals(directory: Path) -> list[Path]:
    """Return all journals of a directory, the oldest first, also those with only the second copy.

    Links, pipes and foreign names are ignored.

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
    """Return the existing files of the journal and its second copy."""
    uids = {user_id()}
    with suppress(OSError):
        uids.add(path.lstat().st_uid)
    copies = [f / path.name for uid in sorted(uids) for f in copy_directories(path.parent, uid)]
    return [file for file in dict.fromkeys((path, *copies)) if _is_there(file)]


def is_held(path: Path, wait_s: float = 0.0) -> bool:
    """Return True if a process holds the lock of either file for the given time.

    Every user can read a journal, and so lock a leftover one. A lock counts only if its holder is
    root or the user who wrote the journal.
    """
    return any(
        is_locked(file, wait_s) and not locked_by_stranger(file) for file in journal_files(path)
    )


def locked_by_stranger(file: Path) -> bool:
    """Return True if a process of neither root, this user, nor the file's author holds its lock."""
    process = lock_holder(file)
    try:
        return process is not None and process.uid not in (0, user_id(), file.stat().st_uid)
    except OSError:
        return False


def read_journal(path: Path) -> JournalContent:
    """Read a journal, locked or not.

    Raises:
        FileNotFoundError: both files are gone.
        LeverError: it cannot be read, is damaged, or was written by a newer version.
    """
    descriptors = {}
    refusal: OSError | None = None
    try:
        for file in journal_files(path):
            try:
                # a pipe would block, a link would lead elsewhere
                flags = os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC
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


def read_files(path: Path, descriptors: Mapping[Path, int]) -> JournalContent:
    """Read a journal as `read_journal` does, from the open files themselves."""
    if not descriptors:
        raise FileNotFoundError(errno.ENOENT, "no such journal", str(path))
    reasons = {file: untrusted_reason(os.fstat(number)) for file, number in descriptors.items()}
    # a file that another user can have written is ignored next to a trusted one
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


def untrusted_reason(status: os.stat_result) -> str:
    """Return why a journal is not trusted; empty if only root or this user can have written it."""
    if status.st_uid not in (0, user_id()):
        return f"was left by {user_name(status.st_uid)}"
    # our lock files are writable for everyone, and a hard link would turn one into a journal
    if status.st_mode & OTHERS_WRITE:
        return "may have been written by any user"
    return ""


def _parsed(contents: list[list[Record | None]], path: Path) -> JournalContent | None:
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
    if any("ended" in record for record in records.values()):
        # killed between the removals of its two files, after everything was restored
        lost = False
        for entry in entries.values():
            entry.ours.clear()
    elif complete and len(records) == 1 and _is_unfinished(path):
        lost = False  # nothing is set before both files have their names
    for entry in entries.values() if lost else ():
        entry.incomplete = True
        entry.done.clear()
    damaged = sum(lines.count(None) for lines in contents)
    # with one number skipped the next reader detects the loss as well
    following = max(records) + (1 if complete else 2)
    return JournalContent(
        owner, dict(header["environment"]), entries, damaged, lost, next_number=following
    )


def _is_unfinished(path: Path) -> bool:
    """Return True if its owner was killed before both files of a new journal had their names."""
    for file in (path, *(folder / path.name for folder in copy_directories(path.parent))):
        fresh = file.with_suffix(NEW)
        with suppress(OSError):
            if not _is_there(file) and not untrusted_reason(fresh.lstat()) and _is_there(fresh):
                return True
    return False


def _merged(contents: list[list[Record | None]]) -> tuple[dict[int, Record], bool]:
    """Return (number -> record from either file, True if all written records are there).

    All are there if one file is complete and none ends in a damaged line that the others lack,
    which may have been a record. Journals of earlier versions have no numbers: each line counts as
    one.
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


def _entry(lever: Mapping[str, Any]) -> JournalEntry:
    name, device, unit = (str(lever[key]) for key in ("name", "device", "unit"))
    previous = dict(lever["previous"])
    words = [name, device, unit, *previous, *(v for v in previous.values() if isinstance(v, str))]
    if not all(word.isprintable() for word in words):
        raise ValueError("no such word is ours, and it would reach a terminal")
    return JournalEntry(name, device, unit, previous)


def _record(line: bytes) -> Record | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


# Writing of a session's journal: previous values, and every value before it is set.
#
# Two files per owner, in two directories (`copy_directories`), with numbered lines of `CRC-32
# JSON`. Both are complete and on the disk before anything is set. Each change appends a line, on
# the disk before the device is written. Both are removed when everything is restored, after a
# last line `ended`, so that a kill between the two removals leaves no doubt. The owner holds the
# `flock` of both; an unlocked journal is a leftover.


def journal_path(directory: Path, owner: Owner) -> Path:
    """Return a path that no other journal has."""
    return directory / f"{owner.pid}-{owner.started}-{secrets.token_hex(4)}{SUFFIX}"


def remove_unfinished(path: Path) -> None:
    """Remove the files of a journal whose owner died before it gave them their names."""
    for file in (path, *(folder / path.name for folder in copy_directories(path.parent))):
        with suppress(OSError):
            file.with_suffix(NEW).unlink()
        if file != path:
            with suppress(OSError):  # another session has its copies there
                file.parent.rmdir()


class Journal:
    """A journal that this process has locked; one taken over is read before it is extended."""

    def __init__(self, path: Path, descriptors: Mapping[Path, int], number: int = 0) -> None:
        self.path = path
        self.note = ""
        """Reason why a second copy is missing; empty where it exists."""
        self._files = dict(descriptors)
        self._number = number

    @classmethod
    def create(
        cls, path: Path, owner: Owner, levers: Mapping[Lever, JournalEntry], environment: Any
    ) -> "Journal":
        """Create the journal of a new `journal_path`: complete, synced and locked when visible.

        Raises LeverError.
        """
        copy, note = _copy_path(path)
        files = [path] if copy is None else [copy, path]
        header = {
            "version": VERSION,
            "files": len(files),
            "owner": owner.to_dict(),
            "environment": dict(environment),
            "levers": [
                {"name": e.name, "device": e.device, "unit": e.unit, "previous": e.previous}
                for e in levers.values()
            ],
        }
        journal = cls(path, {})
        journal.note = note
        try:
            for file in files:
                # both files are complete before either gets its visible name
                journal._files[file] = _created(file.with_suffix(NEW))
            journal._append(header)
            for file, descriptor in journal._files.items():
                file.with_suffix(NEW).rename(file)
                os.fchmod(descriptor, 0o644)  # other users can see the owner
                fsync_directory(file.parent)
        except BaseException as error:
            for file in files:
                file.with_suffix(NEW).unlink(missing_ok=True)
            journal.remove()
            if isinstance(error, OSError):
                raise LeverError(_no_journal(path, error)) from None
            raise
        return journal

    @classmethod
    def take_over(cls, path: Path, wait_s: float = 0.0) -> "Journal | None":
        """Lock and return the journal of a dead owner; None while it is locked, or if gone."""
        journal = cls(path, {})
        for file in journal_files(path):
            try:
                flags = os.O_RDWR | os.O_APPEND | CLOSE_ON_EXEC | NO_FOLLOW | NO_WAIT
                descriptor = keep_private(os.open(file, flags))
            except FileNotFoundError:
                continue
            except OSError as error:
                journal.close()
                raise LeverError(
                    f"{file} cannot be opened ({error.strerror}); run 'sudo wattloop restore'"
                ) from None
            if not try_lock(descriptor, 0.0 if locked_by_stranger(file) else wait_s):
                if not locked_by_stranger(file):
                    close_private(descriptor)
                    journal.close()
                    return None
                descriptor = _replaced(file, descriptor)
            journal._files[file] = descriptor
            if os.fstat(descriptor).st_nlink == 0:
                journal.close()
                return None
        return journal if journal._files else None

    def recorded(self) -> JournalContent:
        """Return the content of the locked files. Raises LeverError as `read_journal` does."""
        recorded = read_files(self.path, self._files)
        self._number = recorded.next_number
        return recorded

    def about_to_set(self, parts: Mapping[str, Mapping[str, Setting]]) -> None:
        """Append lever -> part -> value to the disk. Raises LeverError: nothing may be set then."""
        try:
            self._append({"set": {lever: dict(own) for lever, own in parts.items()}})
        except OSError as error:
            raise LeverError(_no_journal(self.path, error)) from None

    def done(self, lever: str, part: str) -> None:
        """Record that this part is restored."""
        with suppress(OSError):  # at worst it is checked once more
            self._append({"done": [lever, part]}, to_disk=False)

    def remove(self) -> None:
        with suppress(OSError):
            self._append({"ended": True}, to_disk=False)
        for file in self._files:
            with suppress(OSError):
                file.unlink()
                fsync_directory(file.parent)
            for each in (file, self.path):
                with suppress(OSError):  # of an owner that was killed while it created them
                    each.with_suffix(NEW).unlink()
            if file != self.path:
                with suppress(OSError):  # another session has its copies there
                    file.parent.rmdir()
        self.close()

    def close(self) -> None:
        """Leave the journal to the next process that locks or restores these devices."""
        for descriptor in self._files.values():
            close_private(descriptor)
        self._files.clear()

    def _append(self, record: Mapping[str, Any], *, to_disk: bool = True) -> None:
        """Append a record to each file. Raises OSError: one of them could not be written."""
        line = _line({"n": self._number, **record})
        failure: OSError | None = None
        written = False
        for descriptor in self._files.values():
            try:
                _write(descriptor, line, to_disk=to_disk)
                written = True
            except OSError as error:
                failure = error
        self._number += written
        if failure is not None:
            raise failure


def _copy_path(path: Path) -> tuple[Path | None, str]:
    """Return (path of a new journal's second file, reason why it has none)."""
    reason = ""
    for folder in copy_directories(path.parent):
        try:
            make_copy_directory(folder)
        except OSError as error:
            reason = f"{folder.parent} ({error.strerror})"
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder / path.name, ""
        reason = f"{folder.parent} (not writable)"
    return None, (
        f"previous values of levers are journaled once instead of twice: {reason} cannot be used; "
        f"name a directory of this user with {COPY_VARIABLE}"
    )


def _created(path: Path) -> int:
    """Create a file and lock it; until then no other user can open it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | CLOSE_ON_EXEC
    descriptor = keep_private(os.open(path, flags, 0o600))
    if not try_lock(descriptor):
        close_private(descriptor)
        raise OSError(errno.EBUSY, "another process has locked it")
    return descriptor


def _replaced(file: Path, descriptor: int) -> int:
    """Replace a file by a new, locked one with the same content."""
    fresh = file.with_suffix(NEW)
    status = os.fstat(descriptor)
    data = os.pread(descriptor, status.st_size, 0)
    close_private(descriptor)
    ours = -1
    try:
        fresh.unlink(missing_ok=True)
        ours = _created(fresh)
        _write(ours, data, to_disk=True)
        os.fchown(ours, status.st_uid, status.st_gid)  # root restores for the user who wrote it
        fresh.rename(file)
        os.fchmod(ours, 0o644)
        fsync_directory(file.parent)
    except OSError as error:
        close_private(ours)
        raise LeverError(f"{file} cannot be taken over ({error.strerror})") from None
    return ours


def _write(descriptor: int, line: bytes, *, to_disk: bool) -> None:
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    line = (b"\n" if torn else b"") + line
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, "no space left on the device")
    if to_disk:
        os.fsync(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _no_journal(path: Path, error: OSError) -> str:
    return f"{path}: the journal cannot be written ({error.strerror}), so nothing is set"
