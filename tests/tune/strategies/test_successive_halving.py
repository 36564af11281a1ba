"""Promises of `asha` and `hyperband`: joules are the resource, and trainings continue."""

import math

import pytest

from wattloop.core.errors import ConfigError
from wattloop.testing.strategy_contract import check_strategy, played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.search_problem import Limits
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.strategies.base import WAIT, StrategyEvent
from wattloop.tune.strategies.exhaustive import Grid
from wattloop.tune.strategies.successive_halving import Asha, Hyperband, RungLadder


def test_asha_keeps_the_contract() -> None:
    """Over ranges, with a cap searched inside trainings."""
    check_strategy(Asha, lambda: SyntheticExecutor(synthetic_problem(ranges=True, capped=True)))


def test_hyperband_keeps_the_contract() -> None:
    """With several brackets and a rung in joules."""
    limits = Limits(candidates=17, epochs=40)
    problem = synthetic_problem(ranges=True, limits=limits)
    check_strategy(
        lambda p: Hyperband(p, rung_energy="2 kJ"),
        lambda: SyntheticExecutor(problem),
        at_once=(1, 2),
    )


def test_hyperband_begins_as_many_configurations_as_it_may() -> None:
    """Round after round of brackets, also where a round is small."""
    for most in (4, 10, 40):
        problem = synthetic_problem(ranges=True, limits=Limits(candidates=most, epochs=40))
        events = played(strategy := Hyperband(problem), SyntheticExecutor(problem))
        assert len({event.segment.candidate for event in events}) == most
        assert strategy.best() is not None


def test_asha_finds_the_best_for_a_fraction_of_a_grid() -> None:
    """Same choice as training everything, for less than a fifth of the energy."""
    all_bench, some_bench = SyntheticExecutor(noise=0.0), SyntheticExecutor(noise=0.0)
    grid, asha = Grid(all_bench.problem), Asha(some_bench.problem)
    played(grid, all_bench)
    played(asha, some_bench)
    one, other = grid.best(), asha.best()
    assert one is not None and other is not None and one.parameters == other.parameters
    assert some_bench.energy_j < all_bench.energy_j / 5


def test_rungs_are_joules_in_all_not_epochs() -> None:
    """A segment asks for what is left to the rung, and pauses near it whatever the batch size."""
    bench = SyntheticExecutor(noise=0.0)
    strategy = Asha(bench.problem, rung_energy=4_000.0, eta=2, rungs=3)
    events = played(strategy, bench)
    used: dict[str, float] = {}
    reached = False  # then no trial goes further than the best one did
    for event in events:
        name = event.segment.candidate
        if event.progress is None:
            left = event.segment.until.energy_j
            if left is not None and event.segment.key.endswith(".0"):
                assert left == 4_000.0
            elif left is not None and not reached:
                assert used[name] + left == pytest.approx(8_000.0)
            continue
        assert event.progress.energy_j is not None
        used[name] = used.get(name, 0.0) + event.progress.energy_j
        reached = reached or event.progress.status is Status.REACHED
    again = [e for e in events if e.progress is None and not e.segment.key.endswith(".0")]
    assert again, "some are paused and go on"


def test_the_first_rung_is_what_the_default_needs_for_an_epoch() -> None:
    """Unless joules are given; the others wait until that is known."""
    bench = SyntheticExecutor(noise=0.0)
    strategy = Asha(bench.problem, rung_epochs=2)
    first = strategy.ask()
    assert isinstance(first, Segment) and first.until.epochs == 2
    assert dict(first.parameters) == bench.problem.default
    assert strategy.ask() is WAIT
    progress = bench.run(first)
    strategy.tell(first, progress)
    second = strategy.ask()
    assert isinstance(second, Segment) and second.until.energy_j == progress.energy_j


def test_who_has_used_more_than_the_best_is_let_go() -> None:
    """With least energy as the objective it could not win any more."""
    bench = SyntheticExecutor(noise=0.0)
    strategy = Asha(bench.problem)
    events = played(strategy, bench)
    best = strategy.best()
    assert best is not None
    least = strategy.ledger.candidates[best.candidate].energy_j
    place = next(
        i
        for i, e in enumerate(events)
        if e.segment.candidate == best.candidate and e.progress and e.progress.status == "reached"
    )
    used = {}
    for number, event in enumerate(events):
        if event.progress is not None and event.progress.energy_j is not None:
            name = event.segment.candidate
            used[name] = used.get(name, 0.0) + event.progress.energy_j
        elif number > place:
            before = used.get(event.segment.candidate, 0.0)
            assert before < (least or 0.0)
            if not event.segment.key.endswith(".0"):  # and it may go no further than that
                assert before + (event.segment.until.energy_j or math.inf) <= (least or 0) + 1e-6


def test_a_ladder_lets_the_best_third_climb() -> None:
    """Ties go to the cheaper one; a training with more use so far is ranked higher at once."""
    ladder = RungLadder(100.0, 3.0, 3, 9, 16)
    for number, loss in enumerate([5.0, 4.0]):
        ladder.arrive(f"c{number}", 0, loss, 100.0, waits=True)
    assert ladder.climber() is None
    ladder.arrive("c2", 0, 4.0, 99.0, waits=True)
    assert ladder.climber() == "c2" and ladder.climber() is None
    ladder.arrive("big", 0, 1.0, 350.0, waits=True)
    assert ladder.rung_of("big") == 1 and ladder.bound_j(2) is None


def test_few_trainings_wait_at_once() -> None:
    """Paused trainings use memory: only those that may still be promoted stay."""
    ladder = RungLadder(100.0, 3.0, 3, 9, 16)
    for number in range(9):
        ladder.arrive(f"c{number}", 0, float(number), 100.0, waits=True)
    assert ladder.waiting() == {"c0", "c1", "c2", "c3"}
    small = RungLadder(100.0, 3.0, 3, None, 2)
    for number in range(9):
        small.arrive(f"c{number}", 0, -float(number), 100.0, waits=True)
    assert small.waiting() == {"c7", "c8"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"eta": 1}, "eta is 1; give a number above 1"),
        ({"rung_energy": -3.0}, "rung_energy is -3.0"),
        ({"rungs": 0}, "rungs is 0"),
        ({"rung_epochs": 0}, "rung_epochs is 0"),
        ({"paused": 0}, "paused is 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], said: str) -> None:
    """With what would be right."""
    with pytest.raises(ConfigError, match=said):
        Asha(synthetic_problem(), **options)  # type: ignore[arg-type]  # wrong on purpose


def test_thousands_of_events_are_recalled() -> None:
    """A long search resumes where it was."""
    problem = synthetic_problem(ranges=True, limits=Limits(candidates=4_000))
    first = Asha(problem)
    events = []
    while isinstance(segment := first.ask(), Segment) and len(events) < 10_000:
        number = int(segment.candidate[1:])
        progress = Progress(
            status=Status.PAUSED,
            time_s=1.0,
            energy_j=segment.until.energy_j or 50.0,
            epochs=1.0,
            quality=(number * 7919 % 1000) / 1300,
        )
        first.tell(segment, progress)
        events += [StrategyEvent(segment), StrategyEvent(segment, progress)]
    second = Asha(problem)
    # the last segment was requested but has no result
    second.recall([*events, *([StrategyEvent(segment)] if isinstance(segment, Segment) else [])])
    assert len(events) >= 10_000
    assert second.ask() == first.ask() and second.alive() == first.alive()
