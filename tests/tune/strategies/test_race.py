"""`race`: the contract of strategies, and what it promises beyond."""

import json
import re
from dataclasses import replace

import pytest

from tests.tune.replay.small_tables import write_tables
from wattloop.core.errors import ConfigError
from wattloop.testing.strategy_contract import check_strategy, played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.replay.executor import CapScripts, ReplayExecutor
from wattloop.tune.replay.recurring_jobs import replay_problem
from wattloop.tune.replay.tables import read_workloads
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import (
    CAP_LEVER,
    CapFound,
    CapRequest,
    EpochPoint,
    Progress,
    RateLoss,
    Segment,
    Status,
)
from wattloop.tune.space import Choice, Space
from wattloop.tune.strategies.base import Strategy
from wattloop.tune.strategies.race.learning_rates import (
    first_sweep,
    nearest_rate,
    pick_rate,
    widen_sweep,
)
from wattloop.tune.strategies.race.race import Race
from wattloop.tune.strategies.race.ranking import TargetProgress
from wattloop.tune.strategies.race.runner import Runner
from wattloop.tune.strategies.race.warm_start import WarmStart


def test_keeps_the_contract_of_strategies():
    """Resumed anywhere, failing anywhere, it asks what it should."""
    check_strategy(Race)


def test_keeps_the_contract_with_ranges_and_caps():
    """Also where parameters are ranges and caps are looked for inside trainings."""
    check_strategy(Race, lambda: SyntheticExecutor(synthetic_problem(ranges=True, capped=True)))


@pytest.mark.parametrize("objectives", [("time",), ("edp",), ("quality",), ("energy", "time")])
def test_other_objectives_come_to_an_end(objectives):
    """Whatever is made small, one that is good enough is chosen."""
    bench = SyntheticExecutor(synthetic_problem(objectives=objectives))
    race = Race(bench.problem)
    played(race, bench)
    assert race.best() is not None


def test_without_a_target_the_winner_is_trained_to_the_limit():
    """Then candidates are compared at qualities that two of them have reached."""
    bench = SyntheticExecutor(synthetic_problem(target=None))
    race = Race(bench.problem)
    played(race, bench)
    assert race.best() is not None


def test_without_a_meter_time_is_spent():
    """Then the budget is in seconds, and no message mentions joules."""
    metered, blind = (SyntheticExecutor(noise=0.0, metered=known) for known in (True, False))
    for bench in (metered, blind):
        race = Race(bench.problem)
        played(race, bench)
    assert re.search(r" of [\d.]+ m?s each", race.best().why)
    assert "J" not in race.best().why
    assert blind.epochs_trained < 2 * metered.epochs_trained


def trainings(strategy: Strategy, run) -> list[Segment]:
    """Every segment that is asked for; `run` makes its progress."""
    asked = []
    while (segment := strategy.ask()) is not None:
        assert isinstance(segment, Segment)
        asked.append(segment)
        strategy.tell(segment, run(segment))
    return asked


def batches(**options) -> Problem:
    """Three batch sizes, the middle one the default."""
    return Problem(
        space=Space({"batch_size": Choice(values=(16, 64, 256))}),
        quality=Quality(metric="accuracy", target=0.9),
        default={"batch_size": 64},
        limits=Limits(epochs=50),
        **options,
    )


class Linear:
    """Trainings whose quality grows evenly to 0.9; windows last a hundredth of an epoch."""

    def __init__(self, needed, epoch_j, floor=0.0):
        self.needed, self.epoch_j, self.floor = needed, epoch_j, floor
        self.epochs: dict[str, float] = {}

    def __call__(self, segment: Segment) -> Progress:
        size = segment.parameters["batch_size"]
        begin = self.epochs.get(segment.candidate, 0.0)
        need, epoch_j = self.needed[size], self.epoch_j[size]
        end = begin + 0.01 if segment.until.anywhere else min(segment.until.epochs or need, need)
        self.epochs[segment.candidate] = end
        points = [n for n in range(1, 100) if begin < n <= end]
        curve = tuple(
            EpochPoint(
                epoch=n,
                quality=self.floor + (0.9 - self.floor) * min(n / need, 1.0),
                time_s=n,
                energy_j=n * epoch_j,
            )
            for n in points
        )
        reached = end >= need
        found = CapFound(cap_w=150.0, energy_ratio=0.9) if segment.cap is not None else None
        return Progress(
            status=Status.REACHED if reached else Status.PAUSED,
            time_s=end - begin,
            energy_j=(end - begin) * epoch_j,
            epochs=end,
            quality=curve[-1].quality if curve else None,
            best=curve[-1].quality if curve else None,
            curve=curve,
            cap=found,
        )


