"""Something to be done however the process ends: at exit, and on signals that would kill it.

A signal for which the program has a handler of its own is left to it: `KeyboardInterrupt` and
`SystemExit` pass through the `with` block. One that would end the program at once is caught; then
it ends the program as it would have.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Ending"]

FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Calls `act` before the process ends, until `cancel`. Not in forked children."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._pid = os.getpid()
        self._caught: dict[int, Any] = {}
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            for number in FATAL:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._caught[number] = signal.signal(number, self._on_signal)

    def cancel(self) -> None:
        """As if it had never been there."""
        atexit.unregister(self._at_exit)
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may change handlers; ours does nothing any more
        for number in self._caught:
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)
        self._caught.clear()

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._act()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            if os.getpid() == self._pid:
                self._act()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
