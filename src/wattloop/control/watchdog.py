"""Watchdog: a process that restores levers after `kill -9` of their owner.

`python -m wattloop.control.watchdog PIPE JOURNAL` watches one session, and `PIPE DIRECTORY PID
STARTED` all journals of one process, which is enough for a daemon with a session per device.

It waits until the other end of the pipe is closed, which only the owner holds. If a journal still
exists unlocked, the owner died, and its values are restored. While waiting it uses no processor
time. It has its own session (ctrl-C does not reach it) and none of the user's files open.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from wattloop.core.errors import LeverError

GUARDIAN_VARIABLE = "WATTLOOP_GUARDIAN"
TRY_FOR_S = 10.0
TRY_ALL_FOR_S = 30.0
AGAIN_S = 0.5
IGNORED = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""Signals to ignore: it ends with its owner, and a stop of both must not end it first."""


class RestoreWatchdog:
    """The owner's side of the watchdog of a journal, or of all journals of this process."""

    def __init__(self, path: Path, *, all_journals: bool = False) -> None:
        import subprocess

        from wattloop.control.lock import Owner, close_private, keep_private

        ours, theirs = os.pipe()
        self._pipe = keep_private(theirs)
        self._try_for_s = TRY_ALL_FOR_S if all_journals else TRY_FOR_S
        words = ["-m", "wattloop.control.watchdog", str(ours), str(path), str(os.getpid())]
        if all_journals:
            owner = Owner.this_process()
            words += [str(owner.pid), str(owner.started)]
        # the same import path, so that the same Wattloop and plug-ins are found
        folders = [str(Path(folder or ".").absolute()) for folder in sys.path]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
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
        """Close the pipe: the watchdog restores what is left, if anything, and ends."""
        import subprocess

        from wattloop.control.lock import close_private

        close_private(self._pipe)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._try_for_s)


def main(words: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # The parent's number is given: it may have died before this process could ask for it.
    pipe, path, parent = int(words[0]), Path(words[1]), int(words[2])
    owner = [int(word) for word in words[3:]]
    os.read(pipe, 1)  # nothing is ever written to it
    if owner:
        _restore_all(path, owner)
    else:
        _restore_one(path, parent)


def _restore_one(path: Path, parent: int) -> None:
    from wattloop.control.journal import is_held, journal_files, remove_unfinished

    held_since_s = time.monotonic()
    tried_since_s: float | None = None
    while journal_files(path):
        now_s = time.monotonic()
        if is_held(path):
            # By its owner, which takes long to end if it has much memory on a device, or by
            # another process that restores it: either may still leave it to this one.
            time.sleep(0.01 if now_s - held_since_s < TRY_FOR_S else AGAIN_S)
            continue
        tried_since_s = tried_since_s or now_s
        if now_s - tried_since_s > TRY_FOR_S:
            break
        if _restored(path) or os.getppid() == parent:  # a living owner waits, and has tried
            return
        time.sleep(AGAIN_S)  # a driver that is being reset answers again
    if not journal_files(path):
        remove_unfinished(path)


def _restored(path: Path) -> bool:
    from wattloop.control.restore import RestoreStatus, restore

    try:
        results = restore(path.parent, journal=path)
    except Exception:  # noqa: BLE001 - no process is left to tell; the next try may succeed
        return False
    return all(result.fate is not RestoreStatus.FAILED for result in results)


def _restore_all(directory: Path, owner: list[int]) -> None:
    from wattloop.control.journal import is_held, journals, read_journal
    from wattloop.control.restore import restore

    give_up_s = time.monotonic() + TRY_ALL_FOR_S
    while time.monotonic() < give_up_s:
        left = []
        for path in journals(directory):
            with suppress(LeverError, FileNotFoundError):
                found = read_journal(path).owner
                if [found.pid, found.started] == owner:
                    left.append(path)
        if not left:
            return
        for path in left:
            if not is_held(path):  # by another process that restores it
                restore(directory, journal=path)
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nothing is left to clean up, and no process waits for it
