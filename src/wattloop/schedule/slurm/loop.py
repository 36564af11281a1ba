"""The loop around the driver: rounds, waiting for Slurm, and a clean end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from wattloop.core.errors import SlurmAway, SlurmError, WattloopError
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.managed_cluster import DriverSettings
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.slurm.view import Snapshot

HASTE = 5.0


"""Times as often as told, at most."""


LOOK_BACK_S = 5.0


SHARE = 1 / 3


"""Of the time that rounds may take while jobs come and go."""


IDLE_SHARE = 0.1


"""Of the time that rounds may take while nothing waits and GPUs are free."""


class RoundInterval:
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


T = TypeVar("T")


LONGEST_WAIT_S = 15.0


GIVE_UP_UNDOING_S = 30.0


MOST_REFUSALS = 5


class Steering(Protocol):
    """A driver, or an observer."""

    policy: Policy
    log: DriverLog
    settings: DriverSettings
    faults: int
    snapshot: Snapshot

    def begin(self) -> None:
        """Before the first round."""

    def round(self) -> RoundReport:
        """One round."""

    def step_back(self) -> None:
        """After the last one."""


class Ended(WattloopError):
    """The driver stepped back by itself; the message says why."""


def run_loop(
    driver: Steering,
    stop: threading.Event,
    *,
    rounds: int | None = None,
    on_round: Callable[[RoundReport], None] = lambda report: None,
) -> None:
    """Rounds until told to stop; then everything that has not come to be is undone.

    Args:
        driver: who does them.
        stop: set by whoever ends it.
        rounds: how many; None for as long as it takes.
        on_round: called after each.

    Raises:
        Ended: the policy failed too often.
        SlurmError: Slurm refuses what the driver needs from the start.
    """
    _patiently(driver, stop, driver.begin)
    try:
        done, pace = 0, RoundInterval(driver.settings.interval_s)
        while not stop.is_set() and (rounds is None or done < rounds):
            begun_s = time.monotonic()
            report = _patiently(driver, stop, driver.round, MOST_REFUSALS)
            if report is None:
                break
            done += 1
            on_round(report)
            if driver.faults >= driver.settings.most_faults:
                raise Ended(
                    f"policy {driver.policy.name} failed {driver.faults} times in a row "
                    f"({report.fault}); the driver has stepped back and Slurm goes on by itself"
                )
            pace.look(driver.snapshot.by_key, begun_s)
            took_s = time.monotonic() - begun_s
            wait_s = pace.every_s(report, took_s) - took_s
            wait_s = min(wait_s, report.wake_s - time.time())
            stop.wait(max(wait_s, 0.02))
    finally:
        _undo(driver)


def _patiently(
    driver: Steering, stop: threading.Event, do: Callable[[], T], refusals: int = 0
) -> T | None:
    """Do it as soon as Slurm answers; None when told to stop before.

    Args:
        driver: whose log it is.
        stop: set by whoever ends it.
        do: what is to be done.
        refusals: how often in a row Slurm may refuse before it is given up.
    """
    wait_s, is_away, refused = driver.settings.interval_s, False, 0
    while not stop.is_set():
        try:
            found = do()
        except SlurmError as error:
            refused += not isinstance(error, SlurmAway)
            if refused > refusals:
                raise
            if not is_away:
                driver.log.add("away", f"{error}; waiting")
                is_away = True
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            continue
        if is_away:
            driver.log.add("back", "Slurm answers again")
        return found
    return None


def _undo(driver: Steering) -> None:
    """Step back; where Slurm does not answer, the reservation ends by itself all the same."""
    give_up_s = time.monotonic() + GIVE_UP_UNDOING_S
    while True:
        try:
            driver.step_back()
        except SlurmError as error:
            if time.monotonic() < give_up_s and isinstance(error, SlurmAway):
                time.sleep(1.0)
                continue
            lease_s = driver.settings.lease_s
            said = f"not all was undone: {error}; the reservation ends within {lease_s:g} s"
            driver.log.add("warning", said)
        else:
            driver.log.add("stopped", "Slurm goes on by itself")
        return
