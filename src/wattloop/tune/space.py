"""All parameters of a search together."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from wattloop.control.lever import Setting
from wattloop.core.errors import ConfigError
from wattloop.tune.dependencies import SpaceError, dependencies_first
from wattloop.tune.parameters import Fixed, Linked, Parameter, same
from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Configuration", "Space", "SpaceError", "configuration_key"]

Configuration = dict[str, Value]

MOST_LOOKED_AT = 10_000
"""Combinations of deciding values up to which conditions that never hold are looked for."""


class Space:
    """The configurations that a search chooses among.

    Args:
        parameters: by name. Their order is that of a grid: the last one varies fastest.

    Raises:
        ConfigError: a link or condition on something that is not there, a condition that
            never holds, or parameters that depend on each other in a circle.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = dict(parameters)
        self._order = dependencies_first(self.parameters)
        self._deciders = tuple(
            name for name in self._order if any(name in p.when for p in parameters.values())
        )
        self._independent = not any(p.when or isinstance(p, Linked) for p in parameters.values())
        self._check_conditions()

    @cached_property
    def hardware(self) -> tuple[str, ...]:
        """Parameters that are levers, or the number of GPUs."""
        return tuple(name for name, p in self.parameters.items() if p.lever)

    @property
    def varied(self) -> tuple[str, ...]:
        """Parameters with more than one value of their own."""
        counts = {name: p.listed() for name, p in self.parameters.items()}
        return tuple(name for name, values in counts.items() if values is None or len(values) > 1)

    @property
    def size(self) -> int | None:
        """How many configurations there are; None when they cannot be counted."""
        counts = {name: p.listed() for name, p in self.parameters.items()}
        if any(values is None for values in counts.values()):
            return None
        total = 0
        for decided in self._branches(self._closed(self._deciders)):
            count = 1
            for name, values in counts.items():
                if name not in self._closed(self._deciders) and self._active(name, decided):
                    count *= len(values or ())
            total += count
        return total

    def grid(self) -> Iterator[Configuration]:
        """Every configuration once.

        Raises:
            ConfigError: a parameter has too many values to list.
        """
        for name, parameter in self.parameters.items():
            if parameter.listed() is None:
                raise SpaceError(name, "a grid needs values to list, not a range: give 'values'")
        return self._branches(self._order)

    def sample(self, rng: "np.random.Generator") -> Configuration:
        """A random configuration."""
        drawn = {name: p.draw(rng) for name, p in self.parameters.items()}
        return drawn if self._independent else self._resolved(drawn)

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """`values` with linked and fixed parameters added and inactive ones left out.

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
                if not same(given, due):
                    raise SpaceError(
                        name,
                        f"it is {given!r}, but always the same as {parameter.same_as}, which is "
                        f"{due!r}",
                    )
        return found

    def contains(self, values: Mapping[str, Value]) -> bool:
        """Whether it is one of these configurations."""
        try:
            self.complete(values)
        except ConfigError:
            return False
        return True

    def split(self, configuration: Mapping[str, Value]) -> tuple[Configuration, dict[str, Setting]]:
        """Parameters of the training, and values of hardware parameters by their names here."""
        hardware = self.hardware
        own = {name: value for name, value in configuration.items() if name not in hardware}
        levers = {name: configuration[name] for name in hardware if name in configuration}
        return own, levers

    def active(self, name: str, found: Mapping[str, Value]) -> bool:
        """Whether a parameter exists beside the values found so far of those it depends on."""
        return self._active(name, found)

    @property
    def order(self) -> tuple[str, ...]:
        """Names such that each comes after those it depends on."""
        return tuple(self._order)

    # -- inside ----------------------------------------------------------------------------

    def _checked(self, name: str, value: Value) -> Value:
        try:
            return self.parameters[name].checked(value)
        except ConfigError as error:
            raise SpaceError(name, str(error)) from None

    def _active(self, name: str, found: Mapping[str, Value]) -> bool:
        parameter = self.parameters[name]
        if isinstance(parameter, Linked) and parameter.same_as not in found:
            return False
        return all(
            other in found and any(same(found[other], value) for value in values)
            for other, values in parameter.when.items()
        )

    def _resolved(self, drawn: Mapping[str, Value]) -> Configuration:
        """Only active parameters, linked ones filled in, in the order of the space."""
        if self._independent and len(drawn) == len(self.parameters):
            return {name: drawn[name] for name in self.parameters}
        found: Configuration = {}
        for name in self._order:
            if not self._active(name, found):
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
        """Every combination of `names`, which come in order; inactive ones are left out."""
        if not any(self.parameters[name].when for name in names) and names == self._order:
            yield from self._plain_grid()
            return
        yield from self._branch(tuple(names), {})

    def _branch(self, names: tuple[str, ...], found: Configuration) -> Iterator[Configuration]:
        if not names:
            yield {name: found[name] for name in self.parameters if name in found}
            return
        name, *rest = names
        if not self._active(name, found):
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
        """`names` and all they are linked to, in order."""
        wanted = set(names)
        for name in reversed(self._order):
            parameter = self.parameters[name]
            if name in wanted and isinstance(parameter, Linked):
                wanted.add(parameter.same_as)
        return tuple(name for name in self._order if name in wanted)

    def _check_conditions(self) -> None:
        """No parameter may be one that never exists."""
        deciders = self._closed(self._deciders)
        combinations = 1
        for name in deciders:
            combinations *= len(self.parameters[name].listed() or range(MOST_LOOKED_AT + 1))
        if combinations > MOST_LOOKED_AT:
            return
        never = {name for name, p in self.parameters.items() if p.when}
        for decided in self._branches(deciders):
            never -= {name for name in never if self._active(name, decided)}
        for name in self.parameters:
            if name in never and not isinstance(self.parameters[name], Linked):
                raise SpaceError(name, "it never exists: its conditions never hold together")


def configuration_key(configuration: Mapping[str, Value]) -> str:
    """The same text for the same configuration: `batch_size=64 optimizer='adam'`."""
    return " ".join([f"{name}={configuration[name]!r}" for name in sorted(configuration)])