class Starting:
    """Trainings that pause at the ends of epochs only, and take `start_j` to begin."""

    def __init__(self, needed, epoch_j, start_j):
        self.needed, self.epoch_j, self.start_j = needed, epoch_j, start_j
        self.epochs: dict[str, int] = {}

    def __call__(self, segment: Segment) -> Progress:
        size = segment.parameters["batch_size"]
        begin = self.epochs.get(segment.candidate, 0)
        wanted = begin + 1 if segment.until.anywhere else round(segment.until.epochs)
        end = min(wanted, self.needed[size])
        self.epochs[segment.candidate] = end
        curve = tuple(
            EpochPoint(
                epoch=n,
                quality=0.9 * n / self.needed[size],
                time_s=n,
                energy_j=self.start_j + n * self.epoch_j[size],
            )
            for n in range(begin + 1, end + 1)
        )
        return Progress(
            status=Status.REACHED if end >= self.needed[size] else Status.PAUSED,
            time_s=end - begin,
            energy_j=(end - begin) * self.epoch_j[size] + (0.0 if begin else self.start_j),
            epochs=end,
            quality=curve[-1].quality,
            best=curve[-1].quality,
            curve=curve,
        )


def test_a_start_is_no_part_of_an_epoch():
    """Imports and data are paid once: epochs are compared without them."""
    race = Race(batches())
    trainings(race, Starting({16: 30, 64: 30, 256: 30}, {16: 12.0, 64: 10.0, 256: 2.0}, 50.0))
    assert race.best().parameters == {"batch_size": 256}
    default, winner = (r for r in race.runners if r.parameters["batch_size"] in (64, 256))
    assert default.epoch.energy_j == pytest.approx(10.0)
    assert winner.epoch.energy_j == pytest.approx(2.0)
    assert race.ranking.start.energy_j == pytest.approx(50.0)


def test_the_start_of_one_is_assumed_of_another():
    """After one epoch of a second candidate its own start is unknown, and the first one's is
    known.
    """
    race, bench = Race(batches()), Starting({16: 30, 64: 30, 256: 30}, {64: 10.0, 256: 2.0}, 200.0)
    first = race.ask()
    while first.parameters["batch_size"] == 64:
        race.tell(first, bench(first))
        first = race.ask()
    bench.epoch_j[first.parameters["batch_size"]] = 50.0
    race.tell(first, bench(first))
    other = next(r for r in race.runners if r.name == first.candidate)
    assert other.epochs == 1
    assert other.epoch.energy_j == pytest.approx(50.0)


def test_others_are_not_started_for_less_than_that_costs():
    """A start that takes more than any saving is worth leaves the default alone."""
    bench = Starting({16: 8, 64: 10, 256: 14}, {16: 12.0, 64: 10.0, 256: 6.0}, 10_000.0)
    asked = trainings(Race(batches()), bench)
    assert {segment.parameters["batch_size"] for segment in asked} == {64}


def test_joules_decide_not_epochs():
    """The largest batch needs more epochs than any other, and least energy."""
    bench = Linear({16: 8, 64: 10, 256: 14}, {16: 40.0, 64: 10.0, 256: 2.0})
    race = Race(batches())
    trainings(race, bench)
    assert race.best().parameters == {"batch_size": 256}


def test_a_short_job_tries_only_its_cap():
    """One that is done in three epochs is not worth comparing with others as dear."""
    bench = Linear({16: 3, 64: 3, 256: 3}, {16: 11.0, 64: 10.0, 256: 11.0}, floor=0.85)
    race = Race(batches(cap=CapRequest()))
    asked = trainings(race, bench)
    others = [s for s in asked if s.parameters["batch_size"] != 64]
    assert not [s for s in others if not s.until.anywhere]
    assert race.best().levers == {CAP_LEVER: 150.0}


def test_what_costs_too_much_is_only_looked_at_for_seconds():
    """An epoch of 16 costs as much as ten trainings of the default."""
    bench = Linear({16: 10, 64: 10, 256: 10}, {16: 1000.0, 64: 10.0, 256: 9.0})
    asked = trainings(Race(batches()), bench)
    dear = [s for s in asked if s.parameters["batch_size"] == 16]
    assert all(segment.until.anywhere for segment in dear)


