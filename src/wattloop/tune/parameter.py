"""What every kind of parameter says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Parameter", "same"]


@dataclass(frozen=True, kw_only=True)
class Parameter(ABC):
    """One parameter of a space.

    Attributes:
        when: other parameter -> values of it under which this one exists; empty for always.
        lever: the lever or group of levers that it sets (`gpu/power_limit`), or `gpus` for the
            number of GPUs; empty for a parameter of the training.
    """

    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    lever: str = ""

    @abstractmethod
    def listed(self) -> tuple[Value, ...] | None:
        """Every value; None when there are too many to list."""

    @abstractmethod
    def draw(self, rng: "np.random.Generator") -> Value:
        """A random value."""

    @abstractmethod
    def checked(self, value: Value) -> Value:
        """The value as this parameter keeps it.

        Raises:
            ConfigError: it may not have that value.
        """


def same(one: Value, other: Value) -> bool:
    """Whether two values are the same: `True` is not 1, but 1.0 is."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
