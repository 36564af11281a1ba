"""Search space: kinds of parameters, links, conditions and sampling."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

from wattloop.control.lever import Setting
from wattloop.core.errors import ConfigError
from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np


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
        """Return every value; None when there are too many to list."""

    @abstractmethod
    def draw(self, rng: "np.random.Generator") -> Value:
        """Draw a random value."""

    @abstractmethod
    def checked(self, value: Value) -> Value:
        """Return the value in the parameter's own type."""


def same_value(one: Value, other: Value) -> bool:
    """Return whether two values are the same: `True` is not 1, but 1.0 is."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


MOST_LISTED = 1_000
"""Ranges with more values than this are not listed."""


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter):
    """Parameter with listed values, in the order given."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("no values; give at least one")
        for value in self.values:
            _check_plain(value)
        if len({(type(v) is bool, v) for v in self.values}) < len(self.values):
            raise ConfigError(f"values {list(self.values)}: one is given twice")

    def listed(self) -> tuple[Value, ...]:
        return self.values

    def draw(self, rng: "np.random.Generator") -> Value:
        return self.values[int(rng.integers(len(self.values)))]

    def checked(self, value: Value) -> Value:
        for known in self.values:
            if same_value(known, value):
                return known
        raise ConfigError(f"{value!r} is none of {', '.join(repr(v) for v in self.values)}")


@dataclass(frozen=True, kw_only=True)
class Fixed(Parameter):
    """Parameter with a single value."""

    value: Value

    def __post_init__(self) -> None:
        _check_plain(self.value)

    def listed(self) -> tuple[Value, ...]:
        return (self.value,)

    def draw(self, rng: "np.random.Generator") -> Value:
        return self.value

    def checked(self, value: Value) -> Value:
        if not same_value(value, self.value):
            raise ConfigError(f"{value!r}: it is fixed to {self.value!r}")
        return self.value


@dataclass(frozen=True, kw_only=True)
class Linked(Parameter):
    """Parameter that equals another one (the evaluation batch is the training batch)."""

    same_as: str

    def listed(self) -> tuple[Value, ...]:
        return (None,)

    def draw(self, rng: "np.random.Generator") -> Value:
        return None

    def checked(self, value: Value) -> Value:
        """Return the value; the other parameter checks it."""
        return value


@dataclass(frozen=True, kw_only=True)
class Integer(Parameter):
    """Whole number from `low` to `high`, both included."""

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
        return (self.high - self.low) // self.step + 1

    def listed(self) -> tuple[Value, ...] | None:
        if self.count > MOST_LISTED:
            return None
        return tuple(range(self.low, self.high + 1, self.step))

    def draw(self, rng: "np.random.Generator") -> Value:
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(max(round(drawn), self.low), self.high)
        return self.low + self.step * int(rng.integers(self.count))

    def checked(self, value: Value) -> Value:
        if not _is_number(value) or value != int(value):
            raise ConfigError(f"{value!r} is not a whole number")
        if not self.low <= value <= self.high or (int(value) - self.low) % self.step:
            steps = f" in steps of {self.step}" if self.step > 1 else ""
            raise ConfigError(f"{value!r} is outside {self.low} to {self.high}{steps}")
        return int(value)


@dataclass(frozen=True, kw_only=True)
class Real(Parameter):
    """Number from `low` to `high`; with a step, only `low + i step`, whole where both are."""

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
        """Return the number of values; None for a continuum."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return None
        # 0.9 in steps of 0.1 from 0 has ten values, though 0.9 / 0.1 is a little below 9
        return math.floor((self.high - self.low) / self.step * (1 + 1e-12) + 1e-9) + 1

    def listed(self) -> tuple[Value, ...] | None:
        count = self.count
        if count is None or count > MOST_LISTED:
            return None
        return tuple(self._at(index) for index in range(count))

    def draw(self, rng: "np.random.Generator") -> Value:
        if not self.log and self.step is not None:
            return self._at(int(rng.integers(self.count or 1)))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = float(rng.uniform(self.low, self.high))
        return self.nearest(drawn)

    def nearest(self, value: float) -> float:
        within = float(min(max(value, self.low), self.high))
        if self.step is None:
            return within
        count = self.count or 1
        return self._at(min(round((within - self.low) / self.step), count - 1))

    def checked(self, value: Value) -> Value:
        if not _is_number(value):
            raise ConfigError(f"{value!r} is not a number")
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
        # 24.0 is not a valid batch size for a program that takes integers
        if isinstance(value, int):
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


class SpaceError(ConfigError):
    """Error of one parameter that contradicts the others."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter, self.message = parameter, message


