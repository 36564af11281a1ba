"""Watchdog of the daemon: a process that restores levers after `kill -9` of the daemon.

Like `control.watchdog`, for all journals of one owner: the daemon has a session per device, and one
process is enough.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from wattloop.control.journal import is_held, journals, read_journal
from wattloop.control.lock import Owner, close_private, keep_private
from wattloop.control.restore import restore
from wattloop.control.watchdog import IGNORED, import_path
from wattloop.core.errors import LeverError

TRY_FOR_S = 30.0


class Watcher:
    """The daemon's side of the watchdog."""

    def __init__(self, place: Path) -> None:
        ours, theirs = os.pipe()
        self._pipe = keep_private(theirs)
        owner = Owner.this_process()
        words = [str(place), str(ours), str(owner.pid), str(owner.started)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wattloop.control.daemon.watchdog", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                start_new_session=True,
                pass_fds=[ours],
            )
        except OSError:
            close_private(self._pipe)
            raise
        finally:
            os.close(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def dismiss(self) -> None:
        close_private(self._pipe)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TRY_FOR_S)


def main(words: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    place, pipe, pid, started = Path(words[0]), int(words[1]), int(words[2]), int(words[3])
    os.read(pipe, 1)  # nothing is ever written to it
    give_up_s = time.monotonic() + TRY_FOR_S
    while time.monotonic() < give_up_s:
        left = _left(place, pid, started)
        if not left:
            return
        for journal in left:
            if not is_held(journal):  # by another process that restores it
                restore(place, journal=journal)
        time.sleep(0.05)


def _left(place: Path, pid: int, started: int) -> list[Path]:
    """Return the journals of that process which have values to restore."""
    found = []
    for path in journals(place):
        with suppress(LeverError, FileNotFoundError):
            recorded = read_journal(path)
            if (recorded.owner.pid, recorded.owner.started) == (pid, started):
                found.append(path)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nothing is left to clean up, and no process waits for it
