"""Learning rates in a race: the default keeps its own, those of others are measured against it."""

import json

import pytest

from wattloop.testing.strategy_contract import played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.search_problem import Problem, Quality
from wattloop.tune.segment import Progress, RateLoss, RateSweep, Status
from wattloop.tune.space import Choice, Real, Space
from wattloop.tune.strategies.race.learning_rates import PickedRate, RateAnchor
from wattloop.tune.strategies.race.race import Race
from wattloop.tune.strategies.race.runner import Runner
from wattloop.tune.strategies.race.segments import Segments
from wattloop.tune.strategies.race.warm_start import WarmStart

LOSSES = [RateLoss(rate=10.0 ** (i / 4 - 3), loss=1.0) for i in range(13)]
"""Of a sweep that is fine enough to be compared."""
SWEEP = RateSweep(low=1e-3, high=1.0, count=13)


def pair(**parameters) -> tuple[Runner, Runner]:
    """The default and another, which differ in their batch size."""
    return tuple(
        Runner(name, {"batch": size, "lr": 0.1, **parameters})
        for name, size in (("c0", 32), ("c1", 64))
    )


def problem(**options) -> Problem:
    """Batch sizes and a wide range of rates."""
    space = {"batch": Choice(values=(32, 64)), "lr": Real(low=1e-6, high=10.0, log=True)}
    default = {"batch": 32, "lr": 0.1}
    options = {"space": Space(space), "default": default, "rate": "lr", **options}
    return Problem(quality=Quality(metric="accuracy", target=0.9), **options)


def falling_at(place: int) -> Progress:
    """A sweep whose loss falls at one of 13 rates, and grows beyond all bounds two later."""
    losses = [2.0] * place + [1.0, 1.0] + [9.0] * (11 - place)
    rates = tuple(
        RateLoss(rate=one.rate, loss=loss) for one, loss in zip(LOSSES, losses, strict=True)
    )
    return Progress(status=Status.PAUSED, time_s=1.0, energy_j=1.0, rates=rates)


@pytest.mark.parametrize(
    ("default_swept", "other_swept", "expected"),
    [
        pytest.param(0.02, 0.04, 0.2, id="twice where it falls, twice the rate"),
        pytest.param(0.02, 0.02, 0.1, id="the same"),
        pytest.param(0.02, 0.9, 0.8, id="no more than eight times"),
        pytest.param(0.9, 0.01, 0.0125, id="no less than an eighth"),
        pytest.param(None, 0.02, None, id="a sweep that says nothing leaves the default's"),
        pytest.param(0.02, None, None, id="nor does one of the other"),
    ],
)
def test_rates_of_others_are_measured_against_the_defaults(default_swept, other_swept, expected):
    """Promise: the default keeps the rate it was given; a sweep says how another differs."""
    default, other = pair()
    anchor = RateAnchor(default, 0.1)
    found = [None if rate is None else PickedRate(rate, 0) for rate in (default_swept, other_swept)]
    assert anchor.compared(default, LOSSES, found[0]) is None
    assert anchor.compares(other)
    rate = anchor.compared(other, LOSSES, found[1])
    assert rate == (None if expected is None else pytest.approx(expected))


def test_a_short_sweep_is_not_compared():
    """Promise: five rates over three decades do not tell two candidates from each other."""
    default, other = pair()
    anchor = RateAnchor(default, 0.1)
    anchor.compared(default, LOSSES, PickedRate(0.02, 0))
    assert anchor.compared(other, LOSSES[:5], PickedRate(0.04, 0)) is None


def test_rates_of_another_kind_are_not_measured_against_the_defaults():
    """Promise: rates for SGD give no information on Adam; the names of parameters count, too."""
    anchor = RateAnchor(Runner("c0", {"optimizer": "sgd", "lr": 0.1}), 0.1)
    assert not anchor.compares(Runner("c1", {"optimizer": "adam", "lr": 0.1}))
    assert anchor.compares(Runner("c2", {"optimizer": "sgd", "batch": 8, "lr": 0.1}))
    anchor = RateAnchor(Runner("c0", {"first": "relu", "last": "tanh", "lr": 0.1}), 0.1)
    assert not anchor.compares(Runner("c1", {"first": "tanh", "last": "relu", "lr": 0.1}))


