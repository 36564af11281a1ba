"""The delivery loop: rounds with backoff while the server is away."""

import fcntl
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.fleet.delivery.client import DeliveryOptions, ServerRefuses, ServerUnavailable
from wattloop.fleet.delivery.disk_quota import Made, make_room
from wattloop.fleet.delivery.sender import Progress, Sender
from wattloop.fleet.delivery.status import NodeStatus

LONGEST_PAUSE_S = 60.0


BETWEEN_BATCHES_S = 0.02


ROOM_EVERY_S = 30.0


LOCK = ".delivery.lock"


_log = logging.getLogger("wattloop.delivery")


Status = Callable[[], NodeStatus | None]


def deliver(
    options: DeliveryOptions,
    status: Status | None = None,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[Progress | str], None] | None = None,
) -> Progress:
    """Send until `stop` is set; with `once`, until only growing journals wait.

    Args:
        options: from where to where.
        status: what the node says of itself, asked before each request.
        once: for a person or a shutdown script: end when all is sent, or raise when it cannot be.
        stop: set by the caller to end the loop.
        report: told of each round, and of each fault in words.

    Raises:
        ConfigError: another process sends this folder, or there is none.
        ServerAway, ServerRefuses: with `once`, when the server cannot be had.
    """
    stop = threading.Event() if stop is None else stop
    report = (lambda _: None) if report is None else report
    total = Progress()
    with _alone(options.folder):
        sender = Sender(options)
        try:
            pace = _Pace(options.every_s)
            roomy_s = 0.0
            while not stop.is_set():
                if time.monotonic() >= roomy_s:
                    made = make_room(sender.outbox, options.limit_b, options.final_after_s)
                    _say(made, options, report)
                    roomy_s = time.monotonic() + ROOM_EVERY_S
                try:
                    done = sender.round(status)
                except (ServerUnavailable, ServerRefuses, ConfigError, OSError) as error:
                    if once:
                        raise
                    if pace.failed(error):
                        _log.warning("%s", error)
                        report(str(error))
                else:
                    report(done)
                    pace.went(done)
                    total = Progress(
                        total.sent_b + done.sent_b,
                        total.stored + done.stored,
                        total.refused + done.refused,
                        done.left,
                    )
                    if once and _all_sent(sender, done):
                        return total
                stop.wait(pace.pause_s())
        finally:
            sender.close()
    return total


class Delivery:
    """The delivery loop as a thread of the agent.

    Args:
        options: from where to where.
        status: what the node says of itself, asked before each request.
    """

    def __init__(self, options: DeliveryOptions, status: Status | None = None) -> None:
        self._options = options
        self._status = status
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.fault = ""
        """Why nothing goes out now; empty when it does."""
        self.last: Progress | None = None
        """What the last round achieved."""

    def start(self) -> None:
        """Start the thread; later errors are logged, and `fault` is the last one."""
        self._thread = threading.Thread(target=self._run, name="wattloop-delivery", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop after the current round; unsent data wait on disk."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                deliver(self._options, self._status, stop=self._stop, report=self._told)
            except Exception as error:  # noqa: BLE001 - measuring must go on whatever happens here
                self.fault = f"{type(error).__name__}: {error}"
                _log.exception("delivery: failed; tried again in a minute")
                self._stop.wait(LONGEST_PAUSE_S)

    def _told(self, said: Progress | str) -> None:
        if isinstance(said, str):
            self.fault = said
        else:
            self.fault, self.last = "", said


class _Pace:
    """Delay until the next attempt: short while data waits, doubling while no server answers."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._failures = 0
        self._retry_s = 0.0
        self._more = False
        self._said = ""
        self._next_s = time.monotonic()

    def went(self, done: Progress) -> None:
        if self._failures:
            _log.warning("delivery: goes on after %d failures", self._failures)
        self._failures, self._retry_s, self._said = 0, 0.0, ""
        self._more = done.more

    def failed(self, error: Exception) -> bool:
        """Return True when an error is worth a log line: the first of its kind, then 1 in 100."""
        self._failures += 1
        self._retry_s = getattr(error, "retry_s", 0.0)
        if isinstance(error, ServerRefuses | ConfigError):
            self._retry_s = LONGEST_PAUSE_S  # a person must do something
        said, self._said = self._said, str(error)
        return said != self._said or self._failures % 100 == 0

    def pause_s(self) -> float:
        if self._failures:
            pause_s = min(self._every_s * 2.0 ** min(self._failures, 10), LONGEST_PAUSE_S)
            # two hundred nodes shall not come back in the same second
            return max(self._retry_s, pause_s) * random.uniform(0.5, 1.0)
        if self._more:
            self._next_s = time.monotonic()
            return BETWEEN_BATCHES_S
        now_s = time.monotonic()
        self._next_s = max(self._next_s + self._every_s, now_s)
        return self._next_s - now_s


def _all_sent(sender: Sender, done: Progress) -> bool:
    return not done.more and all(one.is_growing() for one in sender.outbox.waiting())


def _say(made: Made, options: DeliveryOptions, report: Callable[[Progress | str], None]) -> None:
    if made == Made():
        return
    said = (
        f"{options.folder}: more than {options.limit_b} bytes wait for {options.url}: deleted "
        f"{made.refused} refused journals, the samples of {made.thinned} runs, {made.lost} runs"
    )
    (_log.error if made.lost else _log.warning)("%s", said)
    report(said)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder: two senders would do everything twice."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of journals")
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another process delivers it already") from None
        except OSError:
            pass  # a file system without locks
        yield
