"""The loop of strategy, bench and store."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tune.small import Halving, Trainings, small_problem
from wattloop.core.errors import ConfigError, DeviceBusy, StoreUnwritable
from wattloop.store import experiments
from wattloop.store.experiments import list_experiments, read_trials
from wattloop.trials.experiment_lock import lock_experiment
from wattloop.tune import search_store
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.results import read_candidates
from wattloop.tune.search_loop import Search
from wattloop.tune.search_problem import Limits
from wattloop.tune.search_store import SearchRecord, open_search

ROOT = Path(__file__).parents[2]


@pytest.fixture
def begun(store, settings):
    """Makes searches of one specification; the same one as long as it is unfinished."""

    def make(function, problem=None, strategy=None, **options):
        problem = problem or small_problem()
        experiment, _ = open_search(store, {}, "small")
        record = SearchRecord(store, experiment)
        bench = FunctionExecutor(
            function, problem, settings, folder=record.folder, tags=record.tags
        )
        strategy = strategy or Halving(problem)
        return Search(record, problem, strategy, bench, **options), strategy, record

    return make


def test_trainings_go_on_where_they_were_paused(begun):
    """Promise: no epoch is trained twice, and those dropped are ended, finally-blocks included."""
    trainings = Trainings(sleep_s=0.02)
    search, strategy, record = begun(trainings)
    stopped = search.run()
    assert stopped.limit == ""
    assert len(trainings.epochs) == len(set(trainings.epochs)) == 2 + 2 + 6
    assert sorted(trainings.ended) == [1, 2, 4]
    assert strategy.best().candidate == "w4"
    trials = read_trials(record.store, record.search_id)
    assert [t.key for t in trials] == ["w1/2", "w2/2", "w4/2", "w4/4", "w4/6"]
    for trial in trials:
        outcome = trial.outcome
        off_j = abs(outcome["energy_j"] - 50 * outcome["time_s"])
        assert off_j <= outcome["uncertainty_j"] + 0.5 * 50 * outcome["time_s"]
        assert outcome["provenance"] == "measured"
        assert trial.run_id
    curve = trials[-1].outcome["curve"]
    assert [point["epoch"] for point in curve] == [5, 6]
    assert curve[-1]["energy_j"] > trials[2].outcome["energy_j"]  # of the same candidate, so far


def test_an_interrupted_search_is_told_what_it_knew(begun):
    """Promise: a new process trains only what had not ended; the strategy ends where it would."""

    class Listens:
        def begins(self, segment, spent):
            if segment.candidate == "w4":
                raise KeyboardInterrupt

        def ended(self, segment, progress, spent): ...

    search, _, record = begun(Trainings(), listener=Listens())
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert [t.status for t in read_trials(record.store, record.search_id)] == [
        *("paused", "paused", "running")
    ]
    again = Trainings()
    search, strategy, same = begun(again)
    assert same.search_id == record.search_id
    search.run()
    assert {width for width, _ in again.epochs} == {4}
    assert strategy.best().candidate == "w4"


@pytest.mark.parametrize("mode", ["plain", "checkpoint"])
def test_killed_inside_a_segment_it_goes_on(tmp_path, store, settings, mode):
    """Promise: after kill -9 nothing that ended is done again; from a checkpoint only the epoch
    under way is, and without one the candidate's own epochs, counted as repeated.
    """
    log = tmp_path / "epochs.log"
    command = [sys.executable, "-m", "tests.tune.killed_search"]
    command += [settings.store_location, str(log), mode]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    environment |= {"WATTLOOP_METERS": "rapl", "WATTLOOP_INTERVAL": "0.02"}

    def run(die_after):
        words = [*command, str(die_after)]
        options = {"capture_output": True, "text": True, "timeout": 60}
        return subprocess.run(words, env=environment, check=False, **options)

    assert run(9).returncode == -9  # in the second segment of the best one, after its fifth epoch
    (killed,) = list_experiments(store, "search")
    before = read_trials(store, killed.experiment_id)
    done = run(10_000)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == "w4"
    after = read_trials(store, killed.experiment_id)
    assert [t.key for t in after] == ["w1/2", "w2/2", "w4/2", "w4/4", "w4/6"]
    assert after[: len(before) - 1] == before[:-1]
    trained = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    last = after[len(before) - 1].outcome
    if mode == "checkpoint":
        assert len(trained) == 10 + 1
        assert last["epochs"] == 6
        assert last["curve"][-1]["energy_j"] > before[2].outcome["curve"][-1]["energy_j"]
        assert last["repeated_j"] == 0
    else:
        assert len(trained) == 10 + 5
        assert last["repeated_j"] > 4 * 50 * 0.03
        assert last["energy_j"] < last["repeated_j"]


def test_two_processes_cannot_run_one_search(begun):
    """Promise: the second one is refused, and names the first one."""
    search, _, record = begun(Trainings())
    with (
        lock_experiment(record.store, record.search_id),
        pytest.raises(DeviceBusy, match=rf"{record.search_id} is being run by process \d+"),
    ):
        search.run()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(energy_j=4.0), "energy budget"),
        (Limits(time_s=0.1), "time of"),
        (Limits(candidates=2), "2 configurations were allowed"),
    ],
)
def test_a_limit_stops_it_and_the_best_stands(begun, limits, said):
    """Promise: the search ends at its limit, says which, and knows the best so far."""
    search, _, record = begun(Trainings(sleep_s=0.03), small_problem(limits=limits))
    stopped = search.run()
    assert said in stopped.limit
    assert len(read_trials(record.store, record.search_id)) < 5
    assert stopped.spent.energy_j < 4.0 + 50 * 0.5


def test_a_budget_ends_a_segment_within_an_epoch(begun):
    """Promise: a long segment does not overrun the budget by more than an epoch."""
    trainings = Trainings(sleep_s=0.05)
    problem = small_problem(limits=Limits(energy_j=5.0), widths=(1,))
    search, _, _ = begun(trainings, problem, Halving(problem, rounds=(7,)))
    search.run()
    assert len(trainings.epochs) < 6


@pytest.mark.parametrize("limits", [Limits(time_s=0.3), Limits(energy_j=15.0)])
def test_a_limit_holds_within_a_long_epoch(begun, limits):
    """Promise: a training that tells of its steps is paused in the middle of one."""

    def train(trial):
        for _ in trial.epochs(1):
            for _ in range(3_000):
                time.sleep(0.01)
                trial.step()

    search, _, record = begun(train, small_problem(limits=limits))
    assert search.run().limit
    (trial,) = read_trials(record.store, record.search_id)
    assert trial.status == "paused"


def test_a_training_that_never_reports_ends_the_search(begun):
    """Promise: a clear error after the first one, not after all of them."""
    search, _, record = begun(lambda trial: trial.report(loss=1.0))
    with pytest.raises(ConfigError, match=r"without reporting 'accuracy' \(it reported loss\)"):
        search.run()
    assert len(read_trials(record.store, record.search_id)) == 1
    _, _, other = begun(Trainings())
    assert other.search_id != record.search_id  # a search that failed as a whole starts again


def test_failures_are_results(begun):
    """Promise: failures, divergence and lack of memory are recorded, and the search continues."""

    def train(trial):
        if trial["width"] == 1:
            raise ValueError("no such layer")
        if trial["width"] == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
        if trial["width"] == 3:
            trial.report(accuracy=float("nan"))
        for epoch in trial.epochs(8):
            trial.report(accuracy=epoch / 10)

    search, strategy, record = begun(train, small_problem(widths=(1, 2, 3, 4)))
    search.run()
    found = {c.candidate: c for c in read_candidates(record.store, record.search_id)}
    assert found["w1"].status == "failed"
    assert "ValueError: no such layer (test_search_loop.py:" in found["w1"].messages[0]
    assert found["w2"].status == "out_of_memory"
    assert found["w3"].status == "diverged"
    assert found["w3"].messages == ["accuracy is nan"]
    assert strategy.best().candidate == "w4"


def test_a_full_disk_stops_it_and_nothing_is_lost(begun, monkeypatch):
    """Promise: where the last segment cannot be written at once, the reserved room is used; then
    the search stops with an error that says so, and continues when there is room.
    """
    full = {"since": None}
    real = experiments.end_trial

    def end_trial(store, experiment_id, record):
        reserve = store.journals / f"{experiment_id}.reserve"
        if full["since"] is None and record.key == "w2/2":
            full["since"] = record.key
        if full["since"] and reserve.exists():
            raise StoreUnwritable("runs.db: No space left on device; make room on the disk")
        real(store, experiment_id, record)

    def make(self):
        if full["since"]:
            raise StoreUnwritable("No space left on device; make room on the disk")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"x")

    with monkeypatch.context() as disk:
        disk.setattr(search_store, "end_trial", end_trial)
        disk.setattr(search_store.DiskReserve, "make", make)
        search, _, record = begun(Trainings())
        with pytest.raises(StoreUnwritable, match="No space left"):
            search.run()
    assert [t.status for t in read_trials(record.store, record.search_id)] == ["paused", "paused"]
    again = Trainings()
    search, strategy, _ = begun(again)
    search.run()
    assert strategy.best().candidate == "w4"
    assert (1, 0) not in again.epochs
