"""Measure a program from outside: start it, supervise its processes, return its exit code."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wattloop.core.errors import CommandError, ConfigError
from wattloop.core.process import find_program, launch
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from wattloop.measure.session import RunResult, Session

# Parents and children of processes, from the kernel's own /proc.
#
# Process numbers belong to the namespace of this process, so this reads /proc even where
# `WATTLOOP_PROCFS_ROOT` names the host's.

PROC = Path("/proc")
FORGOTTEN_AFTER_S = 0.9
"""A thread that waits for its own helper program collects it within milliseconds."""


class Orphans:
    """Orphaned processes of the program, which this process inherits as subreaper.

    Ended orphans must be reaped or they fill the process table. A meter may run a helper program
    and wait for it, so only a process that stays unreaped for a while is reaped here.
    """

    def __init__(self) -> None:
        self.program = 0
        """Process number of the program itself, which the supervisor reaps."""
        self._before = frozenset(children())
        self._ended_at_s: dict[int, float] = {}

    @property
    def pending(self) -> bool:
        """Return True if ended orphans wait to be reaped."""
        return bool(self._ended_at_s)

    def living(self) -> list[int]:
        """Return orphaned processes that still run and do work of their own."""
        return [
            pid
            for pid in children()
            if pid != self.program
            and pid not in self._before
            and _state(pid) not in ("Z", "X", "")
            and not _is_helper(pid)
        ]

    def reap(self) -> None:
        """Reap ended orphans that no other thread waits for."""
        now_s = time.monotonic()
        ended = {pid for pid in children() if pid != self.program and _state(pid) == "Z"}
        self._ended_at_s = {pid: self._ended_at_s.get(pid, now_s) for pid in ended}
        for pid, since_s in list(self._ended_at_s.items()):
            if now_s - since_s >= FORGOTTEN_AFTER_S:
                with suppress(ChildProcessError):  # its owner reaped it first
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
                del self._ended_at_s[pid]


def children() -> Iterator[int]:
    """Return the direct children of this process, including ended ones."""
    try:
        tasks = list((PROC / "self" / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            text = (task / "children").read_text()
        except OSError:
            continue
        yield from map(int, text.split())


def descends_from(pid: int, ancestor: int) -> bool:
    """Return True if `ancestor` started `pid`, directly or not."""
    while pid > 1:
        pid = _parent(pid)
        if pid == ancestor:
            return True
    return False


def is_stopped(pid: int) -> bool:
    """Return True if job control has stopped the process."""
    return _state(pid) in ("T", "t")


HELPERS = (b"resource_tracker", b"wattloop.control.watchdog")
"""Python's resource tracker ends with the last process it serves; our watchdog with us."""


def _is_helper(pid: int) -> bool:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in HELPERS)


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name may hold spaces."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


# Supervision of the program.
#
# The program stays in the process group and on the terminal of this process, with its standard
# streams, so that ctrl-C, ctrl-Z, pipes and full-screen programs work as usual. Signals from the
# terminal reach the program directly. Signals sent to this process alone are forwarded. If this
# process is killed, the program continues.
#
# Signals are blocked and fetched with `sigwaitinfo`, which returns the sender and cannot miss a
# signal between two polls. Threads inherit the mask, so a `Supervisor` is entered before any thread
# is started.


