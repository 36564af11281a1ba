"""Successive halving with joules as the resource: rungs, ASHA and Hyperband."""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.objective import NEED_QUALITY
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.space import Configuration
from wattloop.tune.spec_sections import joules
from wattloop.tune.strategies.base import WAIT, Asked, Chosen, Strategy
from wattloop.tune.strategies.candidates import Candidate, CandidateTable
from wattloop.tune.strategies.exhaustive import check_ends, draw_unseen

MOST_RUNGS = 12


def check_options(eta: Any, rung_epochs: Any, rungs: Any, paused: Any) -> None:
    """Raise ConfigError for the first that is out of range, with what to give."""
    if not _number(eta) or not 1 < eta <= 100:
        raise ConfigError(f"eta is {eta!r}; give a number above 1, such as 3")
    if not _number(rung_epochs) or not 0 < rung_epochs < math.inf:
        raise ConfigError(f"rung_epochs is {rung_epochs!r}; give a number above 0")
    if rungs is not None and (not isinstance(rungs, int) or not 1 <= rungs <= MOST_RUNGS):
        raise ConfigError(f"rungs is {rungs!r}; give a whole number from 1 to {MOST_RUNGS}")
    if not isinstance(paused, int) or paused < 1:
        raise ConfigError(f"paused is {paused!r}; give a whole number of 1 or more")


def rung_joules(written: float | str | None) -> float | None:
    """Return the joules of the first rung; None when they are to be measured."""
    if written is None:
        return None
    found = joules(written)
    if not _number(found) or not 0 < found < math.inf:
        raise ConfigError(f"rung_energy is {written!r}; give an energy above 0, such as '20 kJ'")
    return float(found)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# A candidate is on rung k when it has used `first_j * eta**k` joules. Of the candidates on a rung,
# the best 1/eta may climb to the next; the highest rung is bounded only by the target and the end
# of the training.

Place = tuple[float, float, str]
"""Order of candidates on a rung: loss, joules (ties go to the cheaper), name."""
RESERVE = 1
"""Kept in addition to those that may climb, in case these fail."""


@dataclass(slots=True)
class _Rung:
    arrived: list[Place] = field(default_factory=list)
    """All that have come here, best first."""
    waiting: list[Place] = field(default_factory=list)
    """Those that may climb on, best first."""
    climbed: int = 0


