"""Programs of trials: process groups with a time limit, and stop signals that unwind."""

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from wattloop.core.process import GRACE_S, ProcessGroup, last_lines, stops_deferred
from wattloop.trials.trial import TrialStatus

TAIL_LINES = 3


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of a program: exit code, signal, and whether we sent it.

    `lasted_s` is from its start to its end, without what ending its group took.
    """

    exit_code: int
    signal: int | None
    timed_out: bool
    lasted_s: float


def run_group(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float | None = None,
    output: Path | None = None,
    grace_s: float = GRACE_S,
) -> ProcessEnd:
    """Run `command` to its end, or to the end of its time.

    It has no terminal and no input; what it prints goes to `output`, or where ours goes. Whatever
    leaves this function (a timeout, ctrl-C, an error), nothing of its group is left running.

    Raises:
        CommandError: it cannot be started.
    """
    begin_s = time.monotonic()
    group = None
    try:
        with stops_deferred():
            group = ProcessGroup(command, environment, output=output)
        in_time = group.wait(timeout_s)
        lasted_s = time.monotonic() - begin_s
    finally:
        if group is not None:
            group.stop(grace_s)
    assert group.exit_code is not None
    return ProcessEnd(group.exit_code, group.signal, not in_time, lasted_s)


def trial_status(
    ended: ProcessEnd, timeout_s: float | None, output: Path | None
) -> tuple[TrialStatus, dict[str, Any]]:
    """Return the status of a trial and a message from the end of its program."""
    facts: dict[str, Any] = {"exit_code": ended.exit_code, "signal": ended.signal}
    if ended.timed_out:
        return TrialStatus.TIMEOUT, facts | {"message": f"did not end within {timeout_s:g} s"}
    if ended.signal is not None:
        known = ended.signal in list(signal.Signals)
        name = signal.Signals(ended.signal).name if known else f"signal {ended.signal}"
        return TrialStatus.KILLED, facts | {"message": f"ended by {name}{_tail(output)}"}
    if ended.exit_code:
        message = f"exit code {ended.exit_code}{_tail(output)}"
        return TrialStatus.FAILED, facts | {"message": message}
    return TrialStatus.OK, facts


def _tail(output: Path | None) -> str:
    last = [] if output is None else last_lines(output, TAIL_LINES)
    return f"; it said: {' | '.join(last)}" if last else ""


class TimeIsOver(BaseException):
    """A function took too long. No Exception: one that catches those must not swallow it."""


@contextmanager
def time_limit(timeout_s: float | None) -> Iterator[None]:
    """Raise `TimeIsOver` in the block after this long; in the main thread only."""
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeIsOver

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def stops_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind us as ctrl-C does: programs ended, levers back, store closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    stops = (signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.getsignal(n) for n in stops}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
