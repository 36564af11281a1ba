import math
from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.testing.strategy_contract import check_strategy, played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import EpochPoint, Progress, RateLoss, Segment, Status
from wattloop.tune.space import Choice, Real, Space
from wattloop.tune.strategies import strategy_named
from wattloop.tune.strategies.sm2.sm2 import Sm2, better_half

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


def problem(**changes) -> Problem:
    facts = {
        "space": Space(
            {"batch_size": Choice(values=SIZES), "lr": Real(low=1e-3, high=1.0, log=True)}
        ),
        "quality": Quality(metric="accuracy"),
        "rate": "lr",
    }
    return Problem(**(facts | changes))


class Formula:
    """Quality and energy by batch size; remembers what it was asked for."""

    def __init__(self, *, sweeps=True, restores=True, diverges=lambda segment: False) -> None:
        self.asked: list[Segment] = []
        self.sweeps, self.restores, self.diverges = sweeps, restores, diverges
        self.spent_j: dict[str, float] = {}
        self.epochs: dict[str, float] = {}

    def run(self, segment: Segment) -> Progress:
        self.asked.append(segment)
        name, size = segment.candidate, int(segment.parameters["batch_size"])
        if (segment.rates and not self.sweeps) or (not segment.keep and not self.restores):
            return Progress(status=Status.NOT_SUPPORTED)
        if segment.rates is None and self.diverges(segment):
            return Progress(status=Status.DIVERGED, energy_j=1.0)
        before = self.epochs.get(name, 0.0)
        energy_j = 1000.0 / math.sqrt(size)
        epochs = 0.25 if segment.rates else segment.until.epochs - before
        if segment.rates:
            self.spent_j[name] = self.spent_j.get(name, 0.0) + energy_j * epochs
        curve = []
        for number in range(int(epochs)):
            self.spent_j[name] = self.spent_j.get(name, 0.0) + energy_j
            curve.append(
                EpochPoint(
                    epoch=before + number + 1,
                    quality=self.quality(size, before + number + 1),
                    time_s=1.0,
                    energy_j=self.spent_j[name],
                )
            )
        if segment.keep:
            self.epochs[name] = before + epochs
        quality = self.quality(size, before + epochs)
        rates = ()
        if segment.rates:
            rates = tuple(
                RateLoss(rate=10 ** (-3 + 3 * i / 19), loss=1 - i / 40 if i < 15 else i)
                for i in range(20)
            )
        return Progress(
            status=Status.PAUSED,
            time_s=1.0,
            energy_j=energy_j * epochs,
            epochs=self.epochs.get(name, 0.0),
            quality=quality,
            best=quality,
            curve=tuple(curve),
            rates=rates,
        )

    def quality(self, size: int, epochs: float) -> float:
        return (0.9 - 0.05 * abs(math.log2(size / 64))) * (1 - math.exp(-epochs / 4))


def search(strategy: Sm2, bench: Formula) -> list[Segment]:
    while (segment := strategy.ask()) is not None:
        strategy.tell(segment, bench.run(segment))
    return bench.asked


def test_the_contract_of_strategies() -> None:
    """Promise: sm2 keeps what every strategy keeps: resumable, deterministic, ends on failures."""
    check_strategy(Sm2)
    ranges = synthetic_problem(ranges=True, target=None)
    check_strategy(Sm2, lambda: SyntheticExecutor(ranges))


def test_the_schedule_is_the_documents() -> None:
    """Promise: explore, halve, 5 epochs, until one is left; then 10 at a time, still exploring."""
    strategy = Sm2(problem(), patience=3, least_gain=0.05)
    asked = search(strategy, Formula())
    shape = []
    for segment in asked:
        kind = "explore" if segment.rates else f"to {segment.until.epochs:g}"
        if shape and shape[-1][0] == kind:
            shape[-1][1] += 1
        else:
            shape.append([kind, 1])
    assert shape[:6] == [
        *(["explore", 8], ["to 5", 4]),
        *(["explore", 4], ["to 10", 2]),
        *(["explore", 2], ["to 20", 1]),
    ]
    assert all(not s.keep for s in asked if s.rates)
    sweep = asked[0].rates
    assert (sweep.count, sweep.low, sweep.high) == (20, 1e-3, 1.0)
    assert (sweep.data_share, sweep.cyclic) == (0.25, True)
    assert strategy.halvings == 3 and strategy.ask() is None


