"""Who is in the race: the default first, then all configurations, or a sample of them."""

from collections.abc import Mapping

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.space import configuration_key

__all__ = ["starters"]

TRIES = 20
"""Draws per configuration wanted, before a space counts as too small for so many."""


def starters(problem: Problem, most: int) -> list[dict[str, Value]]:
    """Complete configurations, the default first, no two the same.

    A learning rate that sweeps decide is the default's, so that configurations which differ in
    nothing else are one.

    Raises:
        ConfigError: the default is none of the space.
    """
    if most < 1:
        raise ConfigError(f"race: {most} candidates; give at least 1")
    space, draw = problem.space, np.random.default_rng([problem.seed, 0xACE])
    found: dict[str, dict[str, Value]] = {}

    def add(values: Mapping[str, Value]) -> None:
        values = dict(values)
        if problem.rate is not None and problem.rate in values and found:
            first = next(iter(found.values()))
            values[problem.rate] = first.get(problem.rate, values[problem.rate])
        found.setdefault(configuration_key(values), values)

    if problem.default:
        add(space.complete(problem.default))
    size = _countable(problem)
    if size is not None and size <= most:
        for values in space.grid():
            add(values)
        return list(found.values())[: max(most, size)]
    for _ in range(TRIES * most):
        if len(found) >= most:
            break
        add(space.sample(draw))
    return list(found.values())


def _countable(problem: Problem) -> int | None:
    """Size of the space without the learning rate that sweeps decide; None when endless."""
    space = problem.space
    listed = [
        len(values) if (values := parameter.listed()) is not None else None
        for name, parameter in space.parameters.items()
        if name != problem.rate
    ]
    if any(count is None for count in listed):
        return None
    if problem.rate is not None and space.parameters[problem.rate].listed() is None:
        return None
    product = 1
    for count in listed:
        product *= count or 1
    return product if product > 10_000 else space.size
