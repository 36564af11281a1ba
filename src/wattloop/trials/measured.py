"""One trial measured: its command or function, from its start to its end or within a window."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattloop.core.errors import CommandError
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.command import child_environment
from wattloop.measure.session import Session
from wattloop.store.database import Store
from wattloop.trials.inner_window import NoSuchWindow, inner_window, store_variable
from wattloop.trials.limits import Deferral, TimeIsOver, time_limit
from wattloop.trials.outcome import Outcome, TrialStatus, domain_energies, scope_energies
from wattloop.trials.peaks import readings_of
from wattloop.trials.process import run_group, status_of
from wattloop.trials.trial import Trial

__all__ = ["measured_call", "measured_command"]

RUN_STATUS = {
    TrialStatus.OK: RunStatus.FINISHED,
    TrialStatus.FAILED: RunStatus.FAILED,
    TrialStatus.NOT_STARTED: RunStatus.FAILED,
}


def measured_command(
    trial: Trial,
    settings: Settings,
    store: Store,
    stops: Deferral,
    *,
    tags: Mapping[str, str],
    environment: Mapping[str, str],
    output: Path | None,
) -> Outcome:
    """Run the trial's command.

    Args:
        trial: what to run.
        settings: how to measure.
        store: where the command's own measurements go, if the trial asks for one of them.
        stops: signals that wait while it is not the command that runs.
        tags: of the measured run.
        environment: variables added to ours and the trial's.
        output: file for what the command prints; None lets it print where we do.
    """
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
        status, facts = status_of(ended, trial.timeout_s, output)
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


def measured_call(
    trial: Trial,
    function: Callable[[], Mapping[str, float] | None],
    settings: Settings,
    stops: Deferral,
    tags: Mapping[str, str],
) -> Outcome:
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
) -> Outcome:
    readings = readings_of(session.journal_path, result.begin_s, result.end_s)
    return Outcome(
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