class RungLadder:
    """Rungs, the candidates on them, and those that may climb.

    Args:
        first_j: energy of the lowest rung.
        eta: one in `eta` climbs on, to `eta` times the energy.
        rungs: how many there are, the unbounded one included.
        most: the most candidates that will come; None when unknown.
        paused: candidates that may wait on one rung; the worst beyond that are dropped.
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
        return len(self.rungs) - 1

    def bound_j(self, rung: int) -> float | None:
        return None if rung >= self.top else self.first_j * self.eta**rung

    def rung_of(self, name: str) -> int:
        """Return the rung of a candidate; -1 before the first."""
        return self._at.get(name, -1)

    def arrive(self, name: str, rung: int, loss: float, energy_j: float, *, waits: bool) -> None:
        """Record that a candidate has reached a rung, or a higher one if it has used more."""
        place = (loss, energy_j, name)
        insort(self.rungs[rung].arrived, place)
        while (above := self.bound_j(rung + 1)) is not None and energy_j >= above:
            self.rungs[rung].climbed += 1
            rung += 1
            insort(self.rungs[rung].arrived, place)
        self._at[name] = rung
        if waits:
            waiting = self.rungs[rung].waiting
            insort(waiting, place)
            del waiting[self._room(rung) :]

    def climber(self) -> str | None:
        """Return the candidate to climb, from the highest rung that has one; it is then marked."""
        for rung in reversed(self.rungs[: self.top]):
            if not rung.waiting:
                continue
            if bisect_left(rung.arrived, rung.waiting[0]) < math.floor(
                len(rung.arrived) / self.eta
            ):
                return _climb(rung)
        return None

    def best_waiting(self) -> str | None:
        """Return the best waiting candidate of the highest rung, and mark it as climbed."""
        for rung in reversed(self.rungs[: self.top]):
            if rung.waiting:
                return _climb(rung)
        return None

    def waiting(self) -> set[str]:
        return {place[2] for rung in self.rungs for place in rung.waiting}

    def _room(self, rung: int) -> int:
        """Return how many may wait on a rung: worse ones can never climb."""
        if self.most is None:
            return self.paused
        expected = float(max(self.most, len(self.rungs[0].arrived)))
        for _ in range(rung + 1):
            expected = math.floor(expected / self.eta)
        left = max(int(expected) - self.rungs[rung].climbed, 0)
        return min(left + RESERVE, self.paused)


def _climb(rung: _Rung) -> str:
    rung.climbed += 1
    return rung.waiting.pop(0)[2]


# Many configurations are trained a little, the best of them further, and few to the end. They are
# compared at equal energy, not at equal epochs, since quality per joule ranks configurations by the
# energy they need. Trainings pause and resume; none is repeated.


class Asha(Strategy):
    """Asynchronous successive halving: a candidate that is good enough climbs at once.

    Args:
        eta: one in `eta` continues, with `eta` times the energy.
        rung_energy: joules of the first rung (or `20 kJ`); unless given, what the first
            configuration needs for `rung_epochs`.
        rung_epochs: of the first configuration, to find out how many joules the first rung has.
        rungs: how many; unless given, as many as the number of configurations fills.
        paused: trainings that may wait on one rung; the worst beyond that are dropped.

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
        self.ledger = CandidateTable(problem)
        self.eta, self.rung_epochs, self.paused = eta, rung_epochs, paused
        self._rungs = rungs
        self._first_j = rung_joules(rung_energy)
        self._timed = False
        self._rng = np.random.default_rng(problem.seed)
        self._ladders: list[RungLadder] = []
        self._ladder_of: dict[str, RungLadder] = {}
        self._heading: dict[str, int] = {}
        self._under_way: set[str] = set()
        self._unfinished: list[Candidate] = []
        self._silent: list[Candidate] = []
        """Those that have not reported the metric yet; their rung ends with the first report."""
        self._none_left = False
        self._best: Candidate | None = None

    def ask(self) -> Asked:
        """Return a climbing candidate, a new one, or the best of the waiting ones."""
        if self._silent:
            late = self._silent.pop(0)
            epochs = 2 * max(late.epochs, self.rung_epochs)
            return self._asked(late, self._heading[late.name], None, epochs)
        if self._first_j is None:
            return self._scout()
        if not self._ladders:
            self._ladders = self.ladders(self._first_j)
        if self._unfinished:
            candidate = self._unfinished.pop(0)
            return self._climb_on(self._ladder_of[candidate.name], candidate)
        for ladder in self._ladders:
            while (name := ladder.climber()) is not None:
                if not self._over(self.ledger.candidates[name]):
                    return self._climb_on(ladder, self.ledger.candidates[name])
            found = self._new(ladder)
            if found is not None:
                return found
        if self._under_way:
            return WAIT
        return self.ask() if self.again(self._first_j) else self._last_resort()

    def tell(self, segment: Segment, progress: Progress) -> None:
        candidate = self.ledger.tell(segment, progress)
        self._under_way.discard(candidate.name)
        if progress.status.alive and candidate.quality is None:
            self._silent.append(candidate)
            return
        if self._first_j is None:
            self._timed = candidate.energy_j is None
        cost = self._cost(candidate)
        if cost is None or not self.ledger.comparable(candidate):
            return
        if self._first_j is None:
            self._first_j = max(cost, 1e-9)
            self._ladders = self.ladders(self._first_j)
            self._join(candidate, self._ladders[0])
        if self.ledger.enough(candidate) and self._done(candidate):
            scores = self.ledger.scores
            if self._best is None or scores(candidate) < scores(self._best):
                self._best = candidate
        ladder = self._ladder_of[candidate.name]
        rung = self._heading.get(candidate.name, 0)
        waits = not self._over(candidate)
        if rung < ladder.top:
            loss = self.problem.quality.loss(candidate.quality)
            ladder.arrive(candidate.name, rung, loss, cost, waits=waits)
        elif waits:  # the first one, where the only rung is the last
            self._unfinished.append(candidate)

    def best(self) -> Chosen | None:
        done = [c for c in self.ledger.candidates.values() if self._done(c)]
        return self.ledger.best(done) if done else None

    def alive(self) -> frozenset[str]:
        found = self._under_way | {c.name for c in (*self._unfinished, *self._silent)}
        for ladder in self._ladders:
            found |= {n for n in ladder.waiting() if not self._over(self.ledger.candidates[n])}
        return frozenset(found)

    def ladders(self, first_j: float) -> list[RungLadder]:
        most = self.most()
        rungs = self._rungs
        if rungs is None:
            rungs = 4 if most is None else 1 + math.floor(math.log(max(most, 1), self.eta) + 1e-9)
        rungs = min(max(rungs, 1), MOST_RUNGS)
        return [RungLadder(first_j, self.eta, rungs, most, self.paused)]

    def most(self) -> int | None:
        ends = (self.problem.limits.candidates, self.problem.space.size)
        return min((end for end in ends if end is not None), default=None)

    def room(self, ladder: RungLadder) -> bool:
        return True

    def again(self, first_j: float) -> bool:
        """Return whether another ladder follows, once nothing is under way."""
        return False

    @property
    def over(self) -> bool:
        return self.ledger.full or self._none_left

    def _scout(self) -> Asked:
        """Measure with the first configuration the joules of `rung_epochs`; others wait for it."""
        if self._under_way:
            return WAIT
        candidate = self._begun()
        if candidate is None:
            return None
        return self._asked(candidate, 0, None, self.rung_epochs)

    def _new(self, ladder: RungLadder) -> Segment | None:
        if not self.room(ladder):
            return None
        candidate = self._begun()
        if candidate is None:
            return None
        self._join(candidate, ladder)
        return self._asked(candidate, 0, ladder.bound_j(0))

    def _join(self, candidate: Candidate, ladder: RungLadder) -> None:
        self._ladder_of[candidate.name] = ladder
        ladder.begun += 1

    def _begun(self) -> Candidate | None:
        if self.over:
            return None
        found: Configuration | None = self.ledger.default or None
        if found is None or self.ledger.seen(found):
            found = draw_unseen(self.problem, self.ledger, self._rng)
        if found is None:
            self._none_left = True
            return None
        return self.ledger.begin(found)

    def _climb_on(self, ladder: RungLadder, candidate: Candidate) -> Segment:
        rung = ladder.rung_of(candidate.name) + 1
        bound_j = ladder.bound_j(rung)
        used_j = self._cost(candidate) or 0.0
        left_j = None if bound_j is None else bound_j - used_j
        if self._best is not None and self.problem.objective.names == ("energy",):
            # beyond the energy of the best one it cannot win
            cheaper_j = (self._best.energy_j or 0.0) - used_j
            left_j = cheaper_j if left_j is None else min(left_j, cheaper_j)
        return self._asked(candidate, rung, left_j)

    def _asked(
        self, candidate: Candidate, rung: int, energy_j: float | None, epochs: float | None = None
    ) -> Segment:
        self._heading[candidate.name] = rung
        self._under_way.add(candidate.name)
        if epochs is not None:
            epochs = min(epochs, self.problem.limits.epochs or epochs)
        return self.ledger.segment(candidate, energy_j, epochs, timed=self._timed)

    def _cost(self, candidate: Candidate) -> float | None:
        """Return its joules; its seconds where the energy of the first one is not known."""
        return candidate.time_s if self._timed else candidate.energy_j

    def _last_resort(self) -> Segment | None:
        """Continue the best waiting candidate as long as none reaches the target."""
        if self._best is not None:
            return None
        for ladder in self._ladders:
            while (name := ladder.best_waiting()) is not None:
                candidate = self.ledger.candidates[name]
                if not self._over(candidate):
                    return self._climb_on(ladder, candidate)
        return None

    def _done(self, candidate: Candidate) -> bool:
        """Return whether it is complete: at its target, its end or its last epoch."""
        if candidate.status is Status.ENDED:
            return True
        most = self.problem.limits.epochs
        if most is not None and candidate.epochs >= most:
            return candidate.status is not None and candidate.status.good
        return self.ledger.at_target and self.ledger.enough(candidate)

    def _over(self, candidate: Candidate) -> bool:
        """Return whether it is done, or has used too much energy to be best."""
        if self._done(candidate) or candidate.status is None or not candidate.status.alive:
            return True
        names = set(self.problem.objective.names)
        if self._best is None or names & NEED_QUALITY:
            return False
        return self.ledger.scores(candidate)[0] >= self.ledger.scores(self._best)[0]


