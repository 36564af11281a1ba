"""Programs in process groups, background threads, and stop signals that wait."""

import errno
import os
import select
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from wattloop.core.errors import CommandError
from wattloop.core.files import CLOSE_ON_EXEC

GRACE_S = 5.0
"""How long a group may take to end by itself after SIGTERM."""
POLL_S = 0.002
"""Where the kernel cannot report the end of a process."""
TAIL_B = 4_096
NOT_FOUND, NOT_EXECUTABLE = 127, 126
RESTORED = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
"""Python ignores these signals for itself; a program expects their default actions."""
STOPS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Windows has no SIGHUP."""


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    signal_mask: Iterable[int],
    *,
    setsid: bool = False,
    streams: Mapping[int, int] | None = None,
) -> int:
    """Start `command` with the streams, terminal and process group of this process; return its pid.

    Args:
        command: program and arguments.
        environment: all of its variables.
        signal_mask: signals that it finds blocked.
        setsid: whether it leads a session of its own, without our terminal, so that the whole
            group can be ended.
        streams: its descriptors that are ours, such as {1: file} for its standard output.

    Raises:
        CommandError: with the exit code a shell would give and what to do.
    """
    program = command[0]
    options: dict[str, Any] = {"setsigmask": signal_mask, "setsigdef": RESTORED}
    if setsid:
        options["setsid"] = True
    if streams:
        options["file_actions"] = [
            (os.POSIX_SPAWN_DUP2, ours, its) for its, ours in streams.items()
        ]
    try:
        return os.posix_spawnp(program, list(command), environment, **options)
    except OSError as error:
        if error.errno == errno.ENOEXEC and _looks_like_text(program):
            # A script without '#!' is handed to sh, as every shell does.
            path = shutil.which(program) or program
            shell = ["/bin/sh", path, *command[1:]]
            return os.posix_spawnp(shell[0], shell, environment, **options)
        raise _explained(program, error) from None
    except ValueError as error:
        raise CommandError(f"{program!r} cannot be started: {error}", NOT_EXECUTABLE) from None


def find_program(program: str) -> None:
    """Raise the `CommandError` of a program that cannot be started, before any set-up."""
    if shutil.which(program) is None:
        number = errno.EACCES if Path(program).exists() or _on_path(program) else errno.ENOENT
        raise _explained(program, OSError(number, os.strerror(number)))


def _explained(program: str, error: OSError) -> CommandError:
    path = Path(program)
    reason = error.strerror or str(error)
    if "/" not in program and not _on_path(program):
        return CommandError(
            f"{program}: command not found; check the spelling, or give its path "
            f"(a program in this directory is ./{program})",
            NOT_FOUND,
        )
    if path.is_dir():
        return CommandError(f"{program} is a directory; name the program to run", NOT_EXECUTABLE)
    if error.errno == errno.ENOENT and not path.exists() and "/" in program:
        return CommandError(f"{program}: no such file; check the path", NOT_FOUND)
    if error.errno == errno.ENOENT:
        return CommandError(
            f"{program}: the interpreter named in its first line ('#!') or its loader does not "
            "exist; correct that line or install it",
            NOT_EXECUTABLE,
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return CommandError(
            f"{program}: not allowed to execute ({reason}); run 'chmod +x {program}', or start "
            "it through its interpreter, such as 'python'",
            NOT_EXECUTABLE,
        )
    return CommandError(f"{program} cannot be executed: {reason}", NOT_EXECUTABLE)


def _on_path(program: str) -> bool:
    """Return True if a directory of PATH holds a file of that name, executable or not."""
    return shutil.which(program, mode=os.F_OK) is not None


def _looks_like_text(program: str) -> bool:
    try:
        with Path(shutil.which(program) or program).open("rb") as file:
            return b"\0" not in file.read(128)
    except OSError:
        return False


class ProcessGroup:
    """A program that leads a session of its own, without our terminal, and is ended as a whole.

    It has no input. Nothing of its group is left running when it has ended or was stopped. Make
    it inside `stops_deferred`: a stop that comes meanwhile then acts when its maker knows it.

    Args:
        command: program and arguments.
        environment: all of its variables.
        output: file for what it prints; our own streams unless given.
        append: add to that file instead of replacing it.

    Attributes:
        pid: of the program, also the number of its group.
        exit_code: as in a shell, above 128 for a signal; None while it runs.
        signal: the signal that ended it, if one did.

    Raises:
        CommandError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: Path | None = None,
        append: bool = False,
    ) -> None:
        self.exit_code: int | None = None
        self.signal: int | None = None
        # A stop between the start and the return of the pid would leave the program running.
        with stops_deferred(), _streams(output, append) as streams:
            self.pid = launch(command, environment, (), setsid=True, streams=streams)

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Return True if the program has ended; then its whole group has."""
        if self.exit_code is not None:
            return True
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        except ChildProcessError:  # another thread has reaped it: the exit code is unknown
            self.exit_code = 0
            return True
        self._reap()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the program has ended; False when `timeout_s` have passed."""
        if self.has_ended():
            return True
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        handle = _pidfd(self.pid)
        try:
            while not self.has_ended():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                if handle is None:
                    time.sleep(POLL_S if left_s is None else min(POLL_S, left_s))
                else:
                    poll = select.poll()
                    poll.register(handle, select.POLLIN)
                    poll.poll(None if left_s is None else max(1, round(left_s * 1_000)))
            return True
        finally:
            if handle is not None:
                os.close(handle)

    def stop(self, grace_s: float = GRACE_S) -> bool:
        """Ask the group to end, kill it after `grace_s`; return True if it ended by itself."""
        if self.has_ended():
            return True
        by_itself = False
        try:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # a stopped program cannot end
            by_itself = self.wait(grace_s)
        finally:  # a second Ctrl-C skips the grace time
            if not by_itself:
                self._reap()
        return by_itself

    def _reap(self) -> None:
        # What the program left in the background would disturb later measurements. It is killed
        # before the program is reaped: afterwards its number may belong to another process.
        self.send(signal.SIGKILL)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            status = 0
        self.signal = -status if status < 0 else None
        self.exit_code = 128 - status if status < 0 else status


