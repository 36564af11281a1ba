"""Simulations of a campaign in worker processes, and handling of Ctrl-C."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.schedule.campaigns.campaign import PolicyChoice, SimulationJob
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.metrics.metrics import metrics_of
from wattloop.schedule.scenarios.scenario import Scenario, World

REFUSED_KEPT = 3


class Simulator:
    """Simulator of campaign jobs, which builds the shared parts of a scenario once."""

    def __init__(self, scenarios: Mapping[str, Scenario], *, checks: bool = False) -> None:
        self.scenarios, self.checks = scenarios, checks
        self._built: dict[tuple[str, int], World] = {}

    def __call__(
        self, cells: Sequence[SimulationJob]
    ) -> Iterator[tuple[SimulationJob, dict[str, Any]]]:
        """Simulate the jobs of one world; yield each with its outcome."""
        world = self.world(cells[0])
        for cell in cells:
            yield cell, self._outcome(world, cell)

    def world(self, cell: SimulationJob) -> World:
        """Return the inputs of a job, cached because a trace takes seconds to read."""
        key = cell.variant, cell.seed
        if key not in self._built:
            self._built = {key: self.scenarios[cell.variant].world(cell.seed)}
        return self._built[key]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for workers, without the cached world, which may be large."""
        return self.__dict__ | {"_built": {}}

    def _outcome(self, world: World, cell: SimulationJob) -> dict[str, Any]:
        try:
            result = simulate(world, cell.choice, checks=self.checks)
            return outcome_data(result) | {"sources": _sources(world)}
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a policy error is an outcome
            return {"error": f"{type(error).__name__}: {error} ({_where(error)})"}


def simulate(world: World, choice: PolicyChoice, *, checks: bool = False) -> SimulationResult:
    return Simulation(
        world.cluster,
        world.jobs,
        choice.policy(),
        truth=world.truth,
        oracle=world.oracle,
        settings=replace(world.settings, checks=True) if checks else world.settings,
    ).run()


def outcome_data(result: SimulationResult) -> dict[str, Any]:
    """Convert a result to plain data: metrics, jobs that never run, refusals, assumptions."""
    return {
        **metrics_of(result).to_dict(),
        "policy_s": result.policy_s,
        "never": dict(Counter(result.never.values())),
        "left": list(result.left.values()),
        "refused": list(result.refused[:REFUSED_KEPT]),
        "notes": list(result.jobs.notes),
    }


def _where(error: Exception) -> str:
    """Return `FILE:LINE` of the raising line, for the author of a policy."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _sources(world: World) -> list[str]:
    """Return the sources of time and power, without the single curves of a table."""
    parts = [
        part for kind in world.jobs.kinds for part in world.truth.options(kind).source.split("; ")
    ]
    return [part for part in dict.fromkeys(parts) if part and not part.startswith("caps of ")]


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Make processes started inside ignore Ctrl-C from their first instruction."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Outcome = tuple[SimulationJob, dict[str, Any]]
Simulate = Callable[[Sequence[SimulationJob]], Iterator[Outcome]]
"""Function from jobs of one world (variant and seed) to pairs of job and outcome."""
DONE = None


def each_outcome(
    simulate: Simulate, cells: Sequence[SimulationJob], workers: int
) -> Iterator[Outcome]:
    """Yield every job with its outcome, in the order in which they end.

    A single worker is this process. Several workers are spawned, so `simulate` must be picklable.
    They end with this process, even after `kill -9`.

    Raises:
        WattloopError: a worker crashed, or its scenario cannot be built.
    """
    tasks = shares(cells, workers)
    if min(workers, len(tasks)) <= 1:
        for mine in tasks:
            yield from simulate(mine)
        return
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, Any] = {}
    try:
        for number in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, simulate), name=f"wattloop-simulate-{number}"
            )
            process.daemon = True
            with _ctrl_c_ignored():
                process.start()
            theirs.close()  # so that the pipe closes when the worker ends
            processes[ours] = process
        yield from _collected(processes, list(reversed(tasks)))
    finally:
        for connection, process in processes.items():
            process.terminate()
            connection.close()
        for process in processes.values():
            process.join()


def shares(cells: Sequence[SimulationJob], workers: int) -> list[list[SimulationJob]]:
    """Split the jobs into batches: the jobs of a world, divided further if worlds are few."""
    worlds: dict[tuple[str, int], list[SimulationJob]] = {}
    for cell in cells:
        worlds.setdefault((cell.variant, cell.seed), []).append(cell)
    # At least two batches per worker, or one idles at the end while another runs a whole world.
    parts = -(-2 * workers // len(worlds)) if workers > 1 and worlds else 1
    found = []
    for mine in worlds.values():
        step = -(-len(mine) // min(parts, len(mine)))
        found += [mine[at : at + step] for at in range(0, len(mine), step)]
    return found


def _collected(
    processes: dict[Connection, Any], tasks: list[list[SimulationJob]]
) -> Iterator[Outcome]:
    busy: dict[Connection, list[SimulationJob]] = {}
    for connection in processes:
        _hand_out(connection, tasks, busy)
    while busy:
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            try:
                answer = ready.recv()
            except (EOFError, OSError):
                processes[ready].join()
                raise WattloopError(
                    f"the process that simulated {busy[ready][0].label} died (exit code "
                    f"{processes[ready].exitcode}); is memory short? Finished simulations are "
                    "stored: the same command continues, --workers 1 needs least"
                ) from None
            if answer is DONE:
                del busy[ready]
                _hand_out(ready, tasks, busy)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                busy[ready] = [each for each in busy[ready] if each.key != answer[0].key] or [
                    answer[0]
                ]
                yield answer


def _hand_out(
    connection: Connection,
    tasks: list[list[SimulationJob]],
    busy: dict[Connection, list[SimulationJob]],
) -> None:
    if tasks:
        busy[connection] = tasks.pop()
        with suppress(OSError):  # crashed: detected where answers are read
            connection.send(busy[connection])


def _work(connection: Connection, simulate: Simulate) -> None:
    """Simulate batches until the parent closes the pipe."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            cells = connection.recv()
        except (EOFError, OSError):
            return
        try:
            for answer in simulate(cells):
                connection.send(answer)
            connection.send(DONE)
        except BrokenPipeError:  # the parent has ended
            return
        except WattloopError as error:
            connection.send(error)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """End this process with its parent; otherwise a worker would first finish its batch."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
