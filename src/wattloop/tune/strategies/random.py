"""Configurations at random."""

import numpy as np

from wattloop.tune.problem import Problem
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.one_by_one import OneByOne, check_ends, drawn

__all__ = ["Random"]


class Random(OneByOne):
    """Trains random configurations, the default first, none twice.

    Raises:
        ConfigError: nothing ends it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        check_ends(problem, "random")
        self._rng = np.random.default_rng(problem.seed)

    def propose(self) -> Configuration | None:
        """A draw that is new."""
        return drawn(self.problem, self.ledger, self._rng)