# The length of training after which quality is informative is unknown in advance. Bracket s starts
# `eta**s` times as many configurations as the last one, on rungs `eta**s` times lower.


class Hyperband(Asha):
    """Brackets of successive halving, one after the other, round after round."""

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

    def ladders(self, first_j: float) -> list[RungLadder]:
        """Return bracket s = b-1 .. 0, with s+1 rungs and ceil(b / (s+1) eta^s) configurations."""
        brackets = self._rungs or _brackets(self.eta, self.most())
        found = []
        for s in reversed(range(brackets)):
            count = math.ceil(brackets / (s + 1) * self.eta**s)
            lowest_j = first_j * self.eta ** (brackets - 1 - s)
            found.append(RungLadder(lowest_j, self.eta, s + 1, count, self.paused))
        return found

    def again(self, first_j: float) -> bool:
        """Start another round of brackets, as long as configurations may start."""
        if self.over:
            return False
        # Candidates on an old ladder matter only while none reaches the target.
        kept = [ladder for ladder in self._ladders if ladder.waiting()]
        self._ladders = [*(kept if self._best is None else []), *self.ladders(first_j)]
        return True

    def room(self, ladder: RungLadder) -> bool:
        return ladder.most is None or ladder.begun < ladder.most


def _brackets(eta: float, most: int | None) -> int:
    """Return the most brackets whose configurations are at most `most`; four when unknown."""
    if most is None:
        return 4
    best = 1
    for brackets in range(1, MOST_RUNGS + 1):
        begun = sum(math.ceil(brackets / (s + 1) * eta**s) for s in range(brackets))
        if begun <= most:
            best = brackets
    return best
