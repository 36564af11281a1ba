"""Kinds of parameters: what each may be, how it is drawn, and how it is listed."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError
from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Choice", "Fixed", "Integer", "Linked", "Parameter", "Real"]


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


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter):
    """One of some values, in the order given."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("no values; give at least one")
        if len({(type(v) is bool, v) for v in self.values}) < len(self.values):
            raise ConfigError(f"values {list(self.values)}: one is given twice")

    def listed(self) -> tuple[Value, ...]:
        """All of them."""
        return self.values

    def draw(self, rng: "np.random.Generator") -> Value:
        """Each as likely as the others."""
        return self.values[int(rng.integers(len(self.values)))]

    def checked(self, value: Value) -> Value:
        """The listed value that equals it."""
        for known in self.values:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return known
        raise ConfigError(f"{value!r} is none of {', '.join(repr(v) for v in self.values)}")


@dataclass(frozen=True, kw_only=True)
class Fixed(Parameter):
    """Always the same."""

    value: Value

    def listed(self) -> tuple[Value, ...]:
        """The one value."""
        return (self.value,)

    def draw(self, rng: "np.random.Generator") -> Value:
        """The one value."""
        return self.value

    def checked(self, value: Value) -> Value:
        """The one value."""
        if value != self.value:
            raise ConfigError(f"{value!r}: it is fixed to {self.value!r}")
        return self.value


@dataclass(frozen=True, kw_only=True)
class Linked(Parameter):
    """Always what another parameter is (the evaluation batch is the training batch)."""

    same_as: str

    def listed(self) -> tuple[Value, ...]:
        """Nothing of its own."""
        return (None,)

    def draw(self, rng: "np.random.Generator") -> Value:
        """Nothing of its own."""
        return None

    def checked(self, value: Value) -> Value:
        """Checked by the other one."""
        return value


@dataclass(frozen=True, kw_only=True)
class Integer(Parameter):
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)
        if self.step < 1 or (self.log and self.step != 1):
            raise ConfigError(f"step {self.step}: use 1 or more, and none on a logarithmic scale")

    def listed(self) -> tuple[Value, ...] | None:
        """All, where there are at most a thousand."""
        count = (self.high - self.low) // self.step + 1
        return tuple(range(self.low, self.high + 1, self.step)) if count <= 1000 else None

    def draw(self, rng: "np.random.Generator") -> Value:
        """Uniform, or uniform in its logarithm."""
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(max(round(drawn), self.low), self.high)
        count = (self.high - self.low) // self.step + 1
        return self.low + self.step * int(rng.integers(count))

    def checked(self, value: Value) -> Value:
        """A whole number within the range, on a step."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ConfigError(f"{value!r} is no whole number")
        if not self.low <= value <= self.high or (int(value) - self.low) % self.step:
            steps = f" in steps of {self.step}" if self.step > 1 else ""
            raise ConfigError(f"{value!r} is outside {self.low} to {self.high}{steps}")
        return int(value)


@dataclass(frozen=True, kw_only=True)
class Real(Parameter):
    """A number from `low` to `high`."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)

    def listed(self) -> tuple[Value, ...] | None:
        """Too many."""
        return None

    def draw(self, rng: "np.random.Generator") -> Value:
        """Uniform, or uniform in its logarithm."""
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return float(min(max(drawn, self.low), self.high))
        return float(rng.uniform(self.low, self.high))

    def checked(self, value: Value) -> Value:
        """A number within the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{value!r} is no number")
        if not self.low <= value <= self.high:
            raise ConfigError(f"{value!r} is outside {self.low:g} to {self.high:g}")
        return float(value)


def _check_range(low: float, high: float, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"from {low} to {high}: both ends must be numbers")
    if low > high:
        raise ConfigError(f"min {low:g} is above max {high:g}")
    if log and low <= 0:
        raise ConfigError(f"min {low:g}: a logarithmic scale begins above 0")
