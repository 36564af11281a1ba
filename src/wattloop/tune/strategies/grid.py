"""Every configuration once."""

from collections.abc import Iterator

import numpy as np

from wattloop.tune.problem import Problem
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.one_by_one import OneByOne

__all__ = ["Grid"]


class Grid(OneByOne):
    """Trains every configuration of the space, the default first.

    Args:
        problem: its parameters must have values that can be listed.
        shuffle: in random order, so that a search that is cut short has seen some of everything.

    Raises:
        ConfigError: a parameter is a range.
    """

    def __init__(self, problem: Problem, *, shuffle: bool = False) -> None:
        super().__init__(problem)
        self._left: Iterator[Configuration] = problem.space.grid()
        if shuffle:
            listed = list(self._left)
            np.random.default_rng(problem.seed).shuffle(listed)
            self._left = iter(listed)

    def propose(self) -> Configuration | None:
        """The next in order."""
        return next((found for found in self._left if not self.ledger.seen(found)), None)
