"""The live journal of a run: an append-only file that survives whatever kills its writer.

A journal is a sequence of frames (see `frames`) that a `JournalWriter` appends, of which a reader
takes all up to the first torn one. While its writer lives, it holds an exclusive `flock` on the
file: a journal that nobody holds belongs to a run that ended or died, and may be folded into the
store by whoever comes next.

Times are seconds on the machine's monotonic clock; the header ties them to the time of day.
"""

import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattloop.store.frames import (
    END,
    EVENT,
    FRAME,
    HEADER,
    SAMPLES,
    SampleBlock,
    block_from,
    frames_in,
)

__all__ = [
    "FORMAT",
    "Journal",
    "JournalTail",
    "journal_directory",
    "journal_is_live",
    "read_header",
    "read_journal",
]

FORMAT = 1
"""Version of what frames hold. A reader refuses journals with a higher one."""

HEADER_LIMIT_B = 16 * 1024 * 1024
"""No header is as long as this; a damaged one may say so."""


def journal_directory(store_location: str) -> Path:
    """Where live journals of a store are: beside the SQLite file, or in the user's data folder."""
    if "://" in store_location and not store_location.startswith("sqlite"):
        base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        return Path(base) / "wattloop" / "journals"
    path = Path(store_location.removeprefix("sqlite:///")).expanduser()
    return path.parent / f"{path.name}.journals"


class Journal:
    """What could be read of a journal.

    Attributes:
        torn_bytes: bytes at the end that no longer make a frame.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        blocks: list[SampleBlock] | None = None,
        events: list[dict[str, Any]] | None = None,
        end: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.header = header
        self.blocks = [] if blocks is None else blocks
        self.events = [] if events is None else events
        self.end = end
        self.torn_bytes = 0


def read_journal(path: Path) -> Journal | None:
    """Everything up to the first torn frame; None when not even the header is there."""
    data = path.read_bytes()
    journal: Journal | None = None
    end_of_good = 0
    for kind, payload, end in frames_in(data):
        try:
            if kind == HEADER:
                header = json.loads(payload)
                if not isinstance(header, dict):
                    break
                journal = Journal(path, header)
            elif journal is None:
                return None
            elif kind == SAMPLES:
                journal.blocks.append(block_from(payload))
            elif kind == EVENT:
                journal.events.append(json.loads(payload))
            elif kind == END:
                journal.end = json.loads(payload)
        except (ValueError, RecursionError, struct.error):  # a whole frame with nonsense in it
            break
        end_of_good = end
    if journal is not None:
        journal.torn_bytes = len(data) - end_of_good
    return journal


def read_header(path: Path) -> dict[str, Any] | None:
    """The header alone, however long the journal is; None when it is not there or not whole."""
    with path.open("rb") as file:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            return None
        data = head + file.read(min(FRAME.unpack(head)[0], HEADER_LIMIT_B))
    for kind, payload, _ in frames_in(data):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except (ValueError, RecursionError):
            return None
        return header if isinstance(header, dict) else None
    return None


class JournalTail:
    """Reads a journal that somebody else is writing, a few frames at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def poll(self) -> Iterator[tuple[bytes, Any]]:
        """Frames that have arrived since the last call: (kind, JSON or SampleBlock)."""
        self._rest += self._file.read()
        used = 0
        for kind, payload, end in frames_in(self._rest):
            used = end
            yield kind, block_from(payload) if kind == SAMPLES else json.loads(payload)
        self._rest = self._rest[used:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def journal_is_live(path: Path, stale_after_s: float = 60.0) -> bool:
    """Whether its writer still holds it."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # no locks on this file system: a writer appends at least once a second
        return time.time() - path.stat().st_mtime < stale_after_s