def test_a_rate_that_is_far_from_its_own_sweep_is_not_built_upon():
    """Promise: then the others are swept as if the default named none, further at the edge; the
    default keeps its rate.
    """
    default, other = pair()
    segments = Segments(problem(default={"batch": 32, "lr": 5.0}), [default, other])
    segments.swept(default, SWEEP, falling_at(6))
    assert default.learning_rate is None and default.sweep is None
    segments.swept(other, SWEEP, falling_at(1))
    assert other.learning_rate == pytest.approx(LOSSES[1].rate)
    assert other.sweep is not None and other.sweep.low < SWEEP.low


def test_a_comparison_stays_within_what_the_parameter_may_be():
    """Promise: a listed rate is taken where rates are listed, and no rate is out of its range."""
    listed = Choice(values=(0.03, 0.1, 0.4))
    for parameter, expected in ((listed, 0.4), (Real(low=1e-4, high=0.15), 0.15)):
        default, other = pair()
        space = Space({"batch": Choice(values=(32, 64)), "lr": parameter})
        segments = Segments(problem(space=space), [default, other])
        segments.swept(default, SWEEP, falling_at(5))
        segments.swept(other, SWEEP, falling_at(7))
        assert other.learning_rate == pytest.approx(expected)


def test_the_default_trains_at_the_rate_it_names():
    """Promise: it stays in the race unchanged, whatever a sweep of its rates shows."""
    searched = synthetic_problem(ranges=True)
    events = played(Race(searched), SyntheticExecutor(searched))
    own = [e.segment for e in events if e.segment.candidate == "c0"]
    assert any(segment.rates is not None for segment in own)
    trained = [segment for segment in own if segment.rates is None]
    assert trained
    assert all(segment.learning_rate is None for segment in trained)
    assert all(segment.parameters["lr"] == searched.default["lr"] for segment in trained)


@pytest.mark.parametrize("others", [(), ("adam",)])
def test_a_default_with_which_nobody_is_compared_is_not_swept(others):
    """Promise: a sweep without use for a comparison costs no joules."""
    space = Space(
        {"optimizer": Choice(values=("sgd", *others)), "lr": Real(low=1e-4, high=1.0, log=True)}
    )
    race = Race(problem(space=space, default={"optimizer": "sgd", "lr": 0.1}))
    assert len(race.runners) == 1 + len(others)
    assert race.ask().rates is None


@pytest.mark.parametrize("capped", [False, True])
def test_a_known_job_is_trained_at_the_rate_that_was_found(capped):
    """Promise: the next time nothing is swept, and what was learned at a rate is used at that."""
    searched, memory, found = synthetic_problem(ranges=True, capped=capped), WarmStart(), []
    for run in range(3):
        race = Race(searched, memory=memory)
        events = played(race, SyntheticExecutor(searched, seed=run))
        found.append((race.best().candidate, race.best().learning_rate))
        assert any(e.segment.rates is not None for e in events) is (run == 0)
        race.remember(memory)
        memory = WarmStart.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert found[0][1] is not None
    assert found == found[:1] * 3


def test_a_default_that_is_known_is_not_swept_again_and_still_compared_with():
    """Promise: where its loss fell is remembered, for candidates that are swept later."""
    default, other = pair()
    Segments(problem(), [default, other]).swept(default, SWEEP, falling_at(5))
    default.reached = 3.0
    memory = WarmStart()
    memory.add([(problem().default, default)])
    race = Race(problem(), memory=WarmStart.from_dict(json.loads(json.dumps(memory.to_dict()))))
    again, late = race.runners
    segments = Segments(problem(), race.runners)
    assert segments.next(again, 1.0).rates is None
    assert segments.next(late, 1.0).rates is not None
    segments.swept(late, SWEEP, falling_at(6))
    assert late.learning_rate == pytest.approx(0.1 * 10**0.25)
