"""The loop of strategy, bench and store."""

import pytest

from tests.tune.small import Halving, Trainings, small_problem
from wattloop.store.trial_records import read_trials
from wattloop.tune.function_bench import FunctionBench
from wattloop.tune.search_loop import Search
from wattloop.tune.search_record import SearchRecord, open_search


@pytest.fixture
def begun(store, settings):
    """Makes searches of one specification; the same one as long as it is unfinished."""

    def make(function, problem=None, strategy=None, **options):
        problem = problem or small_problem()
        experiment, _ = open_search(store, {}, "small")
        record = SearchRecord(store, experiment)
        bench = FunctionBench(function, problem, settings, folder=record.folder, tags=record.tags)
        strategy = strategy or Halving(problem)
        return Search(record, problem, strategy, bench, **options), strategy, record

    return make


def test_trainings_go_on_where_they_were_paused(begun):
    """Promise: no epoch is trained twice, and those dropped are ended, finally-blocks included."""
    trainings = Trainings(sleep_s=0.02)
    search, strategy, record = begun(trainings)
    stopped = search.run()
    assert stopped.limit == ""
    assert len(trainings.epochs) == len(set(trainings.epochs)) == 6 + 0 + 4
    assert sorted(trainings.ended) == [1, 2, 4]
    assert strategy.best().candidate == "w4"
    trials = read_trials(record.store, record.search_id)
    assert [t.key for t in trials] == ["w1/2", "w2/2", "w4/2", "w4/4", "w4/6"]
    for trial in trials:
        outcome = trial.outcome
        assert outcome["energy_j"] == pytest.approx(50 * outcome["time_s"], rel=0.3)
        assert outcome["provenance"] == "measured"
        assert trial.run_id
    curve = trials[-1].outcome["curve"]
    assert [point["epoch"] for point in curve] == [5, 6]
    assert curve[-1]["energy_j"] > trials[0].outcome["energy_j"]
