"""Something to be done however the process ends: at exit, and on signals that would kill it.

A signal for which the program has a handler of its own is left to it: `KeyboardInterrupt` and
`SystemExit` pass through the `with` block. One that would end the program at once is caught;
then
it ends the program as it would have.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ExitHook:
    """Calls `act` before the process ends, until `cancel`. Not in forked children."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._pid = os.getpid()
        _active.append(self)
        atexit.register(self.perform)
        if _is_main_thread():
            for number in FATAL:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _on_signal)

    def cancel(self) -> None:
        """As if it had never been there."""
        atexit.unregister(self.perform)
        if self in _active:
            _active.remove(self)
        # only the main thread may change handlers; with nothing left to do ours changes nothing
        if not _active and _is_main_thread():
            for number in FATAL:
                if signal.getsignal(number) is _on_signal:
                    signal.signal(number, signal.SIG_DFL)

    def perform(self) -> None:
        """Act, unless we are a copy that a fork made."""
        if os.getpid() == self._pid:
            self._act()


_active: list[ExitHook] = []


def _on_signal(number: int, frame: FrameType | None) -> None:
    try:
        for ending in reversed(list(_active)):
            ending.perform()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
