"""Pause protocol between a search and a program that uses `current_trial()`.

The program writes its reports to a file and signals on a pipe. At the end of an epoch it waits for
a reply, so it pauses where that is safe: a program stopped at any line may hold a lock that others
need. When the search dies the pipe closes, and the program ends.

The pipes are named ones in the trial's folder, not a socket: that path may be longer than the 108
bytes of a socket's address, and a program that a wrapper starts inherits no descriptor.
"""

import os
import select
from contextlib import suppress
from pathlib import Path

GO, STOP = b"g", b"s"


class PauseChannel:
    """The search's end of the protocol; its pipes are next to the program's `reports` file."""

    def __init__(self, reports: Path) -> None:
        self._paths = _paths(reports)
        self._pause = reports.with_suffix(".pause")
        for path in self._paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        self._pause.unlink(missing_ok=True)
        # read and write: neither end waits for the other to be opened
        self._signals, self._replies = (
            os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in self._paths
        )

    def wait(self, most_s: float) -> None:
        if select.select([self._signals], [], [], most_s)[0]:
            with suppress(BlockingIOError):
                os.read(self._signals, 4_096)

    def resume(self) -> None:
        self._pause.unlink(missing_ok=True)
        self._send(GO)

    def stop(self) -> None:
        self._send(STOP)

    def ask_to_pause(self) -> None:
        """Ask the program to wait at its next step."""
        with suppress(OSError):
            self._pause.touch()

    def close(self) -> None:
        for descriptor in (self._signals, self._replies):
            with suppress(OSError):
                os.close(descriptor)
        for path in (*self._paths, self._pause):
            path.unlink(missing_ok=True)

    def _send(self, reply: bytes) -> None:
        with suppress(OSError):
            os.write(self._replies, reply)


class TrialChannel:
    """Program's end of the pause protocol."""

    def __init__(self, reports: Path) -> None:
        self._pause = reports.with_suffix(".pause")
        signals, replies = _paths(reports)
        self._signals = os.open(signals, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._replies = os.open(replies, os.O_RDONLY | os.O_CLOEXEC)

    def notify(self) -> None:
        with suppress(OSError):
            os.write(self._signals, b"!")

    def may_continue(self) -> bool:
        """Wait for the reply; False when the program must end, or the search has ended."""
        return os.read(self._replies, 1) == GO

    def pause_requested(self) -> bool:
        return self._pause.exists()


def _paths(reports: Path) -> tuple[Path, Path]:
    return reports.with_suffix(".bell"), reports.with_suffix(".word")