def _known(*names: str) -> frozenset[int]:
    """Return the signals that this system has."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


STOPPING = _known("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
PASSED_ON = STOPPING | _known("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH", "SIGTSTP", "SIGCONT")
WAITED_FOR = PASSED_ON | _known("SIGCHLD")
JOB_CONTROL_STOPS = _known("SIGTSTP", "SIGTTIN", "SIGTTOU")
PR_SET_CHILD_SUBREAPER = 36
SI_USER = 0
"""Code of signals sent by kill(2); signals of the kernel and the terminal have a positive code."""
ORPHAN_CHECK_S = 1.0
ENDING_S = 1.0
"""Processes that outlive the program by less than this are ending with it."""
LOOK_AGAIN_S = 0.02


class ProgramResult(NamedTuple):
    """Result of a program's execution.

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
    """Supervisor of one program.

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
        self.before_stop: list[Callable[[], None]] = []
        """Called before this process stops with the program (ctrl-Z)."""
        self.after_stop: list[Callable[[], None]] = []
        """Called when it was continued."""

    def __enter__(self) -> "Supervisor":
        # If the caller ignores SIGCHLD, the exit status of a child is lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._old_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR))
        return self

    def __exit__(self, *_: object) -> None:
        while signal.sigtimedwait(WAITED_FOR, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> ProgramResult:
        """Start `command` and return after it has ended.

        Raises:
            CommandError: it cannot be started.
        """
        early = self._stopped_before_start()
        if early is not None:
            return ProgramResult(128 + early, early, started=False)
        become_subreaper()
        orphans = Orphans()
        self._pid = launch(command, environment, self._old_mask)
        orphans.program = self._pid
        while (ended := self._look_at_program()) is None:
            self._next_signal(orphans)
        while self._follow and orphans.living() and not self._stop_requested:
            self._next_signal(orphans)
        self._orphans = orphans
        return ProgramResult(*ended)

    def left_running(self) -> int:
        """Return processes that outlived the program, after a grace period for those that are
        ending.

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
        """Return a stop signal that arrived during set-up; other signals are dropped."""
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
        """Forward a signal that was sent to this process, not to the terminal's group."""
        if number == signal.SIGCONT and not is_stopped(self._pid):
            return  # the shell continued the whole group
        os.kill(self._pid, number)

    def _look_at_program(self) -> tuple[int, int | None] | None:
        """Return (exit code, signal) of an ended program; stop with a stopped one."""
        flags = os.WEXITED | os.WSTOPPED | os.WNOHANG
        while self._pid and (info := os.waitid(os.P_PID, self._pid, flags)) is not None:
            if info.si_code == os.CLD_EXITED:
                self._pid = 0
                return info.si_status, None
            if info.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                self._pid = 0
                return 128 + info.si_status, info.si_status
            if info.si_status in JOB_CONTROL_STOPS or self._suspend_asked:
                # The shell must see the job stop, or ctrl-Z seems to have no effect. If only the
                # program was stopped (SIGSTOP), the measurement continues.
                for call in self.before_stop:
                    call()
                os.kill(os.getpid(), signal.SIGSTOP)
                for call in self.after_stop:
                    call()
        return None


class PlainSupervisor(Supervisor):
    """Supervisor on systems that neither wait for signals nor list processes (macOS, Windows).

    The program shares the console, so ctrl-C reaches it directly; a request to end this process
    is forwarded. Processes that the program leaves behind are not found.
    """

    def __enter__(self) -> Supervisor:
        self._asked: list[int] = []
        self._before = {number: signal.getsignal(number) for number in STOPPING}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> ProgramResult:
        import subprocess

        if self._asked:
            return ProgramResult(128 + self._asked[0], self._asked[0], started=False)
        try:
            self._program = subprocess.Popen(list(command), env=dict(environment))
        except OSError as error:
            reason = error.strerror or error
            raise CommandError(f"{command[0]} cannot be executed: {reason}", 126) from None
        code = self._program.wait()
        return ProgramResult(code) if code >= 0 else ProgramResult(128 - code, -code)

    def left_running(self) -> int:
        return 0

    def _note(self, number: int, frame: object) -> None:
        self._asked.append(number)
        if number != signal.SIGINT and getattr(self, "_program", None) is not None:
            self._program.terminate()


WAITS_FOR_SIGNALS = hasattr(signal, "sigtimedwait") and hasattr(os, "waitid")


