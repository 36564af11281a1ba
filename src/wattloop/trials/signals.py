"""Time limit and stop signals for a section of our own code."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
