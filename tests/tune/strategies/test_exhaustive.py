"""Promises of `grid` and `random`: every configuration once, or random ones, none twice."""

import time
from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.testing.strategy_contract import check_strategy, played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.objective import Objective
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.space import Choice, Real, Space, configuration_key
from wattloop.tune.strategies.base import Strategy, StrategyEvent
from wattloop.tune.strategies.candidates import CandidateTable
from wattloop.tune.strategies.exhaustive import Grid, Random
from wattloop.tune.strategies.optuna import Tpe


def test_grid_keeps_the_contract() -> None:
    """With a cap searched inside trainings."""
    check_strategy(Grid, lambda: SyntheticExecutor(synthetic_problem(capped=True)))


def test_a_shuffled_grid_keeps_the_contract() -> None:
    """The order is of the seed."""
    check_strategy(lambda problem: Grid(problem, shuffle=True), at_once=(1,))


def test_random_keeps_the_contract() -> None:
    """Over ranges, with two objectives."""
    problem = synthetic_problem(ranges=True, objectives=("energy", "time"))
    check_strategy(Random, lambda: SyntheticExecutor(problem))


@pytest.mark.parametrize("make", [Grid, Random, lambda p: Grid(p, shuffle=True)])
def test_a_finite_space_is_trained_whole_and_once(make: type[Strategy]) -> None:
    """Every configuration, none twice, the default first; the best is the best of all."""
    bench = SyntheticExecutor(noise=0.0)
    strategy = make(bench.problem)
    segments = [e.segment for e in played(strategy, bench) if e.progress is None]
    keys = {configuration_key(s.parameters) for s in segments}
    every = {configuration_key(c) for c in bench.problem.space.grid()}
    assert keys == every and len(segments) == len(every)
    assert dict(segments[0].parameters) == bench.problem.default
    energies = {}
    for found in bench.problem.space.grid():
        needed = bench.epochs_needed(found)
        if needed < 40:
            epochs = -(-needed // 1)
            energies[configuration_key(found)] = epochs * bench.point(found).energy_j
    best = strategy.best()
    assert best is not None
    assert configuration_key(best.parameters) == min(energies, key=energies.__getitem__)


def test_a_front_has_what_nothing_beats() -> None:
    """Of energy and time: each on it is better than each other in one of the two."""
    bench = SyntheticExecutor(synthetic_problem(objectives=("energy", "time")))
    strategy = Grid(bench.problem)
    played(strategy, bench)
    candidates = strategy.ledger.candidates
    front = [candidates[chosen.candidate] for chosen in strategy.front()]
    assert len(front) > 1
    ranked = [pair[0] for pair in strategy.ledger.ranked()]
    for one in ranked:
        beaten = any(
            other.time_s <= one.time_s and (other.energy_j or 0) < (one.energy_j or 0)
            for other in ranked
        )
        assert not (beaten and one in front)
    chosen = strategy.best()
    assert chosen is not None and chosen.candidate in {c.name for c in front}


def test_a_search_that_never_ends_is_refused() -> None:
    """A range without limits; with any limit it is fine."""
    space = Space({"lr": Real(low=0.1, high=1.0)})
    with pytest.raises(ConfigError, match=r"give limits\.trials, limits\.energy or limits\.time"):
        Random(Problem(space=space, quality=Quality(metric="loss")))
    Random(Problem(space=space, quality=Quality(metric="loss"), limits=Limits(energy_j=5.0)))


@pytest.mark.parametrize("make", [Grid, Random])
def test_ten_thousand_events_are_recalled_and_gone_on_from(make: type[Strategy]) -> None:
    """A long search resumes where it was, without trouble with recursion or repeated draws."""
    space = Space({"a": Choice(values=tuple(range(80))), "b": Choice(values=tuple(range(80)))})
    problem = Problem(space=space, quality=Quality(metric=""), objective=Objective())
    first = make(problem)
    events = []
    for _ in range(5_000):
        segment = first.ask()
        assert isinstance(segment, Segment)
        progress = Progress(status=Status.ENDED, time_s=1.0, energy_j=float(hash(segment.key) % 97))
        first.tell(segment, progress)
        events += [StrategyEvent(segment), StrategyEvent(segment, progress)]
    second = make(problem)
    begun_s = time.perf_counter()
    second.recall(events)
    print(f"{len(events)} events recalled in {time.perf_counter() - begun_s:.2f} s")  # noqa: T201 - shown with -s
    assert second.ask() == first.ask() and second.best() == first.best()


def test_sm2_ranks_a_grid_afterwards() -> None:
    """Equation 2 needs all trainings at once: quality, energy per epoch and rate weigh."""
    problem = synthetic_problem(objectives=("sm2",), limits=Limits(epochs=4), target=None)
    bench = SyntheticExecutor(problem, noise=0.0)
    strategy = Grid(problem)
    played(strategy, bench)
    ledger = CandidateTable(problem)
    assert not ledger.at_target  # more quality is worth more, so trainings are not cut at 0.8
    ranked = strategy.ledger.ranked()
    scores = [scores[0] for _, scores in ranked]
    assert len(scores) > 20
    assert scores == sorted(scores) and all(-1 <= score <= 0 for score in scores)


@pytest.mark.parametrize("make", [Grid, Random, Tpe])
def test_what_a_limit_cut_is_no_result_and_goes_on(make: type[Strategy]) -> None:
    """A training that was ended early is not the cheapest one; it is trained to its end first."""
    problem = Problem(
        space=Space({"width": Choice(values=(1, 2, 4))}), quality=Quality(metric="accuracy")
    )
    strategy = make(problem)
    full, cut = strategy.ask(), strategy.ask()
    assert isinstance(full, Segment) and isinstance(cut, Segment)
    done = Progress(status=Status.ENDED, epochs=9, time_s=9, energy_j=90.0, quality=0.9, best=0.9)
    part = Progress(status=Status.PAUSED, epochs=1, time_s=1, energy_j=5.0, quality=0.5, best=0.5)
    events = [
        StrategyEvent(full),
        StrategyEvent(cut),
        StrategyEvent(full, done),
        StrategyEvent(cut, part),
    ]
    for segment, progress in ((full, done), (cut, part)):
        strategy.tell(segment, progress)
    best = strategy.best()
    assert best is not None and best.candidate == full.candidate
    assert strategy.alive() == {cut.candidate}
    rest = strategy.ask()
    assert isinstance(rest, Segment)
    assert rest.candidate == cut.candidate and rest.key != cut.key
    again = make(problem)
    again.recall([*events, StrategyEvent(rest)])
    again.tell(rest, Progress(status=Status.ENDED, epochs=9, energy_j=55.0, quality=0.9, best=0.9))
    best = again.best()
    assert best is not None and best.candidate == cut.candidate
    assert again.alive() == frozenset()


def test_a_lower_limit_does_not_disown_what_was_trained() -> None:
    """A search that had more allowed is recalled whole, and begins nothing new."""
    problem = Problem(
        space=Space({"width": Choice(values=(1, 2, 4))}), quality=Quality(metric="accuracy")
    )
    first = Grid(problem)
    done = Progress(status=Status.ENDED, epochs=1, energy_j=5.0, quality=0.5, best=0.5)
    events: list[StrategyEvent] = []
    for _ in range(2):
        segment = first.ask()
        assert isinstance(segment, Segment)
        first.tell(segment, done)
        events += [StrategyEvent(segment), StrategyEvent(segment, done)]
    again = Grid(replace(problem, limits=Limits(candidates=1)))
    again.recall(events)
    assert again.ask() is None