def dependencies_first(parameters: Mapping[str, Parameter]) -> list[str]:
    """Sort names so that each comes after those it depends on, otherwise in their own order."""
    needs = {name: _needs(name, parameters) for name in parameters}
    order: list[str] = []
    while len(order) < len(needs):
        ready = (n for n, others in needs.items() if n not in order and others <= set(order))
        found = next(ready, None)
        if found is None:
            circle = [n for n in needs if n not in order]
            raise SpaceError(
                circle[0], f"parameters depend on each other in a circle: {', '.join(circle)}"
            )
        order.append(found)
    for name in parameters:
        _check_values(name, parameters)
    return order


def _needs(name: str, parameters: Mapping[str, Parameter]) -> set[str]:
    parameter = parameters[name]
    others = set(parameter.when)
    if isinstance(parameter, Linked):
        others.add(parameter.same_as)
    for other in others:
        if other not in parameters:
            raise SpaceError(name, f"it depends on '{other}', which is not in this space")
    return others


def _check_values(name: str, parameters: Mapping[str, Parameter]) -> None:
    for other, values in parameters[name].when.items():
        if not values:
            raise SpaceError(name, f"when {other}: no value; give at least one")
        decider = parameters[other]
        while isinstance(decider, Linked):
            decider = parameters[decider.same_as]
        for value in values:
            try:
                decider.checked(value)
            except ConfigError:
                raise SpaceError(name, f"when {other} is {value!r}, which it never is") from None


Configuration = dict[str, Value]
MOST_LOOKED_AT = 10_000
"""Largest number of combinations that are searched for conditions that never hold."""


