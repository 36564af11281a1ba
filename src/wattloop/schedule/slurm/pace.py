"""How soon a driver looks again: the sooner, the more often jobs come and go."""

from collections import deque
from collections.abc import Mapping

from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.round_report import RoundReport

__all__ = ["Pace"]

HASTE = 5.0
"""Times as often as told, at most."""
LOOK_BACK_S = 5.0
SHARE = 1 / 3
"""Of the time that rounds may take while jobs come and go."""
IDLE_SHARE = 0.1
"""Of the time that rounds may take while nothing waits and GPUs are free."""


class Pace:
    """The time from one round to the next.

    As told while nothing happens. While jobs arrive, begin and end, about as often as they do: a
    GPU that became free after a job of a second would else wait as long as that job took. With
    nothing waiting and GPUs free, a round costs little, and whoever submits a job waits for it.

    Args:
        longest_s: between two rounds, as told.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._seen: dict[str, bool] | None = None
        self._changes: deque[tuple[float, int]] = deque()

    def look(self, jobs: Mapping[str, SlurmJob], now_s: float) -> None:
        """Take note of what has changed since the last look.

        Args:
            jobs: all of them, by key.
            now_s: on a clock that never goes back.
        """
        seen = {key: job.has_machines for key, job in jobs.items()}
        if self._seen is not None:
            # One that arrived, began or is gone.
            changed = len(seen.items() ^ self._seen.items())
            changed -= sum(key in seen and seen[key] != had for key, had in self._seen.items())
            self._changes.append((now_s, changed))
        self._seen = seen
        while self._changes and self._changes[0][0] < now_s - LOOK_BACK_S:
            self._changes.popleft()

    def every_s(self, report: RoundReport, took_s: float) -> float:
        """From the begin of the last round to that of the next.

        Args:
            report: of the last round.
            took_s: what it took.
        """
        changes = sum(count for _, count in self._changes)
        wanted_s = LOOK_BACK_S / changes if changes else self._longest_s
        least_s = took_s / SHARE
        if not report.waiting and not report.coming and report.free_gpus:
            idle_s = max(self._longest_s / HASTE, took_s / IDLE_SHARE)
            wanted_s = min(wanted_s, idle_s)
        return min(max(wanted_s, least_s, self._longest_s / HASTE), self._longest_s)