def test_rates_are_explored_after_the_last_halving_until_nothing_is_gained() -> None:
    """Promise: the last one continues in tens, with explorations in between, to early stopping."""
    strategy = Sm2(problem(), patience=6, least_gain=1e-4)
    asked = search(strategy, Formula())
    alone = [s for s in asked if s.candidate == strategy.best().candidate][5:]
    assert [bool(s.rates) for s in alone] == [i % 2 == 1 for i in range(len(alone))]
    assert [s.until.epochs for s in alone if not s.rates][:3] == [20, 30, 40]
    course = strategy.histories[strategy.best().candidate]
    assert course.qualities[-1] - course.qualities[-7] <= 1e-4


def test_the_other_setting_of_the_document() -> None:
    """Promise: 16 configurations and 40 rates are options."""
    sizes = tuple(2**i for i in range(16))
    space = Space({"batch_size": Choice(values=sizes), "lr": Real(low=1e-3, high=1.0, log=True)})
    strategy = strategy_named("sm2", problem(space=space), {"configurations": 16, "rates": 40})
    asked = search(strategy, Formula())
    assert [s.rates.count for s in asked[:16]] == [40] * 16
    assert sum(1 for s in asked if s.rates is None and s.until.epochs == 5) == 8


def test_alpha_decides_between_quality_and_energy() -> None:
    """Promise: alpha 1 keeps the best, alpha 0 the cheapest."""
    for alpha, size in ((1.0, 64), (0.0, 1024)):
        strategy = Sm2(problem(), alpha=alpha)
        search(strategy, Formula())
        assert strategy.best().parameters["batch_size"] == size


def test_the_rate_that_was_found_is_trained_with() -> None:
    """Promise: thorough training uses the largest stable rate of the last exploration."""
    strategy = Sm2(problem())
    asked = search(strategy, Formula())
    rate = next(s for s in asked if s.rates is None).learning_rate
    assert 0.05 < rate < 0.15  # the loss falls evenly to there and then jumps
    assert strategy.best().learning_rate == rate


@pytest.mark.parametrize(("sweeps", "restores"), [(False, True), (False, False)])
def test_only_batch_sizes_where_a_bench_cannot_do_more(sweeps, restores) -> None:
    """Promise: without sweeps a whole epoch is explored, and its result stays."""
    strategy = Sm2(problem())
    asked = search(strategy, Formula(sweeps=sweeps, restores=restores))
    trained = [s for s in asked if s.rates is None and (s.keep or restores)]
    assert trained[0].until.epochs == 1 and trained[0].keep is not restores
    assert strategy.best().parameters["batch_size"] == 64
    assert strategy.best().learning_rate is None


def test_without_a_rate_nothing_is_swept() -> None:
    """Promise: tables with one learning rate per batch size replay the batch-size half."""
    space = Space({"batch_size": Choice(values=SIZES)})
    asked = search(Sm2(problem(space=space, rate=None)), Formula())
    assert not any(s.rates for s in asked)
    assert [s.keep for s in asked[:8]] == [False] * 8


