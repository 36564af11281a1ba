"""Which parameter depends on which: links and conditions."""

from collections.abc import Mapping

from wattloop.core.errors import ConfigError
from wattloop.tune.parameters import Linked, Parameter

__all__ = ["SpaceError", "dependencies_first"]


class SpaceError(ConfigError):
    """One parameter does not go with the others."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter, self.message = parameter, message


def dependencies_first(parameters: Mapping[str, Parameter]) -> list[str]:
    """Names such that each comes after those it depends on, otherwise in their own order.

    Raises:
        SpaceError: a parameter depends on one that is not there, on a value that it never has, or
            on itself.
    """
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
            raise SpaceError(name, f"it depends on '{other}', which is no parameter of this space")
    return others


def _check_values(name: str, parameters: Mapping[str, Parameter]) -> None:
    """The values a condition waits for must be values of the other parameter."""
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
