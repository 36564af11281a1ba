"""What the driver did and refused, one JSON object a line, for people and programs."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.job_record import SlurmJob

__all__ = ["EventLog"]

REPEAT_S = 60.0
"""The same words about the same job are not written again for so long."""
MOST_REMEMBERED = 10_000
LONGEST = 500


class EventLog:
    """Appends to a file; tells the console.

    Args:
        path: of the file; None writes none.
        tell: the console; called with the kind of event and a line.
        wall_s: the clock.
    """

    def __init__(
        self,
        path: Path | None,
        tell: Callable[[str, str], None] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._tell, self._wall_s = tell, wall_s
        self._said: dict[tuple[str, str], float] = {}
        self.counts: dict[str, int] = {}
        self._file = -1
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(path, flags, 0o640)
            except OSError as error:
                raise ConfigError(
                    f"{path}: {error.strerror}; name another file with --log"
                ) from None

    def add(self, kind: str, message: str = "", **facts: Any) -> None:
        """One event; texts of users are cut and made plain."""
        plain = _plain(message)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in ("refused", "warning") and self._is_repeated(kind, plain):
            return
        self._write(kind, plain, facts)

    def add_refusal(self, job: SlurmJob, why: str) -> None:
        """Something that a job's texts say and that is not believed."""
        self.add("refused", f"job {job.key}: {why}", job=job.key, user=job.user)

    def _is_repeated(self, kind: str, plain: str) -> bool:
        now_s, key = self._wall_s(), (kind, plain)
        if now_s - self._said.get(key, -math.inf) < REPEAT_S:
            return True
        if len(self._said) > MOST_REMEMBERED:
            self._said.clear()
        self._said[key] = now_s
        return False

    def _write(self, kind: str, plain: str, facts: dict[str, Any]) -> None:
        if self._file >= 0:
            entry = {"at_s": round(self._wall_s(), 3), "event": kind}
            line = json.dumps({**entry, **({"message": plain} if plain else {}), **facts})
            with suppress(OSError):  # a full disk stops no job
                os.write(self._file, line.encode() + b"\n")
        if self._tell is not None:
            said = " ".join(f"{name}={_plain(str(value))}" for name, value in facts.items())
            self._tell(kind, f"{plain} {said}".strip())

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _plain(text: str) -> str:
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "".join(character if character.isprintable() else "?" for character in cut)
