"""Worker processes of a campaign, and interrupts between two simulations."""

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
    """What is done inside is done whole; a ctrl-C that comes meanwhile is heard at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals, and only it may say how
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
    """Processes started inside never hear ctrl-C, not even before their first line is run."""
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


"""Cells of one world (variant and seed) -> each with what came of it."""


DONE = None


def each_outcome(
    simulate: Simulate, cells: Sequence[SimulationJob], workers: int
) -> Iterator[Outcome]:
    """What comes of every cell, in the order in which they end.

    One worker is this very process. More are spawned: nothing is inherited but what is handed
    over, so `simulate` must be picklable. They end with this process, however it ends.

    Raises:
        WattloopError: a worker died, or its scenario cannot be built.
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
            theirs.close()  # so that its death is the end of this pipe
            crew[ours] = process
        yield from _collected(crew, list(reversed(tasks)))
    finally:
        for connection, process in crew.items():
            process.terminate()
            connection.close()
        for process in crew.values():
            process.join()


def shares(cells: Sequence[SimulationJob], workers: int) -> list[list[SimulationJob]]:
    """What to hand out at once: the cells of a world, in parts where worlds are few."""
    worlds: dict[tuple[str, int], list[SimulationJob]] = {}
    for cell in cells:
        worlds.setdefault((cell.variant, cell.seed), []).append(cell)
    # Two turns each at least, or one waits at the end while the other does a whole world.
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
        with suppress(OSError):  # died: its silence is noticed where answers are read
            connection.send(busy[connection])


def _work(connection: Connection, simulate: Simulate) -> None:
    """What a worker does until nobody asks any more."""
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
        except BrokenPipeError:  # who asked is gone
            return
        except WattloopError as error:
            connection.send(error)
        except Exception as error:  # noqa: BLE001 - whoever handed out reports it, not this process
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """A killed parent says nothing: without this, a worker would first finish its cell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
