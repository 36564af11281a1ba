"""Promises of the Optuna samplers: exact after a restart, quiet, and better than chance."""

import statistics
import sys

import pytest

from wattloop.core.errors import ConfigError
from wattloop.testing.strategy_contract import check_strategy, played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.space import Choice, Integer, Real, Space
from wattloop.tune.strategies.base import Strategy, StrategyEvent
from wattloop.tune.strategies.optuna import Gp, Nsga2, Tpe

pytest.importorskip("optuna", reason="the samplers are Optuna's: pip install 'wattloop[tune]'")

FEW = Limits(candidates=7, epochs=40)


def test_tpe_keeps_the_contract() -> None:
    """The sampler is active after four random configurations."""
    problem = synthetic_problem(ranges=True, limits=FEW)
    check_strategy(lambda p: Tpe(p, startup=4), lambda: SyntheticExecutor(problem), at_once=(1, 2))


def test_nsga2_keeps_the_contract() -> None:
    """With two objectives and two generations; the second has parents."""
    problem = synthetic_problem(ranges=True, objectives=("energy", "time"), limits=FEW)
    check_strategy(lambda p: Nsga2(p, population=3), lambda: SyntheticExecutor(problem))


def test_gp_goes_on_exactly_after_a_restart() -> None:
    """The Gaussian process proposes the same from stored results; it needs torch."""
    pytest.importorskip("torch", reason="Optuna's Gaussian process needs torch")
    space = Space({"lr": Real(low=1e-3, high=1.0, log=True)})
    problem = Problem(space=space, quality=Quality(metric=""), limits=Limits(candidates=4))
    first, resumed = Gp(problem, startup=3), Gp(problem, startup=3)
    events = []
    for energy_j in (3.0, 1.0, 2.0):
        segment = first.ask()
        assert isinstance(segment, Segment)
        progress = Progress(status=Status.ENDED, time_s=1.0, energy_j=energy_j)
        first.tell(segment, progress)
        events += [StrategyEvent(segment), StrategyEvent(segment, progress)]
    resumed.recall(events)
    assert resumed.ask() == first.ask()


def test_misses_are_violations_not_results() -> None:
    """A training that misses its target for little energy does not lead the sampler astray."""
    space = Space({"x": Real(low=0.0, high=1.0)})
    quality = Quality(metric="accuracy", target=0.9)
    problem = Problem(space=space, quality=quality, limits=Limits(candidates=40))
    strategy = Tpe(problem, startup=8)
    proposed = []
    while isinstance(segment := strategy.ask(), Segment):
        x = float(segment.parameters["x"] or 0.0)
        proposed.append(x)
        good = 0.95 if x > 0.7 else 0.5 + x / 4  # cheap at 0, good enough only beyond 0.7
        progress = Progress(
            status=Status.ENDED, time_s=1.0, energy_j=10 + 100 * x, epochs=1, quality=good
        )
        strategy.tell(segment, progress)
    assert statistics.median(proposed[20:]) > 0.6
    best = strategy.best()
    assert best is not None and 0.7 < float(best.parameters["x"] or 0) < 0.8


@pytest.mark.parametrize("make", [Tpe, Nsga2])
def test_ten_thousand_events_are_recalled_without_asking_the_sampler(
    make: type[Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for five thousand proposals again would take minutes."""
    space = Space({"a": Real(low=0, high=1), "b": Integer(low=1, high=500, log=True)})
    limits = Limits(candidates=6_000)
    problem = Problem(space=space, quality=Quality(metric=""), limits=limits)
    events = []
    for number in range(5_000):
        segment = Segment(
            key=f"c{number}.0",
            candidate=f"c{number}",
            parameters={"a": number / 5_000, "b": 1 + number % 500},
        )
        progress = Progress(status=Status.ENDED, time_s=1.0, energy_j=1.0 + number * 37 % 101)
        events += [StrategyEvent(segment), StrategyEvent(segment, progress)]
    strategy = make(problem)
    with monkeypatch.context() as patch:
        patch.setattr(make, "sampler", lambda *_: pytest.fail("the sampler was asked"))
        strategy.recall(events)
    assert len(strategy.ledger) == 5_000  # type: ignore[attr-defined]  # both keep a ledger
    assert isinstance(strategy.ask(), Segment)


def test_a_finite_space_is_never_paid_for_twice() -> None:
    """Samplers repeat themselves; a configuration is trained once, and the search ends."""
    space = Space({"a": Choice(values=(1, 2, 3)), "b": Choice(values=("x", "y"))})
    problem = Problem(space=space, quality=Quality(metric=""))
    strategy = Tpe(problem, startup=2)
    seen = []
    while isinstance(segment := strategy.ask(), Segment):
        seen.append(tuple(segment.parameters.values()))
        strategy.tell(segment, Progress(status=Status.ENDED, time_s=1.0, energy_j=1.0))
    assert len(seen) == len(set(seen)) == 6


def test_it_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """Optuna's own messages about studies are not the user's business."""
    problem = synthetic_problem(ranges=True, limits=Limits(candidates=4, epochs=3))
    played(Nsga2(problem, population=2), SyntheticExecutor(problem))
    assert capfd.readouterr().err == ""


def test_each_proposal_is_another_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's own random start is used, not ours for proposals that repeat."""
    monkeypatch.setattr(Tpe, "_random", lambda *_: pytest.fail("the sampler repeated itself"))
    monkeypatch.setattr("wattloop.tune.strategies.optuna.TRIES", 1)
    problem = synthetic_problem(ranges=True, limits=Limits(candidates=9, epochs=1))
    events = played(Tpe(problem), SyntheticExecutor(problem))
    assert len({event.segment.candidate for event in events}) == 9


def test_sm2_is_refused() -> None:
    """Equation 2 compares several trainings; a sampler scores each by itself."""
    with pytest.raises(ConfigError, match="use grid, random or the strategy sm2"):
        Tpe(synthetic_problem(objectives=("sm2",)))


def test_what_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna for all of them, torch for the Gaussian process; nothing is imported before."""
    problem = synthetic_problem()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(ConfigError, match=r"gp needs torch, .* pip install torch"):
            Gp(problem)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"tpe needs optuna, .* pip install 'wattloop\[tune\]'"):
        Tpe(problem)
