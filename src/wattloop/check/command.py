"""Repeated measurement of a command."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wattloop.check.counters import ChildCounters
from wattloop.check.figures import SENSED, Execution, FigureReading, Kind, energy_reading
from wattloop.core.errors import CommandError, ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.command import CommandRun, run_command

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Measured:
    """The executions of a command, and notes for the reader.

    `reason` says why there are no joules; empty where there are.
    """

    executions: tuple[Execution, ...]
    run_ids: tuple[str, ...]
    reason: str
    notes: tuple[str, ...]


def measured_command(
    command: Sequence[str],
    settings: Settings,
    *,
    repeats: int,
    warmup: int = 0,
    name: str = "",
    told: Callable[[int, Execution], None] | None = None,
) -> Measured:
    """Run `command` `warmup` times and then `repeats` times.

    What it prints goes to standard error: standard output is for the result. Each execution is
    kept as a run, like those of `wattloop run`.

    Raises:
        ConfigError: the command failed or cannot be started; half the work says nothing.
        KeyboardInterrupt: a signal ended it.
    """
    executions: list[Execution] = []
    runs: list[str] = []
    notes: dict[str, None] = {}
    reason = ""
    for number in range(-warmup, repeats):
        counters = ChildCounters()
        try:
            with printing_aside():
                done = run_command(command, settings, name=name, tags={"check": name or "command"})
        except CommandError as error:  # its exit code would be taken for the verdict
            raise ConfigError(str(error)) from None
        counted = counters.end()
        _refuse_failed(done, number + warmup + 1, warmup + repeats)
        if number < 0:
            continue
        execution, why = _execution(done, counted)
        reason = reason or why  # one without joules is enough to have none to compare
        if Kind.ENERGY not in execution and counters.reason:
            notes[counters.reason] = None
        notes.update(dict.fromkeys(_notes(done)))
        executions.append(execution)
        if done.run is not None:
            runs.append(done.run.run_id)
        if told is not None:
            told(number + 1, execution)
    return Measured(tuple(executions), tuple(runs), reason, tuple(notes))


def _execution(done: CommandRun, counted: dict[Kind, FigureReading]) -> tuple[Execution, str]:
    found = dict(counted)
    if done.run is None:
        return found, "nothing could be measured: " + "; ".join(done.warnings)
    result = done.run.result
    found[Kind.TIME] = FigureReading(result.duration_s)
    energy = energy_reading(result) if done.run.reported else None
    if energy is not None:
        found[Kind.ENERGY] = energy
        return found, ""
    if not done.run.reported:
        return found, f"joules of this machine are counted by run {done.run.counted_by}"
    estimated = [d.name for d in result.counted if d.provenance not in SENSED]
    aside = f" ({', '.join(estimated)} would only be estimated)" if estimated else ""
    return found, f"no sensor can be read here{aside}"


def _notes(done: CommandRun) -> list[str]:
    """Return warnings of the sensors, and processes that were not waited for."""
    notes = list(done.warnings)
    if done.outcome.left_running:
        notes.append("it left processes running, and what they use later is not in the figures")
    if done.run is not None and energy_reading(done.run.result) is not None:
        notes += done.run.result.warnings
    return notes


def _refuse_failed(done: CommandRun, number: int, of: int) -> None:
    outcome = done.outcome
    if outcome.signal in (signal.SIGINT, signal.SIGTERM):
        raise KeyboardInterrupt
    if outcome.exit_code != 0:
        ended = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        raise ConfigError(
            f"the command failed ({ended}) in execution {number} of {of}: nothing was compared; "
            "make it succeed first"
        )


@contextmanager
def printing_aside() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    try:
        os.dup2(STDERR, STDOUT)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
