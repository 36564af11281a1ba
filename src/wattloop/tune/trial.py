"""Trial of a training: its parameters, its reports, and the current trial."""

import contextvars
import json
import numbers
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from wattloop.core.errors import ConfigError
from wattloop.tune.executors.pause_channel import TrialChannel
from wattloop.tune.segment import Value

T = TypeVar("T")


class TrialStopped(BaseException):
    """Signal that the search ends this training; not an Exception: only `finally` sees it."""


class Trial(ABC):
    """One training of a search, seen from inside.

    Attributes:
        params: the configuration.
        seed: of everything random in it; Python, numpy and torch are seeded already.
        checkpoint: a folder of its own; files there survive a kill. Save before reporting.
        resumed: whether files from before are in that folder, to resume from.
        epochs_done: how many epochs those had.
    """

    params: Mapping[str, Value]
    seed: int
    checkpoint: Path
    resumed: bool
    epochs_done: float

    def __getitem__(self, name: str) -> Value:
        try:
            return self.params[name]
        except KeyError:
            known = ", ".join(self.params) or "none"
            raise ConfigError(
                f"no parameter '{name}' in this configuration; there are: {known}"
            ) from None

    def get(self, name: str, default: Value = None) -> Value:
        return self.params.get(name, default)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to train, from 0, or from the checkpoint.

        The training may be paused, for a long time, between any two of them. Without `count` it
        continues as long as the search wants it to.
        """
        self._count_epochs()
        epoch = int(self.epochs_done)
        while count is None or epoch < count:
            yield epoch
            epoch += 1
            self._end_epoch()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches of an epoch; each counts as a step when the next one is requested."""
        length = getattr(batches, "__len__", None)
        if length is not None:
            self.expect_steps(float(length()))
        for batch in batches:
            yield batch
            self.step()

    def report(self, *, epoch: float | None = None, **metrics: Any) -> None:
        """Report the quality metric and any other metrics.

        Outside `epochs()` each report of the search's metric ends an epoch, and the training may be
        paused in it.
        """
        self._report(to_numbers(metrics), epoch)

    def expect_steps(self, count: float) -> None:
        """Announce the steps of an epoch, so that the progress within it is known."""

    @abstractmethod
    def step(self, units: float = 1.0) -> None:
        """Count a step; used by the search for a power cap. Very cheap."""

    @abstractmethod
    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Pass metrics on; may pause."""

    @abstractmethod
    def _count_epochs(self) -> None:
        """Announce that the training marks the ends of its epochs."""

    @abstractmethod
    def _end_epoch(self) -> None:
        """Mark the end of an epoch; may pause."""


def to_numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return numbers, also from tensors or arrays with one element; None is not reported."""
    return {name: _number(name, value) for name, value in metrics.items() if value is not None}


def _number(name: str, value: object) -> float:
    if isinstance(value, numbers.Real):
        return float(value)
    item = getattr(value, "item", None)
    try:
        return float(item() if callable(item) else value)  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"report({name}={value!r}): give a number, such as the mean over the epoch"
        ) from None


# `current_trial()` works in a function that `wattloop.tune.search` calls, in a program that
# `wattloop tune run` starts, and in one that a person starts, where reports are dropped.

REPORTS_VARIABLE = "WATTLOOP_REPORTS"
SAY_STEPS_EVERY_S = 0.05
thread_trial: contextvars.ContextVar[Trial | None] = contextvars.ContextVar(
    "wattloop_trial", default=None
)
"""Trial of the function that this thread trains."""
_of_program: list[Trial] = []


def current_trial() -> Trial:
    """Return the trial of this function or program; outside a search its reports are dropped."""
    own = thread_trial.get()
    if own is not None:
        return own
    if not _of_program:
        searched = REPORTS_VARIABLE in os.environ
        _of_program.append(ProgramTrial() if searched else LoneTrial())
    return _of_program[0]


class ProgramTrial(Trial):
    """Trial of a program that a search has started; the search reads its reports from a file."""

    def __init__(self) -> None:
        env = os.environ
        self.params = json.loads(env.get("WATTLOOP_PARAMS") or "{}")
        self.seed = int(env.get("WATTLOOP_SEED") or 0)
        self.checkpoint = Path(env.get("WATTLOOP_CHECKPOINT") or ".")
        self.resumed = env.get("WATTLOOP_RESUMED") == "1"
        self.epochs_done = float(env.get("WATTLOOP_EPOCHS_DONE") or 0.0)
        self._path = Path(env[REPORTS_VARIABLE])
        self._steps = 0.0
        self._each: float | None = None
        self._say_at_s = 0.0
        self._counts = False
        # In a job of several processes only the first one reports.
        self._silent = env.get("RANK", "0") not in ("", "0")
        self._channel = None if self._silent else TrialChannel(self._path)
        self._write({"wattloop": "begins"})

    def step(self, units: float = 1.0) -> None:
        """Count a step, reported twenty times a second; may wait where the search asks for it."""
        self._steps += units
        now_s = time.monotonic()
        if now_s >= self._say_at_s:
            self._say_at_s = now_s + SAY_STEPS_EVERY_S
            self._say_steps()
            if self._channel is not None and self._channel.pause_requested():
                self._wait({"wattloop": "paused"})

    def expect_steps(self, count: float) -> None:
        self._each = count

    def _say_steps(self) -> None:
        steps, self._steps = self._steps, 0.0
        each = {} if self._each is None else {"each": self._each}
        self._write({"wattloop": "steps", "steps": steps, **each})

    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        if self._steps:
            self._say_steps()
        numbers: dict[str, object] = {**metrics, **({} if epoch is None else {"epoch": epoch})}
        if self._counts:
            self._write(numbers)
        else:
            self._wait(numbers)

    def _count_epochs(self) -> None:
        self._counts = True
        self._write({"wattloop": "counts"})

    def _end_epoch(self) -> None:
        if self._steps:
            self._say_steps()
        self._wait({"wattloop": "epoch"})

    def _wait(self, data: Mapping[str, object]) -> None:
        self._write({**data, "wattloop.waits": True})
        if self._channel is not None:
            self._channel.notify()
            if not self._channel.may_continue():
                raise TrialStopped

    def _write(self, data: Mapping[str, object]) -> None:
        if not self._silent:
            # One write per line: the search never reads a permanently incomplete line.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")


class LoneTrial(Trial):
    """Trial of a program outside a search; reports are dropped."""

    def __init__(self) -> None:
        self.params = {}
        self.seed = 0
        self.resumed = False
        self.epochs_done = 0.0
        self._folder: Path | None = None

    @property
    def checkpoint(self) -> Path:  # type: ignore[override]  # made only when it is used
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="wattloop-trial-"))
        return self._folder

    def step(self, units: float = 1.0) -> None: ...

    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None: ...

    def _count_epochs(self) -> None: ...

    def _end_epoch(self) -> None: ...
