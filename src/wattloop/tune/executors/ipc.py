"""How a search and a program that uses `current_trial()` wait for each other.

The program writes what it reports to a file and rings; where an epoch may end it waits for a
word.
So it is paused where it is safe: a program that is stopped anywhere may hold a lock that others
need. Should the search die, the word never comes and the end of the pipe does: the program
ends.
"""

import os
import select
from contextlib import suppress
from pathlib import Path

GO, STOP = b"g", b"s"


class PauseChannel:
    """The search's side.

    Args:
        reports: the file that the program writes; the pipes are beside it.
    """

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
        """Until it rings, but not longer than this."""
        if select.select([self._bell], [], [], most_s)[0]:
            with suppress(BlockingIOError):
                os.read(self._bell, 4_096)

    def go_on(self) -> None:
        """The program may go on."""
        self.withdraw()
        self._say(GO)

    def stop(self) -> None:
        """The program is to end."""
        self._say(STOP)

    def ask_to_pause(self) -> None:
        """The program is to wait at its next step."""
        with suppress(OSError):
            self._pause.touch()

    def withdraw(self) -> None:
        self._pause.unlink(missing_ok=True)

    def close(self) -> None:
        """Nobody is here any more."""
        for descriptor in (self._bell, self._word):
            with suppress(OSError):
                os.close(descriptor)
        for path in (*self._paths, self._pause):
            path.unlink(missing_ok=True)

    def _say(self, word: bytes) -> None:
        with suppress(OSError):
            os.write(self._word, word)


class TrialChannel:
    """The program's side.

    Args:
        reports: the file that it writes.
    """

    def __init__(self, reports: Path) -> None:
        self._pause = reports.with_suffix(".pause")
        bell, word = _paths(reports)
        self._bell = os.open(bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._word = os.open(word, os.O_RDONLY | os.O_CLOEXEC)

    def ring(self) -> None:
        with suppress(OSError):
            os.write(self._bell, b"!")

    def may_go_on(self) -> bool:
        """Wait for the word; False when it is to end, or nobody is there to say it."""
        return os.read(self._word, 1) == GO

    def is_to_pause(self) -> bool:
        """Whether the search waits for it to pause."""
        return self._pause.exists()


def _paths(reports: Path) -> tuple[Path, Path]:
    return reports.with_suffix(".bell"), reports.with_suffix(".word")
