"""Time limit and stop signals for a section of our own code."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


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


class Deferral:
    """Stops that wait. Made by `stops_deferred`."""

    def __init__(self) -> None:
        self._acting: dict[int, Handler] = {}
        self._came: list[int] = []

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Stops act at once in this block; one that came before acts as it begins."""
        try:
            self.end()
            yield
        finally:
            self.begin()

    def begin(self) -> None:
        """From now on they wait; in the main thread only, the others have none."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                self._acting[number] = handler
                signal.signal(number, self._note)

    def end(self) -> None:
        """They act again, and those that came do so now."""
        acting, self._acting = self._acting, {}
        for number, handler in acting.items():
            signal.signal(number, handler)
        came, self._came = self._came, []
        for late in came:
            acting[late](late, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


@contextmanager
def stops_deferred() -> Iterator[Deferral]:
    """Signals that would unwind us wait until the block has ended, and act then.

    Raised in the middle of a library they make it complain, or are lost in one of its callbacks.
    A mask would not do: another thread takes the signal, and Python still acts on it here.
    """
    deferral = Deferral()
    deferral.begin()
    try:
        yield deferral
    finally:
        deferral.end()
