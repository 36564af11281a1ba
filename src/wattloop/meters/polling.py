"""A thread that polls a slow instrument, and the node meters built on it."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.meters.base import Meter, Reading

T = TypeVar("T")


class Poller(Generic[T]):
    """A daemon thread that calls `poll` repeatedly and stores its latest answer.

    The thread starts with the first `latest`, so that detecting a meter starts nothing.

    Args:
        poll: asks the device; returns its answer or a `Gap`. A raised exception becomes a `Gap`.
        clock: for the age of the answer.
        period_s: pause between two calls.
        stale_s: an answer older than this is not returned.
        finish: called in the thread after the last poll, to restore what was changed.
    """

    def __init__(
        self,
        poll: Callable[[], T | Gap],
        clock: Clock,
        *,
        period_s: float,
        stale_s: float,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._poll = poll
        self._clock = clock
        self._period_s = period_s
        self._stale_s = stale_s
        self._finish = finish
        self.forget()

    def forget(self) -> None:
        """Restart with the next `latest`; also for a forked child, where no thread survives."""
        self._latest: tuple[float, T] | None = None
        self._fault = Gap("no answer yet")
        self._answered = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def latest(self) -> T | Gap:
        """Return the newest answer, or a gap with the age of the last good one."""
        if self._stop.is_set():
            return Gap("the meter is closed")
        self._start()
        latest = self._latest
        if latest is None:
            return self._fault
        age_s = self._clock.now_s() - latest[0]
        if self._fault.reason or age_s > self._stale_s:
            why = self._fault.reason or "no answer"
            return Gap(f"{why}; last good answer {age_s:.1f} s ago", lost=self._fault.lost)
        return latest[1]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first answer or fault; False when none came in time."""
        self._start()
        return self._answered.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop polling, let `finish` run, and wait for both."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="wattloop-poll", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        stop = self._stop
        while not stop.is_set():
            try:
                answer = self._poll()
            except Exception as error:  # noqa: BLE001 - a fault of the device becomes a gap
                answer = Gap(f"{type(error).__name__}: {error}")
            if isinstance(answer, Gap):
                self._fault = answer
            else:
                self._latest = (self._clock.now_s(), answer)
                self._fault = Gap("")
            self._answered.set()
            stop.wait(self._period_s)
        if self._finish is not None:
            self._finish()


UPDATE_PERIOD_S = 1.0
STALE_S = 15.0


class PolledNode(Meter):
    """One domain, the node as its power supplies see it; `read` gives the latest answer.

    Args:
        poll_w: asks the controller; called in a thread, so it may take its time.
        source: where the watts come from, for people.
    """

    def __init__(
        self,
        poll_w: Callable[[], float | Gap],
        clock: Clock,
        *,
        source: str,
        period_s: float = UPDATE_PERIOD_S,
        stale_s: float = STALE_S,
    ) -> None:
        self._poller: Poller[float] = Poller(poll_w, clock, period_s=period_s, stale_s=stale_s)
        domain = Domain(
            name="node",
            kind=DomainKind.GAUGE,
            scope=Scope.NODE,
            source=source,
            resolution=1.0,
            update_period_s=UPDATE_PERIOD_S,
            averaging_s=1.0,
            known_error=0.05,
            read_cost_s=2e-6,
        )
        self._domains = (domain,)

    def read(self) -> Sequence[Reading]:
        return [self._poller.latest()]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the controller's first answer."""
        return self._poller.wait(timeout_s)

    def close(self) -> None:
        self._poller.close()

    def after_fork_in_child(self) -> None:
        """Threads do not survive a fork."""
        self._poller.forget()
