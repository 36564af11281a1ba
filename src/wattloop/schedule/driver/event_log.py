"""Event log of the driver, and the report of one round."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.driver.inventory import SchedulerJob

REPEAT_S = 60.0
"""Time for which the same message about the same job is not repeated."""
MOST_REMEMBERED = 10_000
LONGEST = 500


class DriverLog:
    """Event log that appends to a file and prints to the console.

    Args:
        path: log file; None writes no file.
        tell: the console; called with the kind of event and a line.
    """

    def __init__(
        self,
        path: Path | None,
        tell: Callable[[str, str], None] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._tell, self._wall_s = tell, wall_s
        self._logged_s: dict[tuple[str, str], float] = {}
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
        """Log one event; user-supplied text is shortened and stripped of control characters."""
        plain = _plain(message)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in ("refused", "warning") and self._is_repeated(kind, plain):
            return
        self._write(kind, plain, facts)

    def add_refusal(self, job: SchedulerJob, why: str) -> None:
        """Log a setting in a job's comment or name that is rejected."""
        self.add("refused", f"job {job.key}: {why}", job=job.key, user=job.user)

    def _is_repeated(self, kind: str, plain: str) -> bool:
        now_s, key = self._wall_s(), (kind, plain)
        if now_s - self._logged_s.get(key, -math.inf) < REPEAT_S:
            return True
        if len(self._logged_s) > MOST_REMEMBERED:
            self._logged_s.clear()
        self._logged_s[key] = now_s
        return False

    def _write(self, kind: str, plain: str, facts: dict[str, Any]) -> None:
        if self._file >= 0:
            entry = {"at_s": round(self._wall_s(), 3), "event": kind}
            line = json.dumps({**entry, **({"message": plain} if plain else {}), **facts})
            with suppress(OSError):  # a full disk must not stop jobs
                os.write(self._file, line.encode() + b"\n")
        if self._tell is not None:
            shown = " ".join(f"{name}={_plain(str(value))}" for name, value in facts.items())
            self._tell(kind, f"{plain} {shown}".strip())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _plain(text: str) -> str:
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return "".join(character if character.isprintable() else "?" for character in cut)


@dataclass(slots=True)
class RoundReport:
    """Report of one round.

    Attributes:
        at_s: seconds since 1970.
        waiting, running, coming: numbers of jobs.
        free_gpus: as the policy saw them.
        power_w, budget_w: of the whole cluster, within the counted scope.
        measured_nodes: nodes whose power is measured; that of others is estimated.
        starts, standby, preempts, recaps: keys of jobs.
        refusals: actions that were not executed, and why.
        fault: exception that the policy raised.
        read_s, view_s, policy_s, carry_s: duration of polling, the view, the policy and execution.
        calls: number of calls of Slurm's programs.
    """

    at_s: float = 0.0
    waiting: int = 0
    running: int = 0
    coming: int = 0
    free_gpus: int = 0
    power_w: float = math.nan
    budget_w: float = math.inf
    measured_nodes: int = 0
    starts: list[str] = field(default_factory=list)
    standby: list[str] = field(default_factory=list)
    preempts: list[str] = field(default_factory=list)
    recaps: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    short_of_power: int = 0
    fault: str = ""
    wake_s: float = math.inf
    read_s: float = 0.0
    view_s: float = 0.0
    policy_s: float = 0.0
    carry_s: float = 0.0
    calls: int = 0

    @property
    def took_s(self) -> float:
        return self.read_s + self.view_s + self.policy_s + self.carry_s

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "took_s": self.took_s}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in found.items()
        }
