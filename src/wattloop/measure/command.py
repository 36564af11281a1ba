"""Measure a program from beside it. Whatever goes wrong with measuring, the program runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.measure.launch import find_program
from wattloop.measure.supervise import Outcome, Supervisor

if TYPE_CHECKING:
    from wattloop.measure.run_result import RunResult
    from wattloop.measure.session import Session

__all__ = ["CommandRun", "child_environment", "run_command"]


@dataclass(frozen=True, slots=True)
class CommandRun:
    """How the program ended and what was found; `run` is None when nothing could be measured.

    `journaled` says whether there is a journal to fold into the store.
    """

    outcome: Outcome
    run: "RunResult | None"
    warnings: tuple[str, ...] = ()
    journaled: bool = False


def run_command(
    command: Sequence[str],
    settings: Settings,
    *,
    name: str = "",
    tags: Mapping[str, str] | None = None,
    follow: bool = False,
) -> CommandRun:
    """Start `command`, measure until it ends, and close the run.

    Raises:
        ConfigError: a setting is wrong; nothing was started.
        CommandError: the program cannot be started.
    """
    find_program(command[0])
    warnings: list[str] = []
    with Supervisor(follow=follow) as supervisor:
        session = _opened(settings, name or _short_name(command), command, tags or {}, warnings)
        try:
            outcome = supervisor.run(command, child_environment(session))
        except BaseException:
            _closed(session, Outcome(126, started=False), warnings)
            raise
        run = _closed(session, outcome, warnings)
        outcome = replace(outcome, left_running=supervisor.left_running())
    if session is not None:
        warnings += [note for note in session.notes if note not in warnings]
    journaled = session is not None and session.journal_path is not None
    return CommandRun(outcome, run, tuple(warnings), journaled)


def status_of(outcome: Outcome) -> RunStatus:
    """How the run is marked."""
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


def _closed(session: "Session | None", outcome: Outcome, warnings: list[str]) -> "RunResult | None":
    if session is None:
        return None
    try:
        return session.close(status_of(outcome), exit_code=outcome.exit_code, signal=outcome.signal)
    except Exception as error:  # noqa: BLE001 - the exit code is the program's, not ours
        warnings.append(f"the run could not be closed: {type(error).__name__}: {error}")
        return None


def child_environment(session: "Session | None") -> dict[str, str]:
    """Ours, and which run already counts the devices, so that nothing is counted twice."""
    environment = dict(os.environ)
    if session is not None:
        job = session.job
        environment[JOB_VARIABLE] = session.run_id if job is None else job.claim_name
        environment[RUN_VARIABLE] = session.run_id
    return environment


def _short_name(command: Sequence[str]) -> str:
    """`python train.py` rather than the whole line."""
    words = [command[0].rpartition("/")[2]]
    words += [w.rpartition("/")[2] for w in command[1:2] if not w.startswith("-")]
    return " ".join(words)[:80]
