"""Kinds of parameters: what each may be, how it is drawn, and how it is listed."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from wattloop.core.errors import ConfigError
from wattloop.tune.parameter import Parameter, same
from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Choice", "Fixed", "Integer", "Linked", "Parameter", "Real", "same"]

MOST_LISTED = 1_000
"""Ranges with more values than this are not listed."""


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter):
    """One of some values, in the order given."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("no values; give at least one")
        for value in self.values:
            _check_plain(value)
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
            if same(known, value):
                return known
        raise ConfigError(f"{value!r} is none of {', '.join(repr(v) for v in self.values)}")


@dataclass(frozen=True, kw_only=True)
class Fixed(Parameter):
    """Always the same."""

    value: Value

    def __post_init__(self) -> None:
        _check_plain(self.value)

    def listed(self) -> tuple[Value, ...]:
        """The one value."""
        return (self.value,)

    def draw(self, rng: "np.random.Generator") -> Value:
        """The one value."""
        return self.value

    def checked(self, value: Value) -> Value:
        """The one value."""
        if not same(value, self.value):
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
        if self.low != int(self.low) or self.high != int(self.high):
            raise ConfigError(f"from {self.low} to {self.high}: both ends must be whole numbers")
        if self.step < 1 or self.step != int(self.step) or (self.log and self.step != 1):
            raise ConfigError(
                f"step {self.step}: use 1, 2, 3, ..., and none on a logarithmic scale"
            )

    @property
    def count(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def listed(self) -> tuple[Value, ...] | None:
        """All, where there are at most a thousand."""
        if self.count > MOST_LISTED:
            return None
        return tuple(range(self.low, self.high + 1, self.step))

    def draw(self, rng: "np.random.Generator") -> Value:
        """Uniform, or uniform in its logarithm."""
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(max(round(drawn), self.low), self.high)
        return self.low + self.step * int(rng.integers(self.count))

    def checked(self, value: Value) -> Value:
        """A whole number within the range, on a step."""
        if not _is_number(value) or value != int(value):
            raise ConfigError(f"{value!r} is no whole number")
        if not self.low <= value <= self.high or (int(value) - self.low) % self.step:
            steps = f" in steps of {self.step}" if self.step > 1 else ""
            raise ConfigError(f"{value!r} is outside {self.low} to {self.high}{steps}")
        return int(value)


@dataclass(frozen=True, kw_only=True)
class Real(Parameter):
    """A number from `low` to `high`; with a step, only `low + i step`, whole where both are."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.log)
        if self.step is not None and not (math.isfinite(self.step) and self.step > 0):
            raise ConfigError(f"step {self.step:g}: use a number above 0")

    @property
    def count(self) -> int | None:
        """How many values there are; None for a continuum."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return None
        # 0.9 in steps of 0.1 from 0 has ten values, though 0.9 / 0.1 is a little below 9
        return math.floor((self.high - self.low) / self.step * (1 + 1e-12) + 1e-9) + 1

    def listed(self) -> tuple[Value, ...] | None:
        """All steps, where there are at most a thousand."""
        count = self.count
        if count is None or count > MOST_LISTED:
            return None
        return tuple(self._at(index) for index in range(count))

    def draw(self, rng: "np.random.Generator") -> Value:
        """Uniform, or uniform in its logarithm; rounded to a step."""
        if not self.log and self.step is not None:
            return self._at(int(rng.integers(self.count or 1)))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = float(rng.uniform(self.low, self.high))
        return self.nearest(drawn)

    def nearest(self, value: float) -> float:
        """The allowed value that is nearest."""
        within = float(min(max(value, self.low), self.high))
        if self.step is None:
            return within
        count = self.count or 1
        return self._at(min(round((within - self.low) / self.step), count - 1))

    def checked(self, value: Value) -> Value:
        """A number within the range, on a step."""
        if not _is_number(value):
            raise ConfigError(f"{value!r} is no number")
        nearest = self.nearest(value)
        if self.step is not None and abs(nearest - value) <= 1e-6 * self.step:
            return nearest
        if not self.low <= value <= self.high:
            raise ConfigError(f"{value!r} is outside {self.low:g} to {self.high:g}")
        if self.step is not None:
            raise ConfigError(
                f"{value!r} is on no step of {self.step:g} from {self.low:g}; near is {nearest:g}"
            )
        return float(value)

    def _at(self, index: int) -> float:
        if self.step is None:
            return float(self.low)
        value = self.low + index * self.step
        if isinstance(value, int):  # 24.0 is no batch size for a program that takes whole numbers
            return value
        # without rounding, the third step of 0.1 would be 0.30000000000000004
        return float(f"{value:.12g}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_plain(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value}: give finite numbers")
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{value!r}: a value is a number, a text, true, false or null")


def _check_range(low: float, high: float, log: bool) -> None:
    if not (_is_number(low) and _is_number(high)):
        raise ConfigError(f"from {low} to {high}: both ends must be numbers")
    if low > high:
        raise ConfigError(f"min {low:g} is above max {high:g}")
    if log and low <= 0:
        raise ConfigError(f"min {low:g}: a logarithmic scale begins above 0")
