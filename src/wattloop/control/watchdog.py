"""Watchdog of a lever session: a process that restores levers after `kill -9` of their owner.

`python -m wattloop.control.watchdog JOURNAL PIPE` waits until the other end of the pipe is closed,
which only the owner holds. If the journal still exists unlocked, the owner died, and its values are
restored. While waiting it uses no processor time. It has its own session (ctrl-C does not reach it)
and none of the user's files open.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

GUARDIAN_VARIABLE = "WATTLOOP_GUARDIAN"
TRY_FOR_S = 10.0
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to ignore: it ends with its owner, and a stop of both must not end it first."""


class RestoreWatchdog:
    """The owner's side of the watchdog."""

    def __init__(self, journal: Path) -> None:
        import subprocess

        from wattloop.control.lock import keep_private

        ours, theirs = os.pipe()
        self._pipe = keep_private(theirs)
        words = ["-m", "wattloop.control.watchdog", str(journal), str(ours)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                start_new_session=True,
                pass_fds=[ours],
            )
        finally:
            os.close(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def dismiss(self) -> None:
        """End the watchdog: the journal is removed or needs no restoring."""
        import subprocess

        from wattloop.control.lock import close_private

        close_private(self._pipe)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TRY_FOR_S)


def guardian_wanted() -> bool:
    return os.environ.get(GUARDIAN_VARIABLE, "1") != "0"


def main(words: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    journal, pipe = Path(words[0]), int(words[1])
    os.read(pipe, 1)  # nothing is ever written to it
    from wattloop.control.journal import is_held, journal_files

    give_up_s = time.monotonic() + TRY_FOR_S
    while journal_files(journal) and time.monotonic() < give_up_s:
        if not is_held(journal):  # by its owner, or by another process that restores it
            from wattloop.control.restore import restore

            restore(journal.parent, journal=journal)
            return
        time.sleep(0.01)


def import_path() -> list[str]:
    """Return this process's import path, so that the same Wattloop and plug-ins are found."""
    return [str(Path(folder or ".").absolute()) for folder in sys.path]


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nothing is left to clean up, and no process waits for it
