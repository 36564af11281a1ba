"""First configurations of SM2: batch sizes, as a rule."""

import math

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.space import Configuration, Real, Space, configuration_key

LOW, HIGH = 1e-3, 1.0
"""Rates of document 003."""
DRAWS = 50


def first_configurations(problem: Problem, most: int) -> list[Configuration]:
    """Return at most so many configurations, spread evenly over the grid, with the default.

    The learning rate is not varied here: sweeps decide it.
    """
    if most < 1:
        raise ConfigError(f"sm2: {most} configurations; give at least 1")
    space = problem.space
    rate = _first_rate(problem)
    others = {name: p for name, p in space.parameters.items() if name != problem.rate}
    if not others:
        return [{} if rate is None else {str(problem.rate): rate}]
    inner = Space(others)
    found = {configuration_key(c): c for c in _spread(inner, most, problem.seed)}
    if problem.default:
        default = {n: v for n, v in space.complete(problem.default).items() if n != problem.rate}
        key = configuration_key(default)
        if key not in found:
            while len(found) >= most:  # it replaces its neighbour, the last one
                found.popitem()
            found[key] = default
    configurations = list(found.values())
    if rate is not None:
        configurations = [{**c, str(problem.rate): rate} for c in configurations]
    return configurations


def rate_range(problem: Problem) -> tuple[float, float]:
    """Return the space's own range of the rate, else that of the document."""
    parameter = problem.space.parameters.get(problem.rate or "")
    if isinstance(parameter, Real):
        return parameter.low, parameter.high
    listed = parameter.listed() if parameter is not None else None
    numbers = [float(v) for v in listed or () if isinstance(v, int | float) and v > 0]
    if len(numbers) > 1:
        return min(numbers), max(numbers)
    return LOW, HIGH


def _spread(space: Space, most: int, seed: int) -> list[Configuration]:
    size = space.size
    if size is None:
        draw = np.random.default_rng([seed, 0x532])
        found: dict[str, Configuration] = {}
        for _ in range(DRAWS * most):
            if len(found) >= most:
                break
            drawn = space.sample(draw)
            found.setdefault(configuration_key(drawn), drawn)
        return list(found.values())
    if size <= most:
        return list(space.grid())
    places = {round(i * (size - 1) / max(most - 1, 1)) for i in range(most)}
    return [c for i, c in enumerate(space.grid()) if i in places]


def _first_rate(problem: Problem) -> Value:
    """Return the rate in the configuration until a sweep has decided."""
    if problem.rate is None:
        return None
    given = problem.default.get(problem.rate) if problem.default else None
    if given is not None:
        return given
    low, high = rate_range(problem)
    return math.sqrt(low * high)
