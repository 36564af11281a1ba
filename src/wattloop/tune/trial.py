"""The trial that a training gets: its parameters, where it reports, and the current trial."""

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
from wattloop.tune.executors.ipc import TrialChannel
from wattloop.tune.segment import Value

# What a training function is given: its parameters, and where it reports.
#
# def train(trial):
#     model = Model(trial["width"])
#     for epoch in trial.epochs(20):
#         ...
#         trial.report(accuracy=evaluate(model))

T = TypeVar("T")


class TrialStopped(BaseException):
    """The search does not go on with this training. Not an Exception: nothing should catch it, but
    `finally` blocks run.
    """


class Trial(ABC):
    """One training of a search, seen from inside.

    Attributes:
        params: the configuration.
        seed: of everything random in it; Python, numpy and torch are seeded already.
        checkpoint: a folder of its own; files there survive a kill. Save before reporting.
        resumed: whether files from before are in that folder, to go on from.
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
        """A parameter, or `default` where this configuration has none of that name."""
        return self.params.get(name, default)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Numbers of the epochs to train, from 0, or from where a checkpoint was saved.

        The training may be paused, for a long time, between any two of them. Without `count` it
        goes on as long as the search wants it to.
        """
        self._count_epochs()
        epoch = int(self.epochs_done)
        while count is None or epoch < count:
            yield epoch
            epoch += 1
            self._end_epoch()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of an epoch, each counted as a step when the next one is asked for."""
        length = getattr(batches, "__len__", None)
        if length is not None:
            self.expect_steps(float(length()))
        for batch in batches:
            yield batch
            self.step()

    def report(self, *, epoch: float | None = None, **metrics: Any) -> None:
        """How good it is, and whatever else is worth keeping.

        Outside `epochs()` each report of the search's metric ends an epoch, and the training may be
        paused in it.
        """
        self._report(numbers_of(metrics), epoch)

    def expect_steps(self, count: float) -> None:
        """So many steps make an epoch: then it is known how far an epoch is."""

    @abstractmethod
    def step(self, units: float = 1.0) -> None:
        """A step of the training has ended; feeds the search for a power cap. Costs next to
        nothing.
        """

    @abstractmethod
    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Hand numbers over; may pause."""

    @abstractmethod
    def _count_epochs(self) -> None:
        """The training says where its epochs end."""

    @abstractmethod
    def _end_epoch(self) -> None:
        """An epoch has ended; may pause."""


def numbers_of(metrics: Mapping[str, object]) -> dict[str, float]:
    """Numbers, also from tensors or arrays with one element; None is not reported."""
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


# The training that is going on, for code that was not handed a trial.
#
# from wattloop.tune import current_trial
#
# trial = current_trial()
# lr = trial.get("lr", 0.1)
# for epoch in trial.epochs(20):
#     ...
#     trial.report(accuracy=accuracy)
#
# The same lines work in a function that `wattloop.tune.search` calls, in a program that
# `wattloop tune run` starts, and in one that a person starts, where reports go nowhere.

REPORTS_VARIABLE = "WATTLOOP_REPORTS"


SAY_STEPS_EVERY_S = 0.05


trial_here: contextvars.ContextVar[Trial | None] = contextvars.ContextVar(
    "wattloop_trial", default=None
)


"""Set in the thread of a function that is being trained."""


_of_program: list[Trial] = []


def current_trial() -> Trial:
    """The trial of this function or program; one that nobody listens to outside of a search."""
    own = trial_here.get()
    if own is not None:
        return own
    if not _of_program:
        searched = REPORTS_VARIABLE in os.environ
        _of_program.append(ProgramTrial() if searched else LoneTrial())
    return _of_program[0]


class ProgramTrial(Trial):
    """In a program that a search has started: reports go into a file that the search follows."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        env = os.environ if environment is None else environment
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
        # in a job of several processes the first one speaks for all
        self._silent = env.get("RANK", "0") not in ("", "0")
        self._bell = None if self._silent else TrialChannel(self._path)
        self._write({"wattloop": "begins"})

    def step(self, units: float = 1.0) -> None:
        """Counted, and said twenty times a second; may wait where the search asks for it."""
        self._steps += units
        now_s = time.monotonic()
        if now_s >= self._say_at_s:
            self._say_at_s = now_s + SAY_STEPS_EVERY_S
            self._say_steps()
            if self._bell is not None and self._bell.is_to_pause():
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
        """Say something after which the search may want a pause."""
        self._write({**data, "wattloop.waits": True})
        if self._bell is not None:
            self._bell.ring()
            if not self._bell.may_go_on():
                raise TrialStopped

    def _write(self, data: Mapping[str, object]) -> None:
        if not self._silent:
            # one write each: the search never sees half a line that stays half
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")


class LoneTrial(Trial):
    """In a program that a person has started: nobody listens."""

    def __init__(self) -> None:
        self.params = {}
        self.seed = 0
        self.resumed = False
        self.epochs_done = 0.0
        self._folder: Path | None = None

    @property
    def checkpoint(self) -> Path:  # type: ignore[override]  # made only when it is used
        """A folder for this run alone."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="wattloop-trial-"))
        return self._folder

    def step(self, units: float = 1.0) -> None:
        """Nobody listens."""

    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Nobody listens."""

    def _count_epochs(self) -> None:
        """Nobody listens."""

    def _end_epoch(self) -> None:
        """Nobody listens."""
