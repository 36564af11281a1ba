"""The journal of a hold: what each lever was, and everything it was about to be set to.

One file per owner, lines of `CRC-32 JSON`. It is complete and on the disk before anything is set,
grows by a line (on the disk) before each change, and is removed when everything is restored. Its
owner holds its `flock`; a journal without a lock is a leftover.
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
from wattloop.control.place import fsync_directory
from wattloop.control.recorded import SUFFIX, VERSION, Entry, Recorded, read_open
from wattloop.core.errors import LeverError

__all__ = ["Journal"]


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
            if not try_lock(descriptor):  # it can be seen already, and locked, by others
                raise OSError(errno.EBUSY, "another process has locked it")
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

    def recorded(self) -> Recorded:
        """What is in the very file that we hold.

        Raises:
            LeverError: it is damaged, or was written by a newer version.
        """
        return read_open(self._descriptor, self.path)

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
            raise OSError(errno.ENOSPC, "no space left on the device")
        if to_disk:
            os.fsync(self._descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _no_journal(path: Path, error: OSError) -> str:
    return f"{path}: the journal cannot be written ({error.strerror}), so nothing is set"