def test_those_that_diverge_are_dropped_and_the_last_begins_anew() -> None:
    """Promise: divergence costs a configuration; the last one is tried at half the rate."""
    strategy = Sm2(problem())
    search(strategy, Formula(diverges=lambda s: s.candidate in ("c3", "c2")))
    assert strategy.histories["c3"].fault == "diverged"
    assert strategy.best() is not None
    lone = Sm2(problem(), configurations=1)
    bench = Formula(diverges=lambda s: (s.learning_rate or 0) > 0.06)
    asked = search(lone, bench)
    assert lone.best().candidate == "c1" and lone.best().learning_rate < 0.06
    assert [s.candidate for s in asked[:3]] == ["c0", "c0", "c1"]


def test_a_target_ends_the_search() -> None:
    """Promise: where a quality is asked for, the first to have it is the answer."""
    bench = SyntheticExecutor(synthetic_problem(ranges=True))
    strategy = Sm2(bench.problem)
    events = played(strategy, bench)
    assert events[-1].progress.status is Status.REACHED
    assert strategy.best().candidate == events[-1].segment.candidate


def test_limits_of_the_problem_hold() -> None:
    """Promise: no more epochs and configurations than allowed."""
    bounded = problem(limits=Limits(epochs=7, candidates=3))
    asked = search(Sm2(bounded), Formula())
    assert {s.candidate for s in asked} == {"c0", "c1", "c2"}
    assert max(s.until.epochs for s in asked if s.rates is None) == 7


def test_every_epoch_is_remembered_for_the_figures() -> None:
    """Promise: exploratory and thorough epochs are in order, with energy per epoch and scores."""
    strategy = Sm2(problem())
    search(strategy, Formula())
    best = strategy.histories[strategy.best().candidate]
    assert [m.place for m in best.epoch_records] == list(range(len(best.epoch_records)))
    assert [m.exploring for m in best.epoch_records[:7]] == [True, *[False] * 5, True]
    size = best.parameters["batch_size"]
    assert all(m.energy_j == pytest.approx(1000 / math.sqrt(size)) for m in best.epoch_records)
    assert best.epoch_records[0].score is not None and best.epoch_records[1].score is None
    assert {m.candidate for m in strategy.epoch_records} == {f"c{i}" for i in range(8)}


def test_the_default_is_among_those_it_begins_with() -> None:
    """Promise: of a large space some are taken, evenly, and the default always."""
    sizes = tuple(range(10, 1010, 10))
    space = Space({"batch_size": Choice(values=sizes), "lr": Real(low=1e-3, high=1.0, log=True)})
    given = problem(space=space, default={"batch_size": 330, "lr": 0.02})
    courses = Sm2(given).histories
    begun = [c.parameters["batch_size"] for c in courses.values()]
    assert len(begun) == 8 and 330 in begun and begun[0] == 10
    assert all(c.parameters["lr"] == 0.02 for c in courses.values())


def test_half_is_kept() -> None:
    """Promise: the better half stays, of an odd number one more; ties go to the cheaper."""
    scores = {"a": 0.5, "b": 0.5, "c": 0.9}
    assert better_half(scores, {"a": 2.0, "b": 1.0, "c": 3.0}) == ["b", "c"]
    assert better_half({"a": 1.0}, {"a": 1.0}) == ["a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"data_share": 0.0}, "some of the data"),
        ({"rates": 2}, "2 rates"),
        ({"low": 1.0, "high": 0.1}, "no range"),
        ({"configurations": 0}, "at least 1"),
        ({"patience": 0}, "patience 0"),
    ],
)
def test_wrong_options_are_said(options, said) -> None:
    """Promise: an option that makes no sense is an error before anything is trained."""
    with pytest.raises(ConfigError, match=said):
        Sm2(problem(), **options)


def test_without_energy_time_stands_in() -> None:
    """Promise: where nothing is metered, the search still compares and ends."""

    class Blind(Formula):
        def run(self, segment):
            progress = super().run(segment)
            curve = tuple(replace(point, energy_j=None) for point in progress.curve)
            return replace(progress, energy_j=None, curve=curve)

    strategy = Sm2(problem())
    search(strategy, Blind())
    assert strategy.best().parameters["batch_size"] == 64
