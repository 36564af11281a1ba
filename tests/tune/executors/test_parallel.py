"""Trainings side by side on virtual GPUs, each with the energy of its own."""

import functools
import time
from dataclasses import replace

import pytest

from tests.support.virtual_caps import settle
from tests.tune.loading import train
from tests.tune.small import Halving, small_problem
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.store.database import open_store
from wattloop.store.experiments import read_trials
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.executors.parallel import ParallelExecutor
from wattloop.tune.search_loop import Search
from wattloop.tune.search_setup import parse_device_groups
from wattloop.tune.search_store import SearchRecord, open_search
from wattloop.tune.segment import Segment, Status, Until
from wattloop.virtual.node import shared_gpus


def made(problem, folder, settings):
    return FunctionExecutor(train, problem, settings, folder=folder, scope="gpu")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Settings(
        virtual_gpus=2,
        meters=("virtual",),
        interval_s=0.02,
        store=str(tmp_path / "runs.db"),
    )


@pytest.fixture
def bench(settings, tmp_path):
    made_benches = []

    def make(problem, asked=2):
        build = functools.partial(made, problem, tmp_path / "files")
        made_benches.append(ParallelExecutor(build, settings, parse_device_groups(asked)))
        return made_benches[-1]

    yield make
    for each in made_benches:
        each.close()


def test_each_training_has_the_energy_of_its_own_gpu(bench, settings):
    """Promise: side by side, energy by device, waiting devices charged, resumed in its order."""
    problem = small_problem(widths=(1, 2, 4))
    ends_s = []

    class Watch:
        def begins(self, segment, spent): ...

        def ended(self, segment, progress, spent):
            ends_s.append(time.monotonic())

    with open_store(settings.store_location) as store:
        record = SearchRecord(store, open_search(store, {}, "side by side")[0])
        strategy = Halving(problem, rounds=(2, 4))
        begin_s = time.monotonic()
        stopped = Search(record, problem, strategy, bench(problem), listener=Watch()).run()
        trials = read_trials(store, record.search_id)
    assert strategy.best().candidate == "w4"
    outcomes = [trial.outcome for trial in trials]
    assert {o["metrics"]["gpu"] for o in outcomes} == {0, 1}
    for outcome in outcomes:
        # one card at full load, and not two; on a busy machine it is idle at first
        assert 120 < outcome["energy_j"] / outcome["time_s"] < 1000
        assert outcome["provenance"] == "simulated"
    cards = shared_gpus(2)
    drawn_j = sum(card.true_energy_j(begin_s, ends_s[-1]) for card in cards)
    charged_j = sum(o["energy_j"] + o["idle_j"] for o in outcomes)
    assert charged_j == pytest.approx(drawn_j, rel=0.25)  # nothing is paid twice or forgotten
    first, second = trials[:2]
    assert second.settings["asked"] < first.outcome["told"]  # both were under way at once
    assert sum(o["idle_j"] for o in outcomes) > 0
    assert stopped.spent.idle_j == pytest.approx(sum(o["idle_j"] for o in outcomes))
    again = Halving(problem, rounds=(2, 4))
    with open_store(settings.store_location) as store:
        again.recall(SearchRecord(store, record.experiment).history().events)
    assert again.ask() is None
    assert again.best().candidate == "w4"


def test_a_worker_that_dies_is_replaced(bench):
    """Promise: its segment is killed, with the energy it took; the next one runs."""
    problem = small_problem(widths=(13, 1))
    one = bench(problem, 1)
    progress = one.run(Segment(key="a", candidate="a", parameters={"width": 13}))
    assert progress.status is Status.KILLED
    assert progress.energy_j > 0
    again = Segment(key="b", candidate="b", parameters={"width": 1}, until=Until(epochs=1))
    assert one.run(again).status is Status.PAUSED


def test_others_of_a_worker_that_died_go_on(settings, tmp_path):
    """Promise: lost training is repeated at its own cost, and counts once."""
    problem = small_problem(widths=(13, 1))
    one = ParallelExecutor(functools.partial(made, problem, tmp_path / "files"), settings, [("0",)])
    try:
        paused = Segment(
            key="b1", candidate="b", parameters={"width": 1}, until=Until(epochs=2), seed=1
        )
        assert one.run(paused).epochs == 2
        assert one.run(Segment(key="a", candidate="a", parameters={"width": 13})).status == "killed"
        again = one.run(replace(paused, key="b2", until=Until(epochs=3)))
    finally:
        one.close()
    assert (again.status, again.epochs) == (Status.PAUSED, 3)
    assert [point.epoch for point in again.curve] == [3]
    assert again.repeated_s > 0
    assert again.repeated_j > 0


@pytest.mark.parametrize("asked", ["", "0;", "0,0", "a", "0;0"])
def test_wrong_groups_are_refused(asked):
    """Promise: a clear message for groups that are none or share a GPU."""
    with pytest.raises(ConfigError, match="parallel"):
        parse_device_groups(asked)


def test_gpus_that_are_not_read_are_refused(settings):
    """Promise: no training starts where energies could not be separated."""
    with pytest.raises(ConfigError, match="gpu:7"):
        ParallelExecutor(made, settings, [("7",)])