def leading(needed, epoch_j) -> tuple[int, int]:
    """Return the leader, and the candidate of least expected cost, after one epoch of two."""
    race, bench = Race(batches()), Linear(needed, epoch_j)
    while sum(bool(runner.points) for runner in race.runners) < 2:
        segment = race.ask()
        race.tell(segment, bench(segment))
    costs = race.ranking.costs
    sizes = [runner.parameters["batch_size"] for runner in race.runners]
    return sizes[race.ranking.leader(race.runs)], sizes[min(costs, key=costs.__getitem__)]


def test_the_default_leads_until_a_lead_in_epochs_is_more_than_a_promise():
    """A little more quality after an epoch does not make another the leader, a cheaper epoch does,
    nor is much more quality overlooked.
    """
    equal = {16: 10.0, 64: 10.0, 256: 10.0}
    assert leading({16: 11, 64: 12, 256: 11}, equal) in ((64, 16), (64, 256))
    leader, cheapest = leading({16: 3, 64: 12, 256: 3}, equal)
    assert leader == cheapest != 64
    leader, cheapest = leading({16: 12, 64: 12, 256: 12}, {16: 8.0, 64: 10.0, 256: 8.0})
    assert leader == cheapest != 64


def test_the_default_is_kept_alive():
    """It is never given up, however far behind it is."""
    bench = Linear({16: 40, 64: 40, 256: 4}, {16: 10.0, 64: 10.0, 256: 1.0})
    race = Race(batches())
    trainings(race, bench)
    assert "c0" in race.alive()
    assert race.best().parameters == {"batch_size": 256}


def test_every_survivor_has_its_own_cap():
    """A cap is searched in the first epoch of each, and stays."""
    bench = Linear({16: 20, 64: 20, 256: 20}, {16: 10.0, 64: 9.0, 256: 8.0})
    asked = trainings(Race(batches(cap=CapRequest())), bench)
    for name in {s.candidate for s in asked if not s.until.anywhere}:
        own = [s for s in asked if s.candidate == name and not s.until.anywhere]
        assert own[0].cap is not None
        assert all(s.levers == {CAP_LEVER: 150.0} and s.cap is None for s in own[1:])


def test_a_segment_too_short_for_a_cap_is_not_the_last_word():
    """It is looked for again in a longer segment; one that may not be set is not."""
    needed, epoch_j = {16: 30, 64: 30, 256: 30}, {16: 10.0, 64: 9.0, 256: 8.0}

    def caps(too_short):
        bench, looked = Linear(needed, epoch_j), []

        def run(segment):
            progress = bench(segment)
            if segment.cap is None or (too_short and progress.time_s > 20):
                return progress
            looked.append(segment.candidate)
            cap = CapFound(cap_w=None, reason="none", too_short=too_short)
            return replace(progress, cap=cap)

        race = Race(batches(cap=CapRequest()))
        return looked, trainings(race, run), race.best()

    looked, asked, best = caps(too_short=True)
    assert looked and best.levers == {CAP_LEVER: 150.0}
    looked, asked, best = caps(too_short=False)
    assert best.levers == {}
    assert len([s for s in asked if s.cap is not None]) == len(set(looked)) == len(looked)


def test_the_leader_that_never_gets_there_is_replaced():
    """One that learns fast at first and ends below the target costs its epochs, not the search."""
    fair = Linear({16: 12, 64: 12, 256: 12}, {16: 10.0, 64: 10.0, 256: 10.0})

    def run(segment):
        progress = fair(segment)
        if segment.parameters["batch_size"] == 256 and progress.epochs >= 11:
            return Progress(status=Status.ENDED, epochs=progress.epochs, energy_j=10.0, best=0.8)
        return progress

    race = Race(batches())
    trainings(race, run)
    assert race.best().parameters["batch_size"] != 256


def test_one_that_stands_still_needs_ever_more():
    """Also where that is more than it may have: else a leader is trained in vain to its limit."""
    course = TargetProgress(replace(batches(), limits=Limits(epochs=8)))
    needed = [
        course.needed(Runner("c0", {}, epochs=epochs, points=[(2.0, 0.4), (epochs, 0.4)]))
        for epochs in (4.0, 6.0, 8.0)
    ]
    assert needed == sorted(set(needed))
    assert needed[0] > 8


