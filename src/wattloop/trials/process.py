"""A program in a process group of its own, which is ended as a whole when its time is over."""

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.measure.command import launch
from wattloop.trials.outcome import TrialStatus
from wattloop.trials.signals import stops_deferred

GRACE_S = 5.0
"""How long a group may take to end by itself after SIGTERM."""
TAIL_B, TAIL_LINES = 4_096, 3
LOOK_EVERY_S = 0.002
"""Where the kernel cannot tell us that a process ended."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of a program: exit code, signal, and whether we sent it.

    `lasted_s` is from its start to its end, without what ending its group took.
    """

    exit_code: int
    signal: int | None
    timed_out: bool
    lasted_s: float


def run_group(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float | None = None,
    output: Path | None = None,
    grace_s: float = GRACE_S,
) -> ProcessEnd:
    """Run `command` to its end, or to the end of its time.

    It has no terminal and no input; what it prints goes to `output`, or where ours goes. Whatever
    leaves this function (a timeout, ctrl-C, an error), nothing of its group is left running.

    Raises:
        CommandError: it cannot be started.
    """
    pid = 0
    try:
        # A stop between its start and our knowing its number would leave it running.
        with stops_deferred(), _streams(output) as streams:
            begin_s = time.monotonic()
            pid = launch(command, environment, (), setsid=True, streams=streams)
        in_time = _ends_within(pid, timeout_s)
        lasted_s = time.monotonic() - begin_s
        if not in_time:
            _end_group(pid, grace_s)
        # What it left in the background would disturb the trials that follow. Before it is
        # reaped: afterwards its pid may belong to another process.
        _signal_group(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        if pid:
            _end_group(pid, grace_s)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        raise
    if status < 0:
        return ProcessEnd(128 - status, -status, not in_time, lasted_s)
    return ProcessEnd(status, None, not in_time, lasted_s)


def status_of(
    ended: ProcessEnd, timeout_s: float | None, output: Path | None
) -> tuple[TrialStatus, dict[str, Any]]:
    """Return the status of a trial and a message from the end of its program."""
    facts: dict[str, Any] = {"exit_code": ended.exit_code, "signal": ended.signal}
    if ended.timed_out:
        return TrialStatus.TIMEOUT, facts | {"message": f"did not end within {timeout_s:g} s"}
    if ended.signal is not None:
        known = ended.signal in list(signal.Signals)
        name = signal.Signals(ended.signal).name if known else f"signal {ended.signal}"
        return TrialStatus.KILLED, facts | {"message": f"ended by {name}{_tail(output)}"}
    if ended.exit_code:
        message = f"exit code {ended.exit_code}{_tail(output)}"
        return TrialStatus.FAILED, facts | {"message": message}
    return TrialStatus.OK, facts


@contextmanager
def _streams(output: Path | None) -> Iterator[dict[int, int]]:
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    streams = {0: nothing}
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        streams |= {1: file, 2: file}
    try:
        yield streams
    finally:
        for ours in set(streams.values()):
            os.close(ours)


def _ends_within(pid: int, timeout_s: float | None) -> bool:
    """Wait until the process has ended, and leave it to be reaped; False when time is over."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    handle = _handle(pid)
    try:
        while not _has_ended(pid):
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            if handle is None:
                time.sleep(LOOK_EVERY_S if left_s is None else min(LOOK_EVERY_S, left_s))
            else:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                poll.poll(None if left_s is None else max(1, round(left_s * 1_000)))
        return True
    finally:
        if handle is not None:
            os.close(handle)


def _handle(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; kernels before 5.3 have none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(pid: int, grace_s: float) -> None:
    _signal_group(pid, signal.SIGTERM)
    _signal_group(pid, signal.SIGCONT)  # a stopped program cannot end
    try:
        with suppress(ChildProcessError):
            _ends_within(pid, grace_s)
    finally:  # a second ctrl-C skips the grace time
        _signal_group(pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _tail(output: Path | None) -> str:
    if output is None:
        return ""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - TAIL_B))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = [line.rstrip() for line in lines if line.strip()][-TAIL_LINES:]
    return f"; it said: {' | '.join(last)}" if last else ""
