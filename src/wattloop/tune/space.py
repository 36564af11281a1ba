"""All parameters of a search together."""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError
from wattloop.tune.parameters import Choice, Fixed, Linked, Parameter
from wattloop.tune.segment import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Configuration", "Space", "configuration_key"]

Configuration = dict[str, Value]


class Space:
    """The configurations that a search chooses among.

    Args:
        parameters: by name. Their order is that of a grid: the last one varies fastest.

    Raises:
        ConfigError: empty, a link or condition on something that is not there, or in a circle.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        if not parameters:
            raise ConfigError("the space is empty: give at least one parameter")
        self.parameters = dict(parameters)
        self._order = _dependencies_first(self.parameters)

    @property
    def hardware(self) -> tuple[str, ...]:
        """Parameters that are levers, or the number of GPUs."""
        return tuple(name for name, p in self.parameters.items() if p.lever)

    @property
    def varied(self) -> tuple[str, ...]:
        """Parameters with more than one value of their own."""
        return tuple(
            name
            for name, p in self.parameters.items()
            if not isinstance(p, Fixed | Linked)
            and not (isinstance(p, Choice) and len(p.values) == 1)
        )

    @property
    def size(self) -> int | None:
        """How many configurations there are; None when they cannot be counted."""
        if any(p.listed() is None for p in self.parameters.values()):
            return None
        if not any(p.when for p in self.parameters.values()):
            count = 1
            for parameter in self.parameters.values():
                count *= len(parameter.listed() or ())
            return count
        return sum(1 for _ in self.grid())

    def grid(self) -> Iterator[Configuration]:
        """Every configuration once.

        Raises:
            ConfigError: a parameter has too many values to list.
        """
        listed = {name: p.listed() for name, p in self.parameters.items()}
        endless = [name for name, values in listed.items() if values is None]
        if endless:
            raise ConfigError(
                f"a grid needs values to list; {', '.join(endless)} has a range: give 'values'"
            )
        seen: set[str] = set()
        conditional = any(p.when for p in self.parameters.values())
        for values in itertools.product(*(values or () for values in listed.values())):
            drawn = dict(zip(listed, values, strict=True))
            found = self._resolved(drawn)
            if conditional:  # inactive parameters make several combinations the same
                key = configuration_key(found)
                if key in seen:
                    continue
                seen.add(key)
            yield found

    def sample(self, rng: "np.random.Generator") -> Configuration:
        """A random configuration."""
        return self._resolved({name: p.draw(rng) for name, p in self.parameters.items()})

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """`values` with linked and fixed parameters added and inactive ones left out.

        Raises:
            ConfigError: a parameter is unknown, missing, or has a value it may not have.
        """
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            raise ConfigError(
                f"unknown parameter '{unknown[0]}'; known are {', '.join(self.parameters)}"
            )
        drawn: Configuration = {}
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
                if given != due:
                    raise ConfigError(
                        f"{name} is {given!r}, but it is always the same as {parameter.same_as}, "
                        f"which is {due!r}"
                    )
        return found

    def contains(self, values: Mapping[str, Value]) -> bool:
        """Whether it is one of these configurations."""
        try:
            self.complete(values)
        except ConfigError:
            return False
        return True

    # -- inside ----------------------------------------------------------------------------

    def _checked(self, name: str, value: Value) -> Value:
        try:
            return self.parameters[name].checked(value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def _resolved(self, drawn: Mapping[str, Value]) -> Configuration:
        """Only active parameters, linked ones filled in, in the order of the space."""
        found: Configuration = {}
        for name in self._order:
            parameter = self.parameters[name]
            if not all(
                other in found and found[other] in values
                for other, values in parameter.when.items()
            ):
                continue
            if isinstance(parameter, Linked):
                if parameter.same_as in found:
                    found[name] = found[parameter.same_as]
            elif name in drawn:
                found[name] = drawn[name]
            else:
                raise ConfigError(f"{name}: no value; give one of the space")
        return {name: found[name] for name in self.parameters if name in found}


def configuration_key(configuration: Mapping[str, Value]) -> str:
    """The same text for the same configuration: `batch_size=64 optimizer='adam'`."""
    return " ".join(f"{name}={value!r}" for name, value in sorted(configuration.items()))


def _dependencies_first(parameters: Mapping[str, Parameter]) -> list[str]:
    needs: dict[str, set[str]] = {}
    for name, parameter in parameters.items():
        others = set(parameter.when)
        if isinstance(parameter, Linked):
            others.add(parameter.same_as)
        for other in others:
            if other not in parameters:
                raise ConfigError(
                    f"{name}: depends on '{other}', which is no parameter of this space"
                )
        for other, values in parameter.when.items():
            listed = parameters[other].listed()
            if listed is not None and not isinstance(parameters[other], Linked):
                never = [v for v in values if v not in listed]
                if never:
                    raise ConfigError(f"{name}: when {other} is {never[0]!r}, which it never is")
        needs[name] = others
    order: list[str] = []
    while len(order) < len(needs):
        ready = [n for n, others in needs.items() if n not in order and others <= set(order)]
        if not ready:
            circle = ", ".join(n for n in needs if n not in order)
            raise ConfigError(f"parameters depend on each other in a circle: {circle}")
        order += ready
    return order
