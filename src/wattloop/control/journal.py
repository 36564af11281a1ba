"""The journal of a hold: what each lever was, and everything it was about to be set to.

Two files per owner, in two places (`place.copy_directories`), lines of `CRC-32 JSON` with a number.
Both are complete and on the disk before anything is set, grow by a line (on the disk) before each
change, and are removed when everything is restored. Their owner holds the `flock` of both; a
journal without a lock is a leftover.
"""

import errno
import json
import os
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattloop.control.descriptors import close_private, keep_private, try_lock
from wattloop.control.lever import Lever, Setting
from wattloop.control.owner import Owner
from wattloop.control.place import (
    COPY_VARIABLE,
    copy_directories,
    fsync_directory,
    make_copy_directory,
)
from wattloop.control.recorded import (
    SUFFIX,
    VERSION,
    Entry,
    Recorded,
    journal_files,
    locked_by_stranger,
    read_files,
)
from wattloop.core.errors import LeverError

__all__ = ["Journal"]


class Journal:
    """A journal that this process holds. One that was taken over is read before it is added to."""

    def __init__(self, path: Path, descriptors: Mapping[Path, int], number: int = 0) -> None:
        self.path = path
        self.note = ""
        """Why there is one file only; empty where there are two."""
        self._files = dict(descriptors)
        self._number = number

    @classmethod
    def create(
        cls, directory: Path, owner: Owner, levers: Mapping[Lever, Entry], environment: Any
    ) -> "Journal":
        """Written whole, on the disk, locked, and only then visible under its name.

        Raises:
            LeverError: the disk does not take it.
        """
        path = directory / f"{owner.pid}-{owner.started}-{secrets.token_hex(4)}{SUFFIX}"
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
                # of two files without a name for others yet, both are whole before one has it
                journal._files[file] = _created(file.with_suffix(".new"))
            journal._append(header)
            for file, descriptor in journal._files.items():
                file.with_suffix(".new").rename(file)
                os.fchmod(descriptor, 0o644)  # other users see who holds what
                fsync_directory(file.parent)
        except BaseException as error:
            for file in files:
                file.with_suffix(".new").unlink(missing_ok=True)
            journal.remove()
            if isinstance(error, OSError):
                raise LeverError(_no_journal(path, error)) from None
            raise
        return journal

    @classmethod
    def take_over(cls, path: Path, wait_s: float = 0.0) -> "Journal | None":
        """The journal of an owner that died; None while somebody holds it or when it is gone."""
        journal = cls(path, {})
        for file in journal_files(path):
            try:
                flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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

    def recorded(self) -> Recorded:
        """What is in the very files that we hold.

        Raises:
            LeverError: it is damaged, or was written by a newer version.
        """
        recorded = read_files(self.path, self._files)
        self._number = recorded.next_number
        return recorded

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
        for file in self._files:
            with suppress(OSError):
                file.unlink()
                fsync_directory(file.parent)
            if file != self.path:
                with suppress(OSError):  # another hold has its copies there
                    file.parent.rmdir()
        self.close()

    def close(self) -> None:
        """Leave it to the next process that holds or restores these devices."""
        for descriptor in self._files.values():
            close_private(descriptor)
        self._files.clear()

    def _append(self, record: Mapping[str, Any], *, to_disk: bool = True) -> None:
        """Add a record to each file.

        Raises:
            OSError: one of them did not take it.
        """
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
    """(Where the second file of a new journal goes, why there is none)."""
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
    """A new file that we have locked; until it is, no other user can open it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    descriptor = keep_private(os.open(path, flags, 0o600))
    if not try_lock(descriptor):
        close_private(descriptor)
        raise OSError(errno.EBUSY, "another process has locked it")
    return descriptor


def _replaced(file: Path, descriptor: int) -> int:
    """The same content in a new file of that name, which we have locked."""
    fresh = file.with_suffix(".new")
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