def test_windows_go_on_until_energy_is_known():
    """To 2%: with 5% a window, seven of them."""
    bench = Linear({16: 9, 64: 9, 256: 9}, {16: 10.0, 64: 10.0, 256: 10.0})

    def run(segment):
        progress = bench(segment)
        error_j = 0.05 * progress.energy_j if segment.until.anywhere else 0.0
        return Progress(
            **{f: getattr(progress, f) for f in Progress.__slots__ if f != "uncertainty_j"},
            uncertainty_j=error_j,
        )

    asked = trainings(Race(batches()), run)
    windows = [s for s in asked if s.candidate == "c0" and s.until.anywhere]
    assert len(windows) == 7


def test_a_job_that_is_known_is_trained_at_once(tmp_path):
    """The second time nothing is searched, and the memory survives JSON."""
    tables = write_tables(tmp_path)
    workload = read_workloads([tables.power], tables.train, tables.problems)[0][0]
    memory = WarmStart()
    for run in range(3):
        race = Race(replay_problem(workload, 0), memory=memory)
        bench = ReplayExecutor(workload, CapScripts(), [run])
        asked = trainings(race, bench.run)
        race.remember(memory)
        memory = WarmStart.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert {segment.parameters["batch_size"] for segment in asked} == {64}
    assert asked[0].levers == {CAP_LEVER: 100.0}
    assert asked[0].cap is None


def test_wrong_options_are_refused():
    """With what to give."""
    with pytest.raises(ConfigError, match="runs is 0; give a number above 0"):
        Race(batches(), runs=0)
    with pytest.raises(ConfigError, match="budget is -1"):
        Race(batches(), budget=-1)


# -- learning rates ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "low", "high"),
    [
        ({"optimizer": "sgd", "lr": 0.1}, 1e-3, 1.0),
        ({"optimizer": "Adam", "lr": 0.001}, 1e-5, 1e-1),
        ({"optimizer": "adamw", "lr": 2e-5}, 1e-7, 1e-3),
    ],
)
def test_the_range_of_rates_follows_the_optimizer(parameters, low, high):
    """SGD, Adam and fine-tuning each have their own, in at least ten steps."""
    sweep = first_sweep(parameters, "lr", Choice(values=(parameters["lr"],)))
    assert (sweep.low, sweep.high) == (low, high)
    assert sweep.count >= 10
    assert sweep.steps_each >= 10


def losses(*values: float) -> list[RateLoss]:
    return [RateLoss(rate=10.0 ** (i - 5), loss=loss) for i, loss in enumerate(values)]


def test_the_rate_is_where_the_loss_falls_fastest():
    """Before it grows again."""
    found = pick_rate(losses(2.30, 2.29, 2.27, 2.0, 1.4, 1.2, 9.0, float("inf")))
    assert found.rate == pytest.approx(0.1)
    assert found.edge == 0


def test_a_rate_at_the_edge_widens_the_range():
    """One more decade on that side, as far as the parameter goes."""
    found = pick_rate(losses(2.3, 2.29, 2.28, 2.2, 2.0, 1.5))
    assert found.edge == 1
    sweep = first_sweep({"optimizer": "sgd"}, "lr", Choice(values=(0.1,)))
    wider = widen_sweep(sweep, 1, Choice(values=(0.1,)))
    assert wider is not None
    assert wider.high == pytest.approx(10 * sweep.high)
    assert widen_sweep(sweep, 1, Choice(values=(0.001, 1.0))) is None


def test_a_rate_is_one_the_parameter_may_have():
    """The nearest on a logarithmic scale."""
    assert nearest_rate(0.02, Choice(values=(0.001, 0.01, 0.1))) == 0.01


def test_nothing_is_picked_where_no_rate_learns():
    """Then the default's rate stays."""
    assert pick_rate(losses(1.0, 1.0, 1.01, 1.02)) is None
    assert pick_rate([]) is None


def test_sweeps_find_the_rate_of_each_candidate():
    """Where the problem has a rate, the chosen one was swept."""
    problem = synthetic_problem(ranges=True)
    assert problem.rate is not None
    bench = SyntheticExecutor(problem)
    race = Race(problem)
    events = played(race, bench)
    swept = [e.segment for e in events if e.segment.rates is not None]
    assert swept
    assert all(not segment.keep for segment in swept)
    assert race.best().learning_rate is not None
