"""Main loop of the driver: interval of rounds, waiting for Slurm, and a clean shutdown."""

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


"""Most rounds per configured interval."""


LOOK_BACK_S = 5.0


SHARE = 1 / 3


"""Share of the time that rounds may take while jobs arrive and finish."""


IDLE_SHARE = 0.1


"""Share of the time that rounds may take while no job waits and GPUs are free."""


class RoundInterval:
    """Adaptive interval between rounds.

    The configured interval applies while nothing happens. While jobs arrive, start and finish, the
    interval follows their rate, because a GPU freed by a one-second job would otherwise idle as
    long
    as that job ran. With free GPUs and an empty queue a round is cheap, and a newly submitted job
    would wait for it.

    Args:
        longest_s: configured interval.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._seen: dict[str, bool] | None = None
        self._changes: deque[tuple[float, int]] = deque()

    def look(self, jobs: Mapping[str, SlurmJob], now_s: float) -> None:
        """Count the changes since the last call.

        Args:
            jobs: all jobs, by key.
            now_s: monotonic time.
        """
        seen = {key: job.has_machines for key, job in jobs.items()}
        if self._seen is not None:
            # Jobs that arrived, started or left the queue.
            changed = len(seen.items() ^ self._seen.items())
            changed -= sum(key in seen and seen[key] != had for key, had in self._seen.items())
            self._changes.append((now_s, changed))
        self._seen = seen
        while self._changes and self._changes[0][0] < now_s - LOOK_BACK_S:
            self._changes.popleft()

    def every_s(self, report: RoundReport, took_s: float) -> float:
        """Return the time from the start of the last round to the start of the next.

        Args:
            report: report of the last round.
            took_s: duration of the last round.
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
    """Interface of a driver or an observer."""

    policy: Policy
    log: DriverLog
    settings: DriverSettings
    faults: int
    snapshot: Snapshot

    def begin(self) -> None:
        """Prepare the first round."""

    def round(self) -> RoundReport:
        """Run one round."""

    def step_back(self) -> None:
        """Restore Slurm after the last round."""


class Ended(WattloopError):
    """Error raised when the driver stops by itself; the message gives the reason."""


def run_loop(
    driver: Steering,
    stop: threading.Event,
    *,
    rounds: int | None = None,
    on_round: Callable[[RoundReport], None] = lambda report: None,
) -> None:
    """Run rounds until stopped, then restore all released jobs that have not started.

    Args:
        driver: driver or observer.
        stop: event that ends the loop.
        rounds: number of rounds; None for no limit.
        on_round: called after each round.

    Raises:
        Ended: the policy failed too often.
        SlurmError: Slurm refuses the setup.
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
                    f"({report.fault}); the driver has stopped and Slurm schedules by itself again"
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
    """Call `do` as soon as Slurm answers; None when stopped before.

    Args:
        driver: driver whose log is used.
        stop: event that ends the loop.
        do: function to call.
        refusals: consecutive refusals by Slurm after which the error is raised.
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
    """Restore Slurm. If Slurm does not answer, the reservation still expires by itself."""
    give_up_s = time.monotonic() + GIVE_UP_UNDOING_S
    while True:
        try:
            driver.step_back()
        except SlurmError as error:
            if time.monotonic() < give_up_s and isinstance(error, SlurmAway):
                time.sleep(1.0)
                continue
            lease_s = driver.settings.lease_s
            said = f"not all jobs restored: {error}; the reservation expires within {lease_s:g} s"
            driver.log.add("warning", said)
        else:
            driver.log.add("stopped", "Slurm schedules by itself again")
        return
