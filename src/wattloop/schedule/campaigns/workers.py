"""Worker processes of a campaign, and handling of Ctrl-C."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from wattloop.core.errors import WattloopError
from wattloop.schedule.campaigns.campaign import SimulationJob


@contextmanager
def later() -> Iterator[None]:
    """Delay a Ctrl-C until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals and may set handlers
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def deaf() -> Iterator[None]:
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
    crew: dict[Connection, Any] = {}
    try:
        for number in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, simulate), name=f"wattloop-simulate-{number}"
            )
            process.daemon = True
            with deaf():
                process.start()
            theirs.close()  # so that the pipe closes when the worker ends
            crew[ours] = process
        yield from _collected(crew, list(reversed(tasks)))
    finally:
        for connection, process in crew.items():
            process.terminate()
            connection.close()
        for process in crew.values():
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


def _collected(crew: dict[Connection, Any], tasks: list[list[SimulationJob]]) -> Iterator[Outcome]:
    busy: dict[Connection, list[SimulationJob]] = {}
    for connection in crew:
        _hand_out(connection, tasks, busy)
    while busy:
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            try:
                told = ready.recv()
            except (EOFError, OSError):
                crew[ready].join()
                raise WattloopError(
                    f"the process that simulated {busy[ready][0].label} died (exit code "
                    f"{crew[ready].exitcode}); is memory short? What has ended is kept: the same "
                    "command goes on, --workers 1 needs least"
                ) from None
            if told is DONE:
                del busy[ready]
                _hand_out(ready, tasks, busy)
            elif isinstance(told, BaseException):
                raise told
            else:
                busy[ready] = [each for each in busy[ready] if each.key != told[0].key] or [told[0]]
                yield told


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
            for told in simulate(cells):
                connection.send(told)
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
