"""Pause protocol between a search and a program that uses `current_trial()`.

The program writes its reports to a file and signals on a pipe. At the end of an epoch it waits
for
a reply, so it pauses where that is safe: a program stopped at any line may hold a lock that
others
need. When the search dies the pipe closes, and the program ends.
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
        self._bell, self._word = (
            os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in self._paths
        )

    def wait(self, most_s: float) -> None:
        if select.select([self._bell], [], [], most_s)[0]:
            with suppress(BlockingIOError):
                os.read(self._bell, 4_096)

    def resume(self) -> None:
        self.withdraw()
        self._say(GO)

    def stop(self) -> None:
        self._say(STOP)

    def ask_to_pause(self) -> None:
        """Ask the program to wait at its next step."""
        with suppress(OSError):
            self._pause.touch()

    def withdraw(self) -> None:
        self._pause.unlink(missing_ok=True)

    def close(self) -> None:
        for descriptor in (self._bell, self._word):
            with suppress(OSError):
                os.close(descriptor)
        for path in (*self._paths, self._pause):
            path.unlink(missing_ok=True)

    def _say(self, word: bytes) -> None:
        with suppress(OSError):
            os.write(self._word, word)


class TrialChannel:
    """Program's end of the pause protocol."""

    def __init__(self, reports: Path) -> None:
        self._pause = reports.with_suffix(".pause")
        bell, word = _paths(reports)
        self._bell = os.open(bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._word = os.open(word, os.O_RDONLY | os.O_CLOEXEC)

    def notify(self) -> None:
        with suppress(OSError):
            os.write(self._bell, b"!")

    def may_continue(self) -> bool:
        """Wait for the reply; False when the program must end, or the search has ended."""
        return os.read(self._word, 1) == GO

    def pause_requested(self) -> bool:
        return self._pause.exists()


def _paths(reports: Path) -> tuple[Path, Path]:
    return reports.with_suffix(".bell"), reports.with_suffix(".word")
