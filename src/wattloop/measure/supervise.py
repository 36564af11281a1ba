"""Start a program, stand beside it, and end as it ended.

The program stays in our process group and on our terminal, with our standard streams, so that
ctrl-C, ctrl-Z, pipes and full-screen programs work as they do without us. What the terminal sends
reaches the program by itself; what somebody sent to us alone is passed on. If we are killed, the
program goes on.

Signals are blocked and fetched with `sigwaitinfo`, which says who sent them and cannot miss one
between two looks. Threads inherit the block, so a `Supervisor` is entered before any is started.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattloop.measure.launch import launch
from wattloop.measure.processes import Orphans, descends_from, is_stopped

__all__ = ["Outcome", "Supervisor"]

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
PASSED_ON = STOPPING | {
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
}
WAITED_FOR = PASSED_ON | {signal.SIGCHLD}
JOB_CONTROL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
PR_SET_CHILD_SUBREAPER = 36
SI_USER = 0
"""Sent by kill(2); what the kernel and the terminal send has a positive code."""
ORPHAN_CHECK_S = 1.0
ENDING_S = 1.0
"""Processes that outlive the program by less than this were ending with it."""
LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the program ended.

    Attributes:
        exit_code: what a shell would report: the program's own, or 128 + the signal's number.
        signal: the signal that ended it, if one did.
        started: False when a signal asked us to stop before the program was started.
        left_running: processes it started that outlived it and were not waited for.
    """

    exit_code: int
    signal: int | None = None
    started: bool = True
    left_running: int = 0


class Supervisor:
    """Runs one program.

    Args:
        follow: also wait for processes the program leaves behind (daemons that fork and exit).
    """

    def __init__(self, *, follow: bool = False) -> None:
        self._follow = follow
        self._old_mask: set[int] = set()
        self._pid = 0
        self._orphans: Orphans | None = None
        self._stop_requested = False
        self._suspend_asked = False

    def __enter__(self) -> "Supervisor":
        # A caller may have ignored SIGCHLD, and then nobody can learn how a child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._old_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR))
        return self

    def __exit__(self, *_: object) -> None:
        while signal.sigtimedwait(WAITED_FOR, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
        """Start `command` and return when it has ended.

        Raises:
            CommandError: it cannot be started.
        """
        early = self._stopped_before_start()
        if early is not None:
            return Outcome(128 + early, early, started=False)
        become_subreaper()
        orphans = Orphans()
        self._pid = launch(command, environment, self._old_mask)
        orphans.program = self._pid
        while (ended := self._look_at_program()) is None:
            self._next_signal(orphans)
        while self._follow and orphans.living() and not self._stop_requested:
            self._next_signal(orphans)
        self._orphans = orphans
        return Outcome(*ended)

    def left_running(self) -> int:
        """Processes that the program left behind, after those that are ending had time to.

        Workers and helpers of a pool (joblib, multiprocessing) end by themselves when they notice
        that their program has, which takes them some milliseconds.
        """
        end_s = time.monotonic() + ENDING_S
        while self._orphans is not None and self._orphans.living():
            if (left_s := end_s - time.monotonic()) <= 0:
                return len(self._orphans.living())
            signal.sigtimedwait({signal.SIGCHLD}, min(left_s, LOOK_AGAIN_S))
        return 0

    def _stopped_before_start(self) -> int | None:
        """A stop that arrived while the meters were being set up; other signals are dropped."""
        while (info := signal.sigtimedwait(WAITED_FOR, 0)) is not None:
            if info.si_signo in STOPPING and not is_ignored(info.si_signo):
                return info.si_signo
        return None

    def _next_signal(self, orphans: Orphans) -> None:
        if orphans.pending or (self._follow and not self._pid):
            info = signal.sigtimedwait(WAITED_FOR, ORPHAN_CHECK_S)
        else:
            info = signal.sigwaitinfo(WAITED_FOR)
        if info is None or info.si_signo == signal.SIGCHLD:
            orphans.reap()
            return
        if info.si_signo in (signal.SIGTSTP, signal.SIGCONT):
            self._suspend_asked = info.si_signo == signal.SIGTSTP
        if not self._pid:
            self._stop_requested |= info.si_signo in STOPPING
        elif info.si_code <= SI_USER and not descends_from(info.si_pid, os.getpid()):
            self._pass_on(info.si_signo)

    def _pass_on(self, number: int) -> None:
        """Give the program a signal that was sent to us, not to its terminal's group."""
        if number == signal.SIGCONT and not is_stopped(self._pid):
            return  # the shell continued the whole group
        os.kill(self._pid, number)

    def _look_at_program(self) -> tuple[int, int | None] | None:
        """(exit code, signal) once it has ended; follows it when it was stopped."""
        flags = os.WEXITED | os.WSTOPPED | os.WNOHANG
        while self._pid and (info := os.waitid(os.P_PID, self._pid, flags)) is not None:
            if info.si_code == os.CLD_EXITED:
                self._pid = 0
                return info.si_status, None
            if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                self._pid = 0
                return 128 + info.si_status, info.si_status
            if info.si_status in JOB_CONTROL_STOPS or self._suspend_asked:
                # The shell that waits for us must see the job stop, or ctrl-Z seems dead. Where
                # somebody stopped the program alone (SIGSTOP), we go on measuring it.
                os.kill(os.getpid(), signal.SIGSTOP)
        return None


def become_subreaper() -> bool:
    """Ask that processes the program abandons become our children instead of init's."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def is_ignored(number: int) -> bool:
    """Whether we were started with this signal ignored, as under nohup."""
    return signal.getsignal(number) is signal.SIG_IGN