class Space:
    """The configurations that a search chooses among.

    Args:
        parameters: by name. Their order is that of a grid: the last one varies fastest.

    Raises:
        ConfigError: a link or condition on an unknown parameter, a condition that
            never holds, or parameters that depend on each other in a circle.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = dict(parameters)
        self.order = tuple(dependencies_first(self.parameters))
        """Names, each after those it depends on."""
        self._deciders = tuple(
            name for name in self.order if any(name in p.when for p in parameters.values())
        )
        self._independent = not any(p.when or isinstance(p, Linked) for p in parameters.values())
        self._check_conditions()

    @cached_property
    def hardware(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.parameters.items() if p.lever)

    @property
    def varied(self) -> tuple[str, ...]:
        """Return the parameters with more than one value of their own."""
        counts = {name: p.listed() for name, p in self.parameters.items()}
        return tuple(name for name, values in counts.items() if values is None or len(values) > 1)

    @property
    def size(self) -> int | None:
        """Return the number of configurations; None when they cannot be counted."""
        counts = {name: p.listed() for name, p in self.parameters.items()}
        if any(values is None for values in counts.values()):
            return None
        total = 0
        for decided in self._branches(self._closed(self._deciders)):
            count = 1
            for name, values in counts.items():
                if name not in self._closed(self._deciders) and self.active(name, decided):
                    count *= len(values or ())
            total += count
        return total

    def grid(self) -> Iterator[Configuration]:
        """Yield every configuration once."""
        for name, parameter in self.parameters.items():
            if parameter.listed() is None:
                raise SpaceError(name, "a grid needs values to list, not a range: give 'values'")
        return self._branches(self.order)

    def sample(self, rng: "np.random.Generator") -> Configuration:
        drawn = {name: p.draw(rng) for name, p in self.parameters.items()}
        return drawn if self._independent else self._resolved(drawn)

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """Return `values` with linked and fixed parameters added and inactive ones left out.

        Raises:
            ConfigError: a parameter is unknown, missing, or has a value it may not have.
        """
        drawn: Configuration = {}
        for name in values:
            if name not in self.parameters:
                raise SpaceError(
                    name, f"no parameter of this space; it has {', '.join(self.parameters)}"
                )
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Linked):
                continue
            if name in values:
                drawn[name] = self._checked(name, values[name])
            elif isinstance(parameter, Fixed):
                drawn[name] = parameter.value
        found = self._resolved(drawn)
        for name, parameter in self.parameters.items():
            if isinstance(parameter, Linked) and name in found and name in values:
                given, due = values[name], found[name]
                if not same_value(given, due):
                    raise SpaceError(
                        name,
                        f"it is {given!r}, but always the same as {parameter.same_as}, which is "
                        f"{due!r}",
                    )
        return found

    def contains(self, values: Mapping[str, Value]) -> bool:
        try:
            self.complete(values)
        except ConfigError:
            return False
        return True

    def split(self, configuration: Mapping[str, Value]) -> tuple[Configuration, dict[str, Setting]]:
        """Split into parameters of the training and hardware parameters, by name."""
        hardware = self.hardware
        own = {name: value for name, value in configuration.items() if name not in hardware}
        levers = {name: configuration[name] for name in hardware if name in configuration}
        return own, levers

    def _checked(self, name: str, value: Value) -> Value:
        try:
            return self.parameters[name].checked(value)
        except ConfigError as error:
            raise SpaceError(name, str(error)) from None

    def active(self, name: str, found: Mapping[str, Value]) -> bool:
        parameter = self.parameters[name]
        if isinstance(parameter, Linked) and parameter.same_as not in found:
            return False
        return all(
            other in found and any(same_value(found[other], value) for value in values)
            for other, values in parameter.when.items()
        )

    def _resolved(self, drawn: Mapping[str, Value]) -> Configuration:
        """Return only active parameters, linked ones filled in, in the order of the space."""
        if self._independent and len(drawn) == len(self.parameters):
            return {name: drawn[name] for name in self.parameters}
        found: Configuration = {}
        for name in self.order:
            if not self.active(name, found):
                continue
            parameter = self.parameters[name]
            if isinstance(parameter, Linked):
                found[name] = found[parameter.same_as]
            elif name in drawn:
                found[name] = drawn[name]
            else:
                raise SpaceError(name, "no value; give one of the space")
        return {name: found[name] for name in self.parameters if name in found}

    def _branches(self, names: Sequence[str]) -> Iterator[Configuration]:
        """Yield every combination of `names`, which come in order; inactive ones are left out."""
        if not any(self.parameters[name].when for name in names) and names == self.order:
            yield from self._plain_grid()
            return
        yield from self._branch(tuple(names), {})

    def _branch(self, names: tuple[str, ...], found: Configuration) -> Iterator[Configuration]:
        if not names:
            yield {name: found[name] for name in self.parameters if name in found}
            return
        name, *rest = names
        if not self.active(name, found):
            yield from self._branch(tuple(rest), found)
            return
        parameter = self.parameters[name]
        if isinstance(parameter, Linked):
            values: tuple[Value, ...] = (found[parameter.same_as],)
        else:
            values = parameter.listed() or ()
        for value in values:
            yield from self._branch(tuple(rest), {**found, name: value})

    def _plain_grid(self) -> Iterator[Configuration]:
        listed = [self.parameters[name].listed() or () for name in self.parameters]
        for values in itertools.product(*listed):
            yield self._resolved(dict(zip(self.parameters, values, strict=True)))

    def _closed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return `names` and all they are linked to, in order."""
        wanted = set(names)
        for name in reversed(self.order):
            parameter = self.parameters[name]
            if name in wanted and isinstance(parameter, Linked):
                wanted.add(parameter.same_as)
        return tuple(name for name in self.order if name in wanted)

    def _check_conditions(self) -> None:
        deciders = self._closed(self._deciders)
        combinations = 1
        for name in deciders:
            combinations *= len(self.parameters[name].listed() or range(MOST_LOOKED_AT + 1))
        if combinations > MOST_LOOKED_AT:
            return
        never = {name for name, p in self.parameters.items() if p.when}
        for decided in self._branches(deciders):
            never -= {name for name in never if self.active(name, decided)}
        for name in self.parameters:
            if name in never and not isinstance(self.parameters[name], Linked):
                raise SpaceError(name, "it never exists: its conditions never hold together")


def configuration_key(configuration: Mapping[str, Value]) -> str:
    """Return the same text for the same configuration: `batch_size=64 optimizer='adam'`."""
    return " ".join([f"{name}={configuration[name]!r}" for name in sorted(configuration)])
