"""A program that trains: in a process group of its own, paused and ended as a whole."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from wattloop.measure.command import launch
from wattloop.trials.limits import stops_deferred

__all__ = ["Program"]

LOOK_EVERY_S = 0.02
TAIL_B, TAIL_LINES = 4_096, 4


class Program:
    """Started at once; `exit_code` is None while it lives.

    Args:
        command: program and arguments.
        environment: all of its variables.
        output: file that what it prints is added to.

    Raises:
        CommandError: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self.output = output
        self.exit_code: int | None = None
        """As a shell would report it: above 128 for a signal."""
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            with stops_deferred():
                streams = {0: nothing, 1: file, 2: file}
                self._pid = launch(command, environment, (), setsid=True, streams=streams)
        finally:
            os.close(nothing)
            os.close(file)

    def pause(self) -> None:
        """Stop it where it is; it keeps its memory, also that on a GPU."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it has ended; then nothing of its group is left."""
        if self.exit_code is not None:
            return True
        try:
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        except ChildProcessError:  # somebody else has waited for it: how it ended is not known
            self.exit_code = 0
            return True
        # What it left in the background would disturb what follows. Before it is reaped: then its
        # number may be somebody else's.
        self._signal(signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.exit_code = status if status >= 0 else 128 - status
        return True

    def end(self, grace_s: float) -> bool:
        """Ask it to end, and end it after `grace_s`; whether it ended by itself."""
        if self.has_ended():
            return True
        by_itself = True
        try:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped program cannot end
            self.ends_within(grace_s)
        finally:  # whoever presses ctrl-C again does not want to wait
            if not self.has_ended():
                by_itself = False
                self._signal(signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(self._pid, 0)
                self.exit_code = 128 + signal.SIGKILL
        return by_itself

    def ends_within(self, most_s: float) -> bool:
        """Whether it ends by itself in this time."""
        deadline_s = time.monotonic() + most_s
        while not self.has_ended() and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)
        return self.has_ended()

    def last_lines(self) -> str:
        """What it printed last."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - TAIL_B))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        words = [line.strip() for line in lines]
        return " | ".join([line for line in words if line.strip("^~ ")][-TAIL_LINES:])

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
