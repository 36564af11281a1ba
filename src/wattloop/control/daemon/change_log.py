"""One line of JSON for each change and each refusal, in a file that is turned over when it is full.

{"time": "2026-03-01T12:00:00.123Z", "event": "set", "pid": 4711, "uid": 1000, "user": "alice",
 "lever": "gpu:0/power_limit", "before": 400.0, "after": 250.0, "why": ""}
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattloop.control.daemon.peer import Peer
from wattloop.core.errors import ConfigError

__all__ = ["ChangeLog", "read_log"]

TURN_OVER_B = 10 << 20
KEPT = 5
"""Older files beside it: `control.jsonl.1` is the newest of them."""


class ChangeLog:
    """Thread-safe. A full disk costs lines, never a lever; how many is said when it works again.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, turn_over_b: int = TURN_OVER_B, kept: int = KEPT) -> None:
        self.path = path
        self._turn_over_b = turn_over_b
        self._kept = kept
        self._lost = 0
        self._busy = threading.Lock()
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._descriptor = self._opened()
        except OSError as error:
            raise ConfigError(
                f"{path}: the log cannot be written ({error.strerror}); name another place with "
                "'log' in the rules"
            ) from None

    def write(self, event: str, peer: Peer | None = None, **fields: Any) -> None:
        """Add a line; never fails."""
        record: dict[str, Any] = {"time": _now(), "event": event}
        if peer is not None:
            record |= {"pid": peer.pid, "uid": peer.uid, "user": peer.user}
            record["command"] = peer.command
        record |= fields
        with self._busy:
            if self._lost:
                record["lines_lost_before"] = self._lost
            line = json.dumps(record, default=str).encode() + b"\n"
            try:
                if os.fstat(self._descriptor).st_size + len(line) > self._turn_over_b:
                    self._turn_over()
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(28, "no space left on the device")
                self._lost = 0
            except OSError as error:
                self._lost += 1
                if self._lost == 1 and sys.stderr is not None:
                    with suppress(OSError, ValueError):
                        sys.stderr.write(f"wattloop: {self.path}: {error.strerror}; lines lost\n")

    def close(self) -> None:
        """No more lines."""
        with self._busy:
            os.close(self._descriptor)

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path, flags, 0o640)

    def _turn_over(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with suppress(FileNotFoundError):
                _older(self.path, number).replace(_older(self.path, number + 1))
        self.path.replace(_older(self.path, 1))
        fresh = self._opened()
        os.close(self._descriptor)
        self._descriptor = fresh


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """All lines that are left, the oldest first. A torn line is left out.

    Raises:
        ConfigError: it is not there, or may not be read.
    """
    numbers = sorted(
        int(found.suffix[1:])
        for found in path.parent.glob(f"{path.name}.*")
        if found.suffix[1:].isdigit()
    )
    for file in [*(_older(path, number) for number in reversed(numbers)), path]:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            if file == path and not numbers:
                raise ConfigError(f"{path}: there is no log there; name it with --log") from None
            continue
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
        for line in text.splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
