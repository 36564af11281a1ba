"""Cells over processes: each takes a world, simulates its policies one by one, and says so."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from wattloop.core.errors import WattloopError
from wattloop.schedule.campaigns.cell import Cell
from wattloop.schedule.campaigns.interrupts import deaf

__all__ = ["Outcome", "Simulate", "each_outcome", "shares"]

Outcome = tuple[Cell, dict[str, Any]]
Simulate = Callable[[Sequence[Cell]], Iterator[Outcome]]
"""Cells of one world (variant and seed) -> each with what came of it."""
DONE = None


def each_outcome(simulate: Simulate, cells: Sequence[Cell], workers: int) -> Iterator[Outcome]:
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


def shares(cells: Sequence[Cell], workers: int) -> list[list[Cell]]:
    """What to hand out at once: the cells of a world, in parts where worlds are few."""
    worlds: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        worlds.setdefault((cell.variant, cell.seed), []).append(cell)
    # Two turns each at least, or one waits at the end while the other does a whole world.
    parts = -(-2 * workers // len(worlds)) if workers > 1 and worlds else 1
    found = []
    for mine in worlds.values():
        step = -(-len(mine) // min(parts, len(mine)))
        found += [mine[at : at + step] for at in range(0, len(mine), step)]
    return found


def _collected(crew: dict[Connection, Any], tasks: list[list[Cell]]) -> Iterator[Outcome]:
    busy: dict[Connection, list[Cell]] = {}
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
    connection: Connection, tasks: list[list[Cell]], busy: dict[Connection, list[Cell]]
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