def last_lines(output: Path, lines: int) -> list[str]:
    """Return the last lines that a program printed, without empty ones."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - TAIL_B))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip("^~ \t")][-lines:]


@contextmanager
def _streams(output: Path | None, append: bool) -> Iterator[dict[int, int]]:
    streams = {0: os.open(os.devnull, os.O_RDONLY | CLOSE_ON_EXEC)}
    try:
        if output is not None:
            flags = os.O_APPEND if append else os.O_TRUNC
            flags |= os.O_WRONLY | os.O_CREAT | CLOSE_ON_EXEC
            streams[1] = streams[2] = os.open(output, flags, 0o666)
        yield streams
    finally:
        for ours in set(streams.values()):
            os.close(ours)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


# Stop signals (SIGINT, SIGTERM, SIGHUP) that wait until a section of our own code has ended.
Handler = Callable[[int, FrameType | None], object]


class Deferral:
    """Stop signals that wait. Made by `stops_deferred`."""

    def __init__(self) -> None:
        self._acting: dict[int, Handler] = {}
        self._came: list[int] = []

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Stops act at once in this block; one that came before acts as it begins."""
        try:
            self.end()
            yield
        finally:
            self.begin()

    def begin(self) -> None:
        """From now on they wait; in the main thread only, the others have none."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, *STOPS):
            handler = signal.getsignal(number)
            if callable(handler):
                self._acting[number] = handler
                signal.signal(number, self._note)

    def end(self) -> None:
        """They act again, and those that came do so now."""
        acting, self._acting = self._acting, {}
        for number, handler in acting.items():
            signal.signal(number, handler)
        came, self._came = self._came, []
        for late in came:
            acting[late](late, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


@contextmanager
def stops_deferred() -> Iterator[Deferral]:
    """Signals that would unwind us wait until the block has ended, and act then.

    Raised in the middle of a library they make it complain, or are lost in one of its callbacks.
    A mask would not do: another thread takes the signal, and Python still acts on it here.
    """
    deferral = Deferral()
    deferral.begin()
    try:
        yield deferral
    finally:
        deferral.end()


@contextmanager
def stops_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind us as ctrl-C does: programs ended, levers back, store closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {n: signal.getsignal(n) for n in STOPS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BackgroundThread(ABC):
    """A context manager: `_work` runs during the block and ends soon after `_stop` is set.

    Args:
        name: of the thread.
        patience_s: how long its end is waited for; None for as long as it takes.
    """

    def __init__(self, name: str, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._patience_s)

    @abstractmethod
    def _work(self) -> None:
        """Do the work of the thread."""
