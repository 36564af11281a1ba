"""The default configuration, made whole."""

from collections.abc import Mapping

from wattloop.tune.parameters import Choice
from wattloop.tune.segment import Value
from wattloop.tune.space import Configuration, Space

__all__ = ["whole_default"]


def whole_default(space: Space, given: Mapping[str, Value]) -> Configuration:
    """The configuration that people use today; empty when none is given.

    A cap or clock that it does not name is the highest of those listed, since that is how a
    device leaves the factory.

    Raises:
        ConfigError: it is not a configuration of the space.
    """
    if not given:
        return {}
    values = dict(given)
    for name in space.hardware:
        if name not in values and name != "gpus":
            highest = _highest(space.parameters[name])
            if highest is not None:
                values[name] = highest
    return space.complete(values)


def _highest(parameter: object) -> Value:
    """The factory's value, as far as the list shows it; None when it does not."""
    if not isinstance(parameter, Choice):
        return None
    if "default" in parameter.values:
        return "default"
    sizes: dict[Value, float] = {}
    for value in parameter.values:
        text = str(value)
        digits = text.rstrip("%WMHzGk ")
        try:
            sizes[value] = float(digits)
        except ValueError:
            return None
    units = {str(value).lstrip("0123456789. ") for value in parameter.values}
    return max(sizes, key=lambda value: sizes[value]) if len(units) == 1 else None
