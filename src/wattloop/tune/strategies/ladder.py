"""Rungs of joules: who is as good as the best third may spend three times as much.

A candidate stands on rung k when it has used `first_j * eta**k` joules. Of those that have come
to a rung, the best 1/eta may climb to the next; the highest rung has no bound but the target and
the end of the training.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field

__all__ = ["Ladder"]

Place = tuple[float, float, str]
"""What orders candidates on a rung: loss, joules (ties go to the cheaper), name."""


RESERVE = 1
"""Kept beside those that may climb, in case these fail."""


@dataclass(slots=True)
class _Rung:
    come: list[Place] = field(default_factory=list)
    """All that have come here, best first."""
    waiting: list[Place] = field(default_factory=list)
    """Those that may climb on, best first."""
    climbed: int = 0


class Ladder:
    """Who may go on, and how far.

    Args:
        first_j: energy of the lowest rung.
        eta: one in `eta` climbs on, to `eta` times the energy.
        rungs: how many there are, the unbounded one included.
        most: candidates that will come at most; None when nobody knows.
        paused: candidates that may wait on one rung; the worst of more are given up.
    """

    def __init__(
        self, first_j: float, eta: float, rungs: int, most: int | None, paused: int
    ) -> None:
        self.first_j, self.eta, self.most, self.paused = first_j, eta, most, paused
        self.rungs = [_Rung() for _ in range(rungs)]
        self.begun = 0
        self._at: dict[str, int] = {}

    @property
    def top(self) -> int:
        """The rung without a bound."""
        return len(self.rungs) - 1

    def bound_j(self, rung: int) -> float | None:
        """Joules that a candidate may have used on it; None for no bound."""
        return None if rung >= self.top else self.first_j * self.eta**rung

    def rung_of(self, name: str) -> int:
        """Where a candidate stands; -1 before it has come anywhere."""
        return self._at.get(name, -1)

    def come(self, name: str, rung: int, loss: float, energy_j: float, *, waits: bool) -> None:
        """A candidate has come to a rung, or further if it has used more.

        Args:
            name: of the candidate.
            rung: what it was sent to.
            loss: smaller is better.
            energy_j: used in all.
            waits: whether it can go on.
        """
        place = (loss, energy_j, name)
        insort(self.rungs[rung].come, place)
        while (above := self.bound_j(rung + 1)) is not None and energy_j >= above:
            self.rungs[rung].climbed += 1
            rung += 1
            insort(self.rungs[rung].come, place)
        self._at[name] = rung
        if waits:
            waiting = self.rungs[rung].waiting
            insort(waiting, place)
            del waiting[self._room(rung) :]

    def climber(self) -> str | None:
        """Who may climb on, from the highest rung that has one; it counts as climbed."""
        for rung in reversed(self.rungs[: self.top]):
            if not rung.waiting:
                continue
            if bisect_left(rung.come, rung.waiting[0]) < math.floor(len(rung.come) / self.eta):
                return _climb(rung)
        return None

    def best_waiting(self) -> str | None:
        """The best of the highest rung where any is left; it counts as climbed."""
        for rung in reversed(self.rungs[: self.top]):
            if rung.waiting:
                return _climb(rung)
        return None

    def waiting(self) -> set[str]:
        """Those that may be asked for again."""
        return {place[2] for rung in self.rungs for place in rung.waiting}

    def _room(self, rung: int) -> int:
        """How many may wait on a rung: who is worse cannot climb, whoever else comes."""
        if self.most is None:
            return self.paused
        expected = float(max(self.most, len(self.rungs[0].come)))
        for _ in range(rung + 1):
            expected = math.floor(expected / self.eta)
        left = max(int(expected) - self.rungs[rung].climbed, 0)
        return min(left + RESERVE, self.paused)


def _climb(rung: _Rung) -> str:
    rung.climbed += 1
    return rung.waiting.pop(0)[2]
