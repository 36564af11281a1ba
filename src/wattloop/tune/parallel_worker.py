"""The process of one group of devices: a bench that sees no others."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

from wattloop.core.errors import WattloopError
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.trials.limits import stops_raise
from wattloop.tune.bench import Bench, Remembers

__all__ = ["group_settings", "work"]

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def group_settings(settings: Settings, group: Sequence[str]) -> Settings:
    """Settings that read only the GPUs of a group."""
    return settings._replace(devices=tuple(f"gpu:{number}" for number in group))


def work(
    pipe: Connection, make: Callable[[Settings], Bench], settings: Settings, group: Sequence[str]
) -> None:
    """Do what the pipe asks for until it is closed, then put everything back.

    A search that is killed closes its end of the pipe: then this ends by itself.
    """
    for variable in VISIBLE:
        os.environ[variable] = ",".join(group)
    for variable in (JOB_VARIABLE, RUN_VARIABLE):
        os.environ.pop(variable, None)
    # ctrl-C reaches the whole terminal; the search decides what becomes of its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    with stops_raise(), ExitStack() as stack:
        while True:
            try:
                word, *details = pipe.recv()
            except EOFError:
                return
            if word == "end":
                return
            try:
                if bench is None:
                    bench = make(group_settings(settings, group))
                    stack.callback(bench.close)
                answer: tuple[str, Any] = ("ok", _done(bench, word, details))
            except WattloopError as error:
                answer = ("refused", str(error))
            except Exception as error:  # noqa: BLE001 - the search raises it where it is asked for
                answer = ("failed", f"{type(error).__name__}: {error}")
            with suppress(BrokenPipeError, OSError):
                pipe.send(answer)


def _done(bench: Bench, word: str, details: list[Any]) -> Any:
    if word == "let_go":
        bench.let_go(details[0])
        return None
    segment, past = details
    if past is not None and isinstance(bench, Remembers):
        bench.recall({segment.candidate: past})
    return bench.run(segment)
