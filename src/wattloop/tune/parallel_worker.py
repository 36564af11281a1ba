"""The process of one group of devices, seen from both sides: its bench sees no other devices."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings
from wattloop.measure.job import JOB_VARIABLE, RUN_VARIABLE
from wattloop.trials.limits import stops_raise
from wattloop.tune.bench import Bench, Remembers

__all__ = ["Worker", "group_settings"]

END_S = 20.0
"""How long a worker may take to end its trainings and put levers back."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class Worker:
    """A process and the pipe to it."""

    def __init__(
        self,
        make: Callable[[Settings], Bench],
        settings: Settings,
        group: Sequence[str],
        now_s: float,
    ) -> None:
        self._make, self._settings, self.group = make, settings, tuple(group)
        self.busy = False
        self.idle_from_s = now_s
        self.start()

    def start(self) -> None:
        """Begin it, also again after it died."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=work,
            args=(theirs, self._make, self._settings, self.group),
            name=f"wattloop-gpu-{'-'.join(self.group)}",
            daemon=False,
        )
        self._process.start()
        theirs.close()

    def asked(self, *words: Any) -> Any:
        """Its answer; raises what it raised, EOFError when it died."""
        try:
            self._pipe.send(words)
            kind, answer = self._pipe.recv()
        except (BrokenPipeError, ConnectionResetError, OSError):
            raise EOFError from None
        if kind == "refused":
            raise ConfigError(answer)
        if kind == "failed":
            raise RuntimeError(f"the worker of GPU {','.join(self.group)}: {answer}")
        return answer

    def end(self) -> None:
        """Let it put everything back, and end it."""
        with suppress(OSError):
            if self.busy:
                self._process.terminate()  # it is in the middle of a training
            else:
                self._pipe.send(("end",))
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


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
