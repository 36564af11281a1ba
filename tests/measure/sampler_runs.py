"""Runs whose sensors a separate process reads, for tests of that process."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from wattloop.core.settings import Settings, settings_from
from wattloop.measure.session import Session

PATIENCE_S = 120.0


def settings(**given: object) -> Settings:
    """Return the settings of the environment, with a process that starts at the first flush."""
    base = settings_from(os.environ)
    return base.overridden({"sampler": "process", "interval_s": 0.02, **given}, "test")


def open_with_reader(**given: object) -> Session:
    """Open a run that a separate process reads."""
    session = Session.open(settings(**given))
    wait_until(lambda: session.reader.sampling_pid > 0)
    return session


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for an event, not for a duration."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Return true if a process has ended, whether or not its parent has collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Kill with SIGKILL."""
    os.kill(pid, number)
