"""Run trials: set levers, measure the program within its time limit, record the outcome."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from wattloop.control.lever import Lever
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.errors import CommandError, LeverError, StoreLocked
from wattloop.core.process import (
    GRACE_S,
    Deferral,
    ProcessGroup,
    last_lines,
    stops_deferred,
    stops_raise,
)
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.command import child_environment
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.session import Session
from wattloop.store.database import Store
from wattloop.store.experiments import TrialRecord, begin_trial, end_trial, read_trials
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import read_windows
from wattloop.store.runs import RunRecord, child_runs
from wattloop.trials.experiment_lock import (
    TRIAL_VARIABLE,
    end_leftovers,
    lock_experiment,
    program_variables,
)
from wattloop.trials.trial import (
    Trial,
    TrialOutcome,
    TrialStatus,
    domain_energies,
    read_readings,
    scope_energies,
)

TAIL_LINES = 3


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
    begin_s = time.monotonic()
    group = None
    try:
        with stops_deferred():
            group = ProcessGroup(command, environment, output=output)
        in_time = group.wait(timeout_s)
        lasted_s = time.monotonic() - begin_s
    finally:
        if group is not None:
            group.stop(grace_s)
    assert group.exit_code is not None
    return ProcessEnd(group.exit_code, group.signal, not in_time, lasted_s)


def trial_status(
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


def _tail(output: Path | None) -> str:
    last = [] if output is None else last_lines(output, TAIL_LINES)
    return f"; it said: {' | '.join(last)}" if last else ""


class TimeIsOver(BaseException):
    """A function took too long. No Exception: one that catches those must not swallow it."""


@contextmanager
def time_limit(timeout_s: float | None) -> Iterator[None]:
    """Raise `TimeIsOver` in the block after this long; in the main thread only."""
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeIsOver

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# The part of a program that the program itself marks with `wattloop.measure("NAME")`.
#
# The program takes the times, we take the energy: of everything that the trial reads, between the
# first beginning and the last end of windows of that name in any process of the program. All
# processes of a machine share one monotonic clock.
class NoSuchWindow(Exception):
    """The program ended without it."""


def store_variable(settings: Settings) -> dict[str, str]:
    """Return the environment with which the program stores its measurements for us."""
    place = settings.store_location
    return {"WATTLOOP_STORE": place if "://" in place else str(Path(place).expanduser().absolute())}


def inner_window(store: Store, session: Session, name: str) -> tuple[float, float]:
    """Beginning and end, on the machine's monotonic clock.

    A run of that name (`wattloop run --name NAME`) does where no window has it.

    Raises:
        NoSuchWindow: nothing of that name was measured; what was, is named.
    """
    import_orphaned(store, finalize_orphaned_run)
    inner = [run for run in _within(store, session.run_id) if run.boot_id == session.host.boot_id]
    windows = [window for run in inner for window in read_windows(store, run.run_id)]
    named = [(w.begin_s, w.end_s) for w in windows if w.name == name]
    if not named:
        named = [(r.started_s, r.ended_s) for r in inner if r.name == name and r.ended_s]
    if not named:
        others = sorted({*(w.name for w in windows), *(r.name for r in inner)})
        raise NoSuchWindow(_said(name, others))
    return min(begin_s for begin_s, _ in named), max(end_s for _, end_s in named)


def _within(store: Store, run_id: str) -> list[RunRecord]:
    """Runs that processes of a run measured, and those within them."""
    found: list[RunRecord] = []
    left = [run_id]
    while left:
        children = child_runs(store, left.pop())
        found += children
        left += [child.run_id for child in children]
    return found


def _said(name: str, others: list[str]) -> str:
    if others:
        return f"it measured no window '{name}', but {', '.join(repr(o) for o in others)}"
    return (
        f"it measured no window '{name}'; put 'with wattloop.measure(\"{name}\"):' around the part "
        f"that counts, or start that part with 'wattloop run --name {name} -- ...'"
    )


RUN_STATUS = {
    TrialStatus.OK: RunStatus.FINISHED,
    TrialStatus.FAILED: RunStatus.FAILED,
    TrialStatus.NOT_STARTED: RunStatus.FAILED,
}


def measure_command(
    trial: Trial,
    settings: Settings,
    store: Store,
    stops: Deferral,
    *,
    tags: Mapping[str, str],
    environment: Mapping[str, str],
    output: Path | None,
) -> TrialOutcome:
    """Run and measure the command; `stops` wait while it is not the command that runs."""
    session = _session(trial, settings, tags, kind="command", in_process=False)
    variables = {**child_environment(session), **environment, **trial.environment}
    if trial.window:
        variables |= store_variable(settings)
    window = session.begin("trial")
    inner_s: tuple[float, float] | None = None
    status, facts = TrialStatus.KILLED, dict[str, Any](message="interrupted")
    try:
        with stops.lifted():
            ended = run_group(trial.command, variables, timeout_s=trial.timeout_s, output=output)
        window.end()
        status, facts = trial_status(ended, trial.timeout_s, output)
        if trial.window and status is TrialStatus.OK:
            inner_s = inner_window(store, session, trial.window)
    except CommandError as error:
        status = TrialStatus.NOT_STARTED
        facts = {"message": str(error), "exit_code": error.exit_code}
    except NoSuchWindow as error:
        status = TrialStatus.FAILED
        facts = {**facts, "message": str(error)}
    finally:
        window.end()
        _close(session, status, facts)
    result = window.result
    facts["lasted_s"] = result.duration_s
    if inner_s is not None:
        result = session.between(*inner_s, name=trial.window)
    return _outcome(session, settings, result, status, facts)


def measure_call(
    trial: Trial,
    function: Callable[[], Mapping[str, float] | None],
    settings: Settings,
    stops: Deferral,
    tags: Mapping[str, str],
) -> TrialOutcome:
    """Call a function of this process; the numbers it returns are kept as metrics."""
    session = _session(trial, settings, tags, kind="python", in_process=True)
    window = session.begin("trial")
    status, facts = TrialStatus.KILLED, dict[str, Any](message="interrupted")
    try:
        with stops.lifted(), time_limit(trial.timeout_s):
            metrics = function()
        status, facts = TrialStatus.OK, {"metrics": dict(metrics or {})}
    except TimeIsOver:
        status = TrialStatus.TIMEOUT
        facts = {"message": f"did not end within {trial.timeout_s:g} s"}
    except Exception as error:  # noqa: BLE001 - a function that fails is an outcome
        status = TrialStatus.FAILED
        facts = {"message": f"{type(error).__name__}: {error}"}
    finally:
        window.end()
        _close(session, status, facts)
    facts["lasted_s"] = window.result.duration_s
    return _outcome(session, settings, window.result, status, facts)


def _session(
    trial: Trial, settings: Settings, tags: Mapping[str, str], *, kind: str, in_process: bool
) -> Session:
    return Session.open(
        settings,
        name=trial.name or trial.key,
        command=list(trial.command) or None,
        kind=kind,
        in_process=in_process,
        tags=tags,
    )


def _close(session: Session, status: TrialStatus, facts: Mapping[str, Any]) -> None:
    session.close(
        RUN_STATUS.get(status, RunStatus.KILLED),
        exit_code=facts.get("exit_code"),
        signal=facts.get("signal"),
    )


def _outcome(
    session: Session,
    settings: Settings,
    result: WindowResult,
    status: TrialStatus,
    facts: dict[str, Any],
) -> TrialOutcome:
    readings = read_readings(session.journal_path, result.begin_s, result.end_s)
    return TrialOutcome(
        status=status,
        time_s=result.duration_s,
        scopes=scope_energies(result, settings, readings.peaks_w(result)),
        domains=domain_energies(result),
        signals=readings.signals(),
        missing=tuple(m._asdict() for m in result.missing),
        warnings=result.warnings,
        run_id=session.run_id,
        started_wall_s=session.started_wall_s,
        **facts,
    )


@dataclass
class TrialRunner:
    """Runs the trials of one experiment, each once, whatever is killed in between.

    Use it as a context manager: entering locks the levers, leaving restores them. Between trials
    they keep the last trial's values.
    """

    store: Store
    experiment_id: str
    settings: Settings
    _: KW_ONLY
    levers: Sequence[Lever] = ()
    state_directory: Path | None = None
    outputs: Path | None = None

    def __post_init__(self) -> None:
        self._held: LeverSession | None = None
        self._stack = ExitStack()
        self._ended: dict[str, TrialOutcome] = {}

    def __enter__(self) -> "TrialRunner":
        with ExitStack() as stack:
            stack.enter_context(stops_raise())
            stack.enter_context(lock_experiment(self.store, self.experiment_id))
            end_leftovers(self.store, self.experiment_id)
            with stops_deferred():
                self._ended = self._known()
            if self.levers:
                held = lever_session(self.levers, directory=self.state_directory)
                self._held = stack.enter_context(held)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = None
        self._stack.__exit__(kind, error, traceback)

    def ended(self, key: str) -> TrialOutcome | None:
        """The outcome of a trial that was paid for already, now or before we were started."""
        return self._ended.get(key)

    def run(self, trial: Trial) -> TrialOutcome:
        """Run the trial's command measured, or hand back what it gave when it ran before."""
        return self._once(trial, lambda stops: self._command(trial, stops))

    def call(
        self, trial: Trial, function: Callable[[], Mapping[str, float] | None]
    ) -> TrialOutcome:
        """As `run`, with a function of this process; the numbers it returns are kept as metrics.

        After `timeout_s` the function is interrupted at its next line of Python, if it runs in
        the main thread; a call that does not return from a library cannot be interrupted.
        """
        tags = self._tags(trial)
        return self._once(
            trial, lambda stops: measure_call(trial, function, self.settings, stops, tags)
        )

    # -- inside ----------------------------------------------------------------------------

    def _known(self) -> dict[str, TrialOutcome]:
        return {
            record.key: TrialOutcome.from_dict(record.outcome)
            for record in read_trials(self.store, self.experiment_id)
            if record.ended
        }

    def _once(self, trial: Trial, measured: Callable[[Deferral], TrialOutcome]) -> TrialOutcome:
        known = self._ended.get(trial.key)
        if known is not None:
            return known
        # Only the program itself is interrupted: what it gave is written down all the same.
        with stops_deferred() as stops:
            record = begin_trial(self.store, self.experiment_id, trial.key, trial.to_dict())
            if record.ended:  # another process has resumed the same experiment
                outcome = TrialOutcome.from_dict(record.outcome)
            else:
                outcome = self._set(trial) or measured(stops)
                self._keep(record, outcome)
            self._ended[trial.key] = outcome
        return outcome

    def _set(self, trial: Trial) -> TrialOutcome | None:
        if not trial.settings:
            return None
        if self._held is None:
            raise LeverError("TrialRunner: levers are held inside 'with' only")
        try:
            self._held.set(trial.settings)
        except LeverError as error:
            return TrialOutcome(status=TrialStatus.NOT_SET, message=str(error))
        return None

    def _command(self, trial: Trial, stops: Deferral) -> TrialOutcome:
        return measure_command(
            trial,
            self.settings,
            self.store,
            stops,
            tags=self._tags(trial),
            environment={
                TRIAL_VARIABLE: f"{self.experiment_id}/{trial.key}",
                **program_variables(self.store, self.experiment_id),
            },
            output=self._output_of(trial),
        )

    def _tags(self, trial: Trial) -> dict[str, str]:
        return {"experiment": self.experiment_id, "trial": trial.key}

    def _keep(self, record: TrialRecord, outcome: TrialOutcome) -> None:
        end_trial(
            self.store,
            self.experiment_id,
            TrialRecord(
                key=record.key,
                number=record.number,
                status=outcome.status.value,
                settings=record.settings,
                outcome=outcome.to_dict(),
                run_id=outcome.run_id,
            ),
        )
        # While the store is busy the run waits in its journal for the next import.
        with suppress(StoreLocked):
            import_orphaned(self.store, finalize_orphaned_run)

    def _output_of(self, trial: Trial) -> Path | None:
        if self.outputs is None:
            return None
        self.outputs.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "=.-" else "_" for c in trial.key)
        return self.outputs / f"{name[:150]}.log"
