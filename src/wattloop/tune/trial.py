"""What a training function is given: its parameters, and where it reports.

def train(trial):
    model = Model(trial["width"])
    for epoch in trial.epochs(20):
        ...
        trial.report(accuracy=evaluate(model))
"""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from wattloop.core.errors import ConfigError
from wattloop.tune.segment import Value

__all__ = ["Trial", "TrialStopped", "numbers_of"]


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
