"""Promises of `check_strategy`: it passes correct strategies and names a broken promise."""

import random

import pytest

from wattloop.testing.strategy_contract import check_strategy
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.search_problem import Limits, Problem
from wattloop.tune.segment import CapRequest, Progress, RateSweep, Segment, Until
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.base import WAIT, Asked, Chosen
from wattloop.tune.strategies.exhaustive import Grid, Random


class Forgetful(Grid):
    """A strategy that requests the same segment repeatedly."""

    def ask(self) -> Asked:
        asked = super().ask()
        return getattr(self, "_last", None) if asked is None else self._keep(asked)

    def _keep(self, asked: Asked) -> Asked:
        if not hasattr(self, "_last"):
            self._last = asked
        return asked


class Moody(Random):
    """A strategy that uses other random numbers than the problem's seed."""

    def propose(self) -> Configuration | None:
        self._rng.bit_generator.advance(random.SystemRandom().randrange(1, 99))  # type: ignore[attr-defined]  # PCG64 has it
        return super().propose()


class Unlimited(Grid):
    """A strategy that continues beyond the number of configurations."""

    def ask(self) -> Asked:
        found = self.propose()
        return None if found is None else self.ledger.segment(self.ledger.begin(found))


class Trusting(Grid):
    """A strategy that chooses a failed trial."""

    def best(self) -> Chosen | None:
        candidates = list(self.ledger.candidates.values())
        last = candidates[-1]
        return Chosen(candidate=last.name, parameters=last.parameters, why="the last one")


class Hopeless(Grid):
    """A strategy that never finds a good trial."""

    def best(self) -> Chosen | None:
        return None


class Brittle(Grid):
    """A strategy that stops at the first failure."""

    def tell(self, segment: Segment, progress: Progress) -> None:
        super().tell(segment, progress)
        if not progress.status.good:
            raise ValueError("I did not expect that")


class Stuck(Grid):
    """A strategy that waits for a trial that is not running."""

    def ask(self) -> Asked:
        asked = super().ask()
        return WAIT if asked is None else asked


class Outside(Grid):
    """A strategy that trains configurations outside the space."""

    def propose(self) -> Configuration | None:
        found = super().propose()
        return None if found is None else {**found, "batch_size": 7}


class Careless(Grid):
    """A strategy that accepts results of segments it never requested."""

    def tell(self, segment: Segment, progress: Progress) -> None:
        if segment.candidate in self.ledger.candidates:
            super().tell(segment, progress)


class OverTime(Grid):
    """A strategy that requests more epochs than allowed."""

    def ask(self) -> Asked:
        asked = super().ask()
        if not isinstance(asked, Segment):
            return asked
        data = asked.to_dict()
        return Segment.from_dict({**data, "until": {**data["until"], "epochs": 99.0}})


BENCH = SyntheticExecutor(synthetic_problem(limits=Limits(candidates=8, epochs=40))).problem


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Forgetful, "asked for twice|never ends|was let go"),
        (Moody, "told the same, it must ask the same"),
        (Unlimited, r"candidates, 3 are allowed"),
        (Trusting, r"best is c\d+, which"),
        (Hopeless, "a candidate was good enough, and none is best"),
        (Brittle, "I did not expect that"),
        (Stuck, "nothing is under way"),
        (Outside, "batch_size: 7 is none of"),
        (Careless, "an event that was not its own"),
        (OverTime, "over 40 epochs"),
    ],
)
def test_a_broken_promise_is_named(make: type[Grid], said: str) -> None:
    """Each of these strategies breaks one promise."""
    with pytest.raises(Exception, match=said):
        check_strategy(make, lambda: SyntheticExecutor(BENCH), at_once=(1,))


def test_the_executor_pauses_and_continues() -> None:
    """Two segments of a training equal one, and an exploration leaves no trace."""

    def segment(key: str, **more: object) -> Segment:
        parameters = {"batch_size": 64, "lr": 0.003, "optimizer": "adam"}
        return Segment(key=key, candidate="c", parameters=parameters, **more)  # type: ignore[arg-type]  # its own fields

    one, two = SyntheticExecutor(), SyntheticExecutor()
    whole = one.run(segment("a", until=Until(epochs=6, at_target=False)))
    half = two.run(segment("a", until=Until(epochs=3, at_target=False)))
    two.run(segment("b", until=Until(epochs=5, at_target=False), keep=False))
    swept = two.run(segment("c", rates=RateSweep(low=1e-4, high=1.0, count=9)))
    rest = two.run(segment("d", until=Until(epochs=6, at_target=False)))
    assert half.curve + rest.curve == whole.curve
    losses = {round(r.rate, 6): r.loss for r in swept.rates}
    assert min(losses, key=losses.__getitem__) == pytest.approx(0.003, rel=0.5)
    assert max(losses.values()) == float("inf")


def test_the_executor_finds_the_cap_of_its_formula() -> None:
    """125 W for least energy, with less energy than without a cap, and more time."""
    bench = SyntheticExecutor(noise=0.0)
    parameters = {"batch_size": 256, "lr": 0.003, "optimizer": "adam"}
    progress = bench.run(
        Segment(key="a", candidate="c", parameters=parameters, cap=CapRequest(metric="energy"))
    )
    assert progress.cap is not None and progress.cap.cap_w == 125.0
    assert progress.cap.energy_ratio < 0.9 and progress.cap.time_ratio > 1.0


def test_a_problem_of_its_own_is_used() -> None:
    """The contract uses the executor's problem."""
    problem: Problem = synthetic_problem(limits=Limits(candidates=4, epochs=40))
    check_strategy(Grid, lambda: SyntheticExecutor(problem), at_once=(1,))
