"""Measure one trial: its command or function, in full or within a window."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattloop.core.errors import CommandError
from wattloop.core.process import Deferral
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.command import child_environment
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.session import Session
from wattloop.store.database import Store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.run_record import read_windows
from wattloop.store.runs import RunRecord, child_runs
from wattloop.trials.process import TimeIsOver, run_group, time_limit, trial_status
from wattloop.trials.trial import (
    Trial,
    TrialOutcome,
    TrialStatus,
    domain_energies,
    read_readings,
    scope_energies,
)

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
