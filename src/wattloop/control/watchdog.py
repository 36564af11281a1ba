"""A process that outlives its owner by a moment, to put levers back after `kill -9`.

`python -m wattloop.control.watchdog JOURNAL PIPE` waits until the other end of the pipe is
closed,
which only the owner holds. If the journal is still there and nobody holds it, the owner died:
what
it set is restored. Asleep it costs no processor time; it has a session of its own (ctrl-C does
not
reach it) and none of the user's files open.
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


"""It ends when its owner has; whoever stops both must not stop it first."""


class RestoreWatchdog:
    """The owner's side."""

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
        """The journal is settled; let it go."""
        import subprocess

        from wattloop.control.lock import close_private

        close_private(self._pipe)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TRY_FOR_S)


def guardian_wanted() -> bool:
    """Whether the user has not switched it off with `WATTLOOP_GUARDIAN=0`."""
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
        if not is_held(journal):  # by its owner, or another who restores it
            from wattloop.control.restore import restore

            restore(journal.parent, journal=journal)
            return
        time.sleep(0.01)


def import_path() -> list[str]:
    """Ours, so that the same Wattloop and the same plug-ins are found from anywhere."""
    return [str(Path(folder or ".").absolute()) for folder in sys.path]


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nothing is left to tidy up, and nobody to wait for it
