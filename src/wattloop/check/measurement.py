"""Measurement of a command or a block: joules, instructions and CPU seconds."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wattloop.check.figures import SENSED, Execution, FigureKind, FigureReading, energy_reading
from wattloop.core.errors import CommandError, ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.command import CommandRun, run_command
from wattloop.measure.session import Session
from wattloop.measure.window_energy import Window
from wattloop.meters.perf import INSTRUCTIONS, USER_CODE, ThreadCounters

DISABLED, ENABLE_ON_EXEC = 1 << 0, 1 << 12


class ChildCounters:
    """Use of programs that were started, and have ended, since this was made."""

    def __init__(self, event: tuple[int, int] = INSTRUCTIONS) -> None:
        # Off in this process, and on in a child from its exec on.
        flags = USER_CODE | DISABLED | ENABLE_ON_EXEC
        self._counters, self.reason = _opened(event, [0], flags)
        self._begin_s = _children_s()

    def end(self) -> dict[FigureKind, FigureReading]:
        found = {FigureKind.CPU_TIME: FigureReading(_children_s() - self._begin_s)}
        return found | _counted(self._counters)


class OwnCounters:
    """Use of this process since this was made, with threads and ended children."""

    def __init__(self, event: tuple[int, int] = INSTRUCTIONS) -> None:
        # A counter follows one thread and those it starts later, so each of ours gets one.
        self._counters, self.reason = _opened(event, None, USER_CODE)
        self._begin_s = time.process_time() + _children_s()

    def end(self) -> dict[FigureKind, FigureReading]:
        used_s = time.process_time() + _children_s() - self._begin_s
        return {FigureKind.CPU_TIME: FigureReading(used_s), **_counted(self._counters)}


def _opened(
    event: tuple[int, int], threads: list[int] | None, flags: int
) -> tuple[ThreadCounters | None, str]:
    """Return counters, or none and why."""
    try:
        return ThreadCounters(event, threads, flags), ""
    except OSError as error:
        return None, f"instructions cannot be counted here ({error.strerror or error})"


def _counted(counters: ThreadCounters | None) -> dict[FigureKind, FigureReading]:
    if counters is None:
        return {}
    try:
        total = counters.read()
    except OSError:  # another program uses the processor's counter
        return {}
    finally:
        counters.close()
    return {FigureKind.INSTRUCTIONS: FigureReading(float(total))} if total else {}


def _children_s() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class CommandFigures:
    """The executions of a command, and notes for the reader.

    `reason` says why there are no joules; empty where there are.
    """

    executions: tuple[Execution, ...]
    run_ids: tuple[str, ...]
    reason: str
    notes: tuple[str, ...]


def measure_command(
    command: Sequence[str],
    settings: Settings,
    *,
    repeats: int,
    warmup: int = 0,
    name: str = "",
    told: Callable[[int, Execution], None] | None = None,
) -> CommandFigures:
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
            with redirect_stdout():
                done = run_command(command, settings, name=name, tags={"check": name or "command"})
        except CommandError as error:  # its exit code would be taken for the verdict
            raise ConfigError(str(error)) from None
        counted = counters.end()
        _refuse_failed(done, number + warmup + 1, warmup + repeats)
        if number < 0:
            continue
        execution, why = _execution(done, counted)
        reason = reason or why  # one without joules is enough to have none to compare
        if FigureKind.ENERGY not in execution and counters.reason:
            notes[counters.reason] = None
        notes.update(dict.fromkeys(_notes(done)))
        executions.append(execution)
        if done.run is not None:
            runs.append(done.run.run_id)
        if told is not None:
            told(number + 1, execution)
    return CommandFigures(tuple(executions), tuple(runs), reason, tuple(notes))


def _execution(done: CommandRun, counted: dict[FigureKind, FigureReading]) -> tuple[Execution, str]:
    found = dict(counted)
    if done.run is None:
        return found, "nothing could be measured: " + "; ".join(done.warnings)
    result = done.run.result
    found[FigureKind.TIME] = FigureReading(result.duration_s)
    energy = energy_reading(result) if done.run.reported else None
    if energy is not None:
        found[FigureKind.ENERGY] = energy
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
def redirect_stdout() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    try:
        os.dup2(STDERR, STDOUT)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


SETTLE_S = 1.0
"""How long to wait for a slow sensor to be read once more after the block."""
LOOK_EVERY_S = 0.005


class BlockMeter:
    """Measures blocks, one after the other. Nothing is stored.

    `reason` says why there are no joules; empty where there are.
    """

    def __init__(self, settings: Settings, *, sensors: bool = True) -> None:
        self.reason = "sensors were not asked for"
        self._session: Session | None = None
        self._window: Window | None = None
        self._counters: OwnCounters | None = None
        self._begin_s = 0.0
        if sensors:
            self._open(settings)

    def begin(self) -> None:
        if self._session is not None:
            self._window = self._session.begin("check")
        self._begin_s = time.perf_counter()
        self._counters = OwnCounters()

    def end(self) -> Execution:
        assert self._counters is not None
        found: dict[FigureKind, FigureReading] = self._counters.end()
        found[FigureKind.TIME] = FigureReading(time.perf_counter() - self._begin_s)
        if self._session is not None and self._window is not None:
            self._window.end()
            energy = energy_reading(self._settled(self._session, self._window).result)
            if energy is not None:
                found[FigureKind.ENERGY] = energy
        return found

    def drop(self) -> None:
        """End it without asking what it used."""
        if self._counters is not None:
            self._counters.end()
        if self._window is not None:
            self._window.end()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> "BlockMeter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, settings: Settings) -> None:
        # A sampler process would save 10 reads a second, and cost more by being started.
        settings = settings._replace(sampler="thread")
        session = Session.open(settings, name="check", keep=False)
        if any(channel.domain.provenance in SENSED for channel in session.channels):
            self._session, self.reason = session, ""
            return
        estimated = [channel.domain.name for channel in session.channels]
        self.reason = "no sensor can be read here"
        if estimated:
            self.reason += f" ({', '.join(estimated)} would only be estimated)"
        session.close()

    @staticmethod
    def _settled(session: Session, window: Window) -> Window:
        assert window.end_s is not None
        until_s = time.monotonic() + SETTLE_S
        while not session.settled(window.end_s) and time.monotonic() < until_s:
            time.sleep(LOOK_EVERY_S)
        return window
