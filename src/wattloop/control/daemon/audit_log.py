"""Audit log: one line of JSON for each change and each refusal, in rotated files.

{"time": "2026-03-01T12:00:00.123Z", "event": "set", "pid": 4711, "uid": 1000, "user": "alice",
 "lever": "gpu:0/power_limit", "before": 400.0, "after": 250.0, "why": ""}

Refusals have their own file, so that they cannot displace changes. What one user causes in
masses is listed until a budget is used up, then summed up: the last line of its kind stands for
those before it, which it counts.
"""

import heapq
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattloop.control.daemon.protocol import Peer
from wattloop.core.errors import ConfigError

# Rate limiter: a long-term rate with bursts.


class Rate:
    """A token bucket: a number of requests per second in the long run, and bursts. Thread-safe."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = time.monotonic()
        self._busy = threading.Lock()

    def allow(self) -> bool:
        """Return True if one more request is within the rate."""
        with self._busy:
            now_s = time.monotonic()
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True

    @property
    def full(self) -> bool:
        return self._left + (time.monotonic() - self._at_s) * self._per_s >= self._burst


TURN_OVER_B = 10 << 20
KEPT = 5
"""Older files next to it: `control.jsonl.1` is the newest of them."""

REFUSALS = ("refused", "cut_off", "turned_away")
LINES_PER_S, BURST = 1 / 6, 300
"""Per user, of changes and of refusals each: 4 MB a day at most."""

SUMMARY_S = 600.0
"""Interval at which unlisted lines are summarised."""


@dataclass(slots=True)
class _Summary:
    """Summary of unlisted lines of one user, event and lever."""

    record: dict[str, Any]
    """The last of the lines."""
    count: int = 0
    since_s: float = field(default_factory=time.monotonic)


class AuditLog:
    """Rotated, thread-safe log. A full disk costs lines, never a lever; the number of lost lines is
    logged later.

    Args:
        path: of the changes; refusals are in `refusals_path(path)`.
        trusts: users whose lines are all listed.

    Raises:
        ConfigError: a file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        turn_over_b: int = TURN_OVER_B,
        kept: int = KEPT,
        trusts: Callable[[Peer], bool] = lambda peer: peer.uid == 0,
    ) -> None:
        self.path = path
        self.trusts = trusts
        self._budgets: dict[tuple[int, bool], Rate] = {}
        self._unlisted: dict[tuple[int, str, str], _Summary] = {}
        self._busy = threading.Lock()
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._changes = _File(path, turn_over_b, kept)
            self._refusals = _File(refusals_path(path), turn_over_b, kept)
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
        refusal = event in REFUSALS
        with self._busy:
            if peer is not None and not self.trusts(peer):
                # refusals may name any lever: those are summarised by user and event
                key = (peer.uid, event, "" if refusal else str(fields.get("lever", "")))
                if not self._listed(key, refusal, record):
                    return
            self._file(event).write(record)

    def sum_up(self, older_than_s: float = SUMMARY_S) -> None:
        """Write the summaries that are due; called periodically, and at the end."""
        now_s = time.monotonic()
        with self._busy:
            for key, summary in list(self._unlisted.items()):
                if now_s - summary.since_s >= older_than_s:
                    del self._unlisted[key]
                    line = {**summary.record, "unlisted_before": summary.count - 1}
                    self._file(key[1]).write(line)
            full = [key for key, rate in self._budgets.items() if rate.full]
            for budget in full:
                del self._budgets[budget]

    def close(self) -> None:
        self.sum_up(0.0)
        with self._busy:
            self._changes.close()
            self._refusals.close()

    def _listed(self, key: tuple[int, str, str], refusal: bool, record: dict[str, Any]) -> bool:
        budget = self._budgets.setdefault((key[0], refusal), Rate(LINES_PER_S, BURST))
        if budget.allow():
            before = self._unlisted.pop(key, None)
            if before is not None:
                record["unlisted_before"] = before.count
            return True
        summary = self._unlisted.setdefault(key, _Summary(record))
        summary.record, summary.count = record, summary.count + 1
        return False

    def _file(self, event: str) -> "_File":
        return self._refusals if event in REFUSALS else self._changes


class _File:
    """A log file, and the older files next to it."""

    def __init__(self, path: Path, turn_over_b: int, kept: int) -> None:
        self.path = path
        self._turn_over_b = turn_over_b
        self._kept = kept
        self._lost = 0
        self.descriptor = self._opened()

    def write(self, record: dict[str, Any]) -> None:
        if self._lost:
            record["lines_lost_before"] = self._lost
        line = json.dumps(record, default=str).encode() + b"\n"
        try:
            if os.fstat(self.descriptor).st_size + len(line) > self._turn_over_b:
                self._turn_over()
            if os.write(self.descriptor, line) != len(line):
                raise OSError(28, "no space left on the device")
            self._lost = 0
        except OSError as error:
            self._lost += 1
            if self._lost == 1 and sys.stderr is not None:
                with suppress(OSError, ValueError):
                    sys.stderr.write(f"wattloop: {self.path}: {error.strerror}; lines lost\n")

    def close(self) -> None:
        os.close(self.descriptor)

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path, flags, 0o640)

    def _turn_over(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with suppress(FileNotFoundError):
                _older(self.path, number).replace(_older(self.path, number + 1))
        self.path.replace(_older(self.path, 1))
        fresh = self._opened()
        os.close(self.descriptor)
        self.descriptor = fresh


def refusals_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.refused{path.suffix}")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Read all lines, changes and refusals, the oldest first; torn lines are left out."""
    refusals = _lines(refusals_path(path)) if refusals_path(path).exists() else iter(())
    return heapq.merge(_lines(path), refusals, key=lambda record: str(record.get("time", "")))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
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
                raise ConfigError(f"{path}: no log found; name it with --log") from None
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
