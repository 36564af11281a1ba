"""Asynchronous successive halving with joules as the resource.

Many configurations are trained a little, the best of them further, and few to the end. What is
equal at a comparison is not the number of epochs but the energy, since quality per joule is what
ranks configurations by the energy they need. Trainings pause and go on; none begins again.
"""

import math

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.objective import NEED_QUALITY
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.ladder import Ladder
from wattloop.tune.strategies.ledger import Candidate, Ledger
from wattloop.tune.strategies.one_by_one import check_ends, drawn
from wattloop.tune.strategies.rung_options import MOST_RUNGS, check_options, rung_joules
from wattloop.tune.strategy import WAIT, Asked, Chosen, Strategy

__all__ = ["Asha"]


class Asha(Strategy):
    """Successive halving that waits for nobody: who is good enough climbs at once.

    Args:
        problem: what is searched; needs a metric.
        eta: one in `eta` goes on, with `eta` times the energy.
        rung_energy: joules of the first rung (or `20 kJ`); unless given, what the first
            configuration needs for `rung_epochs`.
        rung_epochs: of the first configuration, to find out how many joules the first rung has.
        rungs: how many; unless given, as many as the number of configurations fills.
        paused: trainings that may wait on one rung; the worst of more are given up.

    Raises:
        ConfigError: an option is out of range, or nothing ends the search.
    """

    name = "asha"

    def __init__(
        self,
        problem: Problem,
        *,
        eta: float = 3.0,
        rung_energy: float | str | None = None,
        rung_epochs: float = 1.0,
        rungs: int | None = None,
        paused: int = 16,
    ) -> None:
        super().__init__(problem)
        check_options(eta, rung_epochs, rungs, paused)
        check_ends(problem, self.name)
        if not problem.quality.metric:
            raise ConfigError(f"{self.name} compares trainings by their quality: give a metric")
        self.ledger = Ledger(problem)
        self.eta, self.rung_epochs, self.paused = eta, rung_epochs, paused
        self._rungs = rungs
        self._first_j = rung_joules(rung_energy)
        self._rng = np.random.default_rng(problem.seed)
        self._ladders: list[Ladder] = []
        self._ladder_of: dict[str, Ladder] = {}
        self._heading: dict[str, int] = {}
        self._under_way: set[str] = set()
        self._unfinished: list[Candidate] = []
        self._none_left = False
        self._best: Candidate | None = None

    def ask(self) -> Asked:
        """Someone climbs, or a new one begins, or the best of those left goes on."""
        if self._first_j is None:
            return self._scout()
        if not self._ladders:
            self._ladders = self.ladders(self._first_j)
        if self._unfinished:
            candidate = self._unfinished.pop(0)
            return self._go_on(self._ladder_of[candidate.name], candidate)
        for ladder in self._ladders:
            while (name := ladder.climber()) is not None:
                if not self._over(self.ledger.candidates[name]):
                    return self._go_on(ladder, self.ledger.candidates[name])
            found = self._new(ladder)
            if found is not None:
                return found
        if self._under_way:
            return WAIT
        return self.ask() if self.again(self._first_j) else self._last_resort()

    def tell(self, segment: Segment, progress: Progress) -> None:
        """Keep what came of it, and where it stands now."""
        candidate = self.ledger.tell(segment, progress)
        self._under_way.discard(candidate.name)
        if candidate.energy_j is None or not self.ledger.comparable(candidate):
            return
        if self._first_j is None:
            self._first_j = max(candidate.energy_j, 1e-9)
            self._ladders = self.ladders(self._first_j)
            self._join(candidate, self._ladders[0])
        if self.ledger.enough(candidate) and self._done(candidate):
            self._take(candidate)
        ladder = self._ladder_of[candidate.name]
        rung = self._heading.get(candidate.name, 0)
        waits = not self._over(candidate)
        if rung < ladder.top:
            loss = self._loss(candidate)
            ladder.come(candidate.name, rung, loss, candidate.energy_j, waits=waits)
        elif waits:  # the first one, where there is no rung but the last
            self._unfinished.append(candidate)

    def best(self) -> Chosen | None:
        """The best of those that came to their end and are good enough."""
        done = [c for c in self.ledger.candidates.values() if self._done(c)]
        return self.ledger.best(done) if done else None

    def alive(self) -> frozenset[str]:
        """Those under way, and those that may still climb."""
        found = self._under_way | {candidate.name for candidate in self._unfinished}
        for ladder in self._ladders:
            found |= {n for n in ladder.waiting() if not self._over(self.ledger.candidates[n])}
        return frozenset(found)

    def ladders(self, first_j: float) -> list[Ladder]:
        """One, with as many rungs as its candidates fill."""
        most = self.most()
        rungs = self._rungs
        if rungs is None:
            rungs = 4 if most is None else 1 + math.floor(math.log(max(most, 1), self.eta) + 1e-9)
        rungs = min(max(rungs, 1), MOST_RUNGS)
        return [Ladder(first_j, self.eta, rungs, most, self.paused)]

    def most(self) -> int | None:
        """Configurations that may be begun at most; None when nobody knows."""
        ends = (self.problem.limits.candidates, self.problem.space.size)
        return min((end for end in ends if end is not None), default=None)

    def room(self, ladder: Ladder) -> bool:
        """Whether another configuration may begin on this ladder."""
        return True

    def again(self, first_j: float) -> bool:
        """Whether there is another ladder to fill, now that nothing is under way."""
        return False

    @property
    def over(self) -> bool:
        """Whether no more configurations can begin."""
        return self.ledger.full or self._none_left

    # -- inside ----------------------------------------------------------------------------

    def _scout(self) -> Asked:
        """The first configuration says how many joules `rung_epochs` are; others wait for it."""
        if self._under_way:
            return WAIT
        candidate = self._begun()
        if candidate is None:
            return None
        most = self.problem.limits.epochs
        epochs = self.rung_epochs if most is None else min(self.rung_epochs, most)
        return self._asked(candidate, 0, None, epochs)

    def _new(self, ladder: Ladder) -> Segment | None:
        if not self.room(ladder):
            return None
        candidate = self._begun()
        if candidate is None:
            return None
        self._join(candidate, ladder)
        return self._asked(candidate, 0, ladder.bound_j(0))

    def _join(self, candidate: Candidate, ladder: Ladder) -> None:
        self._ladder_of[candidate.name] = ladder
        ladder.begun += 1

    def _begun(self) -> Candidate | None:
        if self.over:
            return None
        found: Configuration | None = self.ledger.default or None
        if found is None or self.ledger.seen(found):
            found = drawn(self.problem, self.ledger, self._rng)
        if found is None:
            self._none_left = True
            return None
        return self.ledger.begin(found)

    def _go_on(self, ladder: Ladder, candidate: Candidate) -> Segment:
        rung = ladder.rung_of(candidate.name) + 1
        bound_j = ladder.bound_j(rung)
        used_j = candidate.energy_j or 0.0
        left_j = None if bound_j is None else bound_j - used_j
        if self._best is not None and self.problem.objective.names == ("energy",):
            # further than the best one went, it cannot win
            cheaper_j = (self._best.energy_j or 0.0) - used_j
            left_j = cheaper_j if left_j is None else min(left_j, cheaper_j)
        return self._asked(candidate, rung, left_j)

    def _asked(
        self, candidate: Candidate, rung: int, energy_j: float | None, epochs: float | None = None
    ) -> Segment:
        self._heading[candidate.name] = rung
        self._under_way.add(candidate.name)
        return self.ledger.segment(candidate, energy_j, epochs)

    def _last_resort(self) -> Segment | None:
        """As long as none is good enough, the best of those that wait goes on."""
        if self._best is not None:
            return None
        for ladder in self._ladders:
            while (name := ladder.best_waiting()) is not None:
                candidate = self.ledger.candidates[name]
                if not self._over(candidate):
                    return self._go_on(ladder, candidate)
        return None

    def _loss(self, candidate: Candidate) -> float:
        quality = candidate.quality
        if quality is None:
            return math.inf
        return -quality if self.problem.quality.maximize else quality

    def _done(self, candidate: Candidate) -> bool:
        """Whether more training would add nothing: at its target, its end or its last epoch."""
        if candidate.status is Status.ENDED:
            return True
        most = self.problem.limits.epochs
        if most is not None and candidate.epochs >= most:
            return candidate.status is not None and candidate.status.good
        return self.ledger.at_target and self.ledger.enough(candidate)

    def _over(self, candidate: Candidate) -> bool:
        """Whether it is done, or has used so much already that it cannot be best any more."""
        if self._done(candidate) or candidate.status is None or not candidate.status.alive:
            return True
        names = set(self.problem.objective.names)
        if self._best is None or names & NEED_QUALITY:
            return False
        return self.ledger.scores(candidate)[0] >= self.ledger.scores(self._best)[0]

    def _take(self, candidate: Candidate) -> None:
        if self._best is None or self.ledger.scores(candidate) < self.ledger.scores(self._best):
            self._best = candidate