def become_subreaper() -> bool:
    """Become the parent of orphaned processes instead of init."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def is_ignored(number: int) -> bool:
    """Return True if this process was started with the signal ignored, as under nohup."""
    return signal.getsignal(number) is signal.SIG_IGN


class CommandRun(NamedTuple):
    """Exit status of a program and its measurement; `run` is None when nothing could be measured.

    `journaled` is True if a journal waits to be imported into the store.
    """

    outcome: ProgramResult
    run: "RunResult | None"
    warnings: tuple[str, ...] = ()
    journaled: bool = False


class ProgramHook(Protocol):
    """An addition to the program's environment, to learn more of it than its energy."""

    def begin(self, session: "Session", environment: dict[str, str]) -> dict[str, str]:
        """Return the environment of the program that is about to start."""
        ...


def run_command(
    command: Sequence[str],
    settings: Settings,
    *,
    name: str = "",
    tags: Mapping[str, str] | None = None,
    follow: bool = False,
    hooks: Sequence[ProgramHook] = (),
) -> CommandRun:
    """Start `command`, measure it until it ends, and close the run.

    Each of `hooks` gets the environment that the one before it returned.

    Raises:
        ConfigError: a setting is wrong; nothing was started.
        CommandError: the program cannot be started.
    """
    find_program(command[0])
    warnings: list[str] = []
    kind = Supervisor if WAITS_FOR_SIGNALS else PlainSupervisor
    with kind(follow=follow) as supervisor:
        session = _opened(settings, name or short_name(command), command, tags or {}, warnings)
        try:
            environment = child_environment(session)
            if session is not None:
                supervisor.before_stop, supervisor.after_stop = session.around_stop
            if session is not None:
                for hook in hooks:
                    environment = hook.begin(session, environment)
            outcome = supervisor.run(command, environment)
        except BaseException:
            _closed(session, ProgramResult(126, started=False), warnings)
            raise
        run = _closed(session, outcome, warnings)
        outcome = outcome._replace(left_running=supervisor.left_running())
    if session is not None:
        warnings += [note for note in session.notes if note not in warnings]
    journaled = session is not None and session.journal_path is not None
    return CommandRun(outcome, run, tuple(warnings), journaled)


def status_of(outcome: ProgramResult) -> RunStatus:
    if outcome.signal is not None:
        return RunStatus.KILLED
    return RunStatus.FINISHED if outcome.exit_code == 0 else RunStatus.FAILED


def _opened(
    settings: Settings,
    name: str,
    command: Sequence[str],
    tags: Mapping[str, str],
    warnings: list[str],
) -> "Session | None":
    try:
        from wattloop.measure.session import Session

        return Session.open(
            settings, name=name, command=command, kind="command", in_process=False, tags=tags
        )
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - the program matters more than its energy
        warnings.append(f"not measured: {type(error).__name__}: {error}; the program runs anyway")
        return None


def _closed(
    session: "Session | None", outcome: ProgramResult, warnings: list[str]
) -> "RunResult | None":
    if session is None:
        return None
    try:
        return session.close(status_of(outcome), exit_code=outcome.exit_code, signal=outcome.signal)
    except Exception as error:  # noqa: BLE001 - the exit code is the program's, not ours
        warnings.append(f"the run could not be closed: {type(error).__name__}: {error}")
        return None


def child_environment(session: "Session | None") -> dict[str, str]:
    """Return the environment of the program, with the run that already counts the devices."""
    environment = dict(os.environ)
    if session is not None:
        job = session.job
        environment[JOB_VARIABLE] = session.run_id if job is None else job.claim_name
        environment[RUN_VARIABLE] = session.run_id
    return environment


def short_name(command: Sequence[str]) -> str:
    """Shorten a command line: `python train.py`, `python -m trainer`, `torchrun train.py`."""
    words = [command[0].rpartition("/")[2]]
    words += [w.rpartition("/")[2] for w in command[1:2] if not w.startswith("-")]
    if command[1:2] == ["-m"]:
        words += command[1:3]
    scripts = (w.rpartition("/")[2] for w in command[1:] if w.endswith(".py"))
    words += [w for w in [next(scripts, "")] if w not in ("", *words)]
    return " ".join(words)[:80]
