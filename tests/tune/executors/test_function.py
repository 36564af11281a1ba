"""Functions as trainings: paused in a thread, isolated from each other, ended as asked."""

import random
import threading
import time

import numpy as np
import pytest

from tests.tune.small import small_problem
from wattloop.core.errors import ConfigError
from wattloop.tune import TrialStopped, current_trial
from wattloop.tune.executors.cap_search import CapSteps
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.search_problem import Limits
from wattloop.tune.segment import Segment, Status, Until


@pytest.fixture
def bench(settings, tmp_path):
    made = []

    def make(function, problem=None):
        folder = tmp_path / "files"
        made.append(FunctionExecutor(function, problem or small_problem(), settings, folder=folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def segment(epochs=None, *, candidate="a", **options):
    return Segment(
        key=f"{candidate}/{epochs}",
        candidate=candidate,
        parameters={"width": 1},
        until=Until(epochs=epochs),
        **options,
    )


def test_trainings_do_not_disturb_each_others_random_numbers(bench):
    """Promise: paused and interleaved, each draws what it would draw alone."""
    drawn = {}

    def train(trial):
        mine = drawn.setdefault(threading.current_thread().name, [])
        for _ in trial.epochs(4):
            mine.append((random.random(), np.random.rand()))
            trial.report(accuracy=0.1)

    one = bench(train)
    for epochs in (1, 3, 4):
        for candidate in ("a", "b"):
            one.run(segment(epochs, candidate=candidate, seed=5))
    first, second = drawn.values()
    assert first == second
    assert len(set(first)) == 4


def test_a_training_that_is_let_go_ends_with_its_finally_blocks(bench):
    """Promise: not an Exception that it might catch, and its thread is gone."""
    said = []

    def train(trial):
        try:
            while True:
                try:
                    trial.report(accuracy=0.1)
                except Exception:  # noqa: BLE001 - as careless trainings do
                    said.append("swallowed")
        except TrialStopped:
            said.append("stopped")
            raise
        finally:
            said.append("finally")

    one = bench(train)
    one.run(segment(2))
    one.release("a")
    assert said == ["stopped", "finally"]
    assert not [t for t in threading.enumerate() if t.name == "wattloop-a"]


def test_a_function_that_does_not_report_is_interrupted(bench):
    """Promise: the time limit of a segment holds in an endless loop too."""

    def train(trial):
        while True:
            time.sleep(0.01)

    problem = small_problem(limits=Limits(trial_time_s=0.3))
    progress = bench(train, problem).run(segment())
    assert progress.status is Status.TIMEOUT
    assert "0.3 s" in progress.message


def test_what_a_function_returns_is_reported(bench):
    """Promise: the simplest training is a function that returns its metrics."""
    progress = bench(lambda trial: {"accuracy": 0.7, "loss": 0.2}).run(segment())
    assert (progress.status, progress.epochs, progress.quality) == (Status.ENDED, 1, 0.7)
    assert progress.metrics == {"loss": 0.2}


def test_the_code_of_a_training_finds_its_trial(bench):
    """Promise: a helper that was handed nothing reports to the right training."""

    def deep_inside():
        current_trial().report(accuracy=current_trial()["width"])

    progress = bench(lambda trial: deep_inside()).run(segment())
    assert progress.quality == 1


def test_parameters_that_are_not_there_are_named(bench):
    """Promise: a misspelt parameter is a failure that names those there are."""
    progress = bench(lambda trial: trial["with"]).run(segment())
    assert progress.status is Status.FAILED
    assert "no parameter 'with' in this configuration; there are: width" in progress.message


def test_a_report_of_something_else_is_refused(bench):
    """Promise: a value that is not a number is refused where it is reported."""
    progress = bench(lambda trial: trial.report(accuracy="good")).run(segment())
    assert "report(accuracy='good'): give a number" in progress.message


def test_a_checkpoint_is_of_the_epoch_in_which_it_was_written(bench, tmp_path):
    """Promise: files survive the process that wrote them, with the number of their epochs."""
    seen = []

    def train(trial):
        seen.append((trial.resumed, trial.epochs_done))
        for epoch in trial.epochs(6):
            if epoch == 1:
                (trial.checkpoint / "model").write_text("x")
            trial.report(accuracy=epoch / 10)

    first = bench(train)
    first.run(segment(3))
    past = first._pasts["a"]
    first.close()
    second = bench(train)
    second.recall({"a": past})
    progress = second.run(segment(5))
    assert seen == [(False, 0), (True, 2)]
    assert progress.repeated_s > 0  # the third epoch, which came after the file
    assert [point.epoch for point in progress.curve] == [4, 5]
    second.release("a")
    assert not list((tmp_path / "files").glob("a-*"))


def test_no_cap_is_no_cap():
    """Promise: without a requested cap no message mentions one."""
    assert CapSteps().found() is None
    assert CapSteps("not allowed").found().reason == "not allowed"


def test_a_trial_outside_of_a_search_is_silent(monkeypatch):
    """Promise: the same script runs by itself."""
    from wattloop.tune import trial as trial_module

    monkeypatch.setattr(trial_module, "_of_program", [])
    monkeypatch.delenv("WATTLOOP_REPORTS", raising=False)
    trial = current_trial()
    assert trial.get("lr", 0.1) == 0.1
    assert list(trial.epochs(2)) == [0, 1]
    assert list(trial.steps("ab")) == ["a", "b"]
    trial.report(accuracy=1.0)
    assert trial.checkpoint.is_dir()
    with pytest.raises(ConfigError, match="no parameter 'lr'"):
        trial["lr"]


def test_a_training_that_stops_early_has_trained_its_last_epoch(bench):
    """Promise: leaving the loop after a report loses neither the epoch nor its quality."""

    def train(trial):
        for epoch in trial.epochs(10):
            trial.report(accuracy=epoch / 10)
            if epoch == 3:
                break

    progress = bench(train).run(segment())
    assert (progress.status, progress.epochs, progress.quality) == (Status.ENDED, 4, 0.3)
    assert progress.curve[-1].energy_j is not None
