"""Hyperband: several ladders, from many configurations cut early to few that are trained long.

How soon quality tells is not known beforehand. Bracket s begins `eta**s` times as many
configurations as the last one, on rungs `eta**s` times lower.
"""

import math

from wattloop.tune.problem import Problem
from wattloop.tune.strategies.asha import Asha
from wattloop.tune.strategies.ladder import Ladder
from wattloop.tune.strategies.rung_options import MOST_RUNGS

__all__ = ["Hyperband"]


class Hyperband(Asha):
    """Brackets of successive halving, one after the other, round after round.

    Args:
        problem: what is searched; needs a metric.
        eta: one in `eta` goes on, with `eta` times the energy.
        rung_energy: joules of the lowest rung (or `20 kJ`); unless given, what the first
            configuration needs for `rung_epochs`.
        rung_epochs: of the first configuration, to find out how many joules that is.
        brackets: how many; unless given, as many as the number of configurations fills.
        paused: trainings that may wait on one rung; the worst of more are given up.
    """

    name = "hyperband"

    def __init__(
        self,
        problem: Problem,
        *,
        eta: float = 3.0,
        rung_energy: float | str | None = None,
        rung_epochs: float = 1.0,
        brackets: int | None = None,
        paused: int = 16,
    ) -> None:
        super().__init__(
            problem,
            eta=eta,
            rung_energy=rung_energy,
            rung_epochs=rung_epochs,
            rungs=brackets,
            paused=paused,
        )

    def ladders(self, first_j: float) -> list[Ladder]:
        """Bracket s = b-1 .. 0, with s+1 rungs and ceil(b / (s+1) eta^s) configurations."""
        brackets = self._rungs or _brackets(self.eta, self.most())
        found = []
        for s in reversed(range(brackets)):
            count = math.ceil(brackets / (s + 1) * self.eta**s)
            lowest_j = first_j * self.eta ** (brackets - 1 - s)
            found.append(Ladder(lowest_j, self.eta, s + 1, count, self.paused))
        return found

    def again(self, first_j: float) -> bool:
        """Another round of brackets, as long as configurations may begin."""
        if self.over:
            return False
        # who waits on an old ladder is worth keeping only while none is good enough
        kept = [ladder for ladder in self._ladders if ladder.waiting()]
        self._ladders = [*(kept if self._best is None else []), *self.ladders(first_j)]
        return True

    def room(self, ladder: Ladder) -> bool:
        """As long as the bracket is not full."""
        return ladder.most is None or ladder.begun < ladder.most


def _brackets(eta: float, most: int | None) -> int:
    """The most brackets whose configurations are no more than `most`; four when nobody knows."""
    if most is None:
        return 4
    best = 1
    for brackets in range(1, MOST_RUNGS + 1):
        begun = sum(math.ceil(brackets / (s + 1) * eta**s) for s in range(brackets))
        if begun <= most:
            best = brackets
    return best
