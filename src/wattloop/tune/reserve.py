"""Room on the disk that is kept for the last words of a search."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from wattloop.core.errors import StoreUnwritable

__all__ = ["Reserve"]

ROOM_B = 1 << 20
"""Many times what a segment needs in the database and its log."""

T = TypeVar("T")


class Reserve:
    """A file that is given up when the disk is full, so that what was paid for is still kept.

    Args:
        path: on the disk of the store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Take the room, before anything is paid for.

        Raises:
            StoreUnwritable: there is none.
        """
        if self._path.exists():
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("wb") as file:
                file.write(b"\0" * ROOM_B)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.give_back()
            free_b = 0
            with suppress(OSError):
                free_b = shutil.disk_usage(self._path.parent).free
            raise StoreUnwritable(
                f"{self._path.parent}: {error.strerror} ({free_b // 1024} KiB left); make room on "
                "the disk ('df -h') and go on with 'wattloop tune resume': nothing is lost"
            ) from None

    def kept(self, write: Callable[[], T]) -> T:
        """Do `write`; where the disk is full once more, with the room that was kept."""
        try:
            return write()
        except StoreUnwritable:
            if not self._path.exists():
                raise
            self.give_back()
            return write()

    def give_back(self) -> None:
        """Let go of the room."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
