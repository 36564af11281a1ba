"""Levers and power caps of segments, on virtual GPUs."""

import json
import sys
import time
from dataclasses import replace

import pytest

from tests.support.virtual_caps import settle
from tests.tune.small import small_problem
from wattloop.cap.curve_model import physical_curves
from wattloop.cap.online import OnlineRules
from wattloop.control.registry import find_levers, lever_named
from wattloop.core.settings import Settings
from wattloop.tune.executors.command import CommandExecutor
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.levers import cannot_be_set
from wattloop.tune.search_problem import Problem, Quality
from wattloop.tune.segment import CapRequest, Segment, Status, Until
from wattloop.tune.space import Choice, Space
from wattloop.virtual.node import shared_gpus

SETTINGS = Settings(virtual_gpus=2, meters=("virtual",), interval_s=0.02)
QUICK = OnlineRules(
    settle_s=0.05, least_s=0.3, most_s=0.4, precision=0.5, lag_s=0.15, watch_s=0.5, least_steps=3
)
CAPS = CapRequest(metric="edp", caps_w=(200.0, 300.0, 400.0, 500.0, 600.0, 700.0))


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def settings(tmp_path):
    return SETTINGS._replace(store=str(tmp_path / "runs.db"))


def limits():
    levers = find_levers(settings=SETTINGS)
    return [lever_named(levers, f"gpu:{n}/power_limit").read() for n in (0, 1)]


def power_problem():
    return Problem(
        space=Space({"power_limit": Choice(values=(300, 500), lever="gpu/power_limit")}),
        quality=Quality(metric="accuracy"),
    )


def segment(**options):
    return Segment(**{"key": "a", "candidate": "a", "parameters": {"width": 1}} | options)


def busy(trial, epochs=4, steps=40):
    gpus = shared_gpus(2)
    for _ in trial.epochs(epochs):
        for _ in trial.steps(range(steps)):
            for gpu in gpus:
                gpu.load(1.0, memory=0.3)
            time.sleep(0.01)
        trial.report(accuracy=0.5)


@pytest.mark.parametrize(("uses_gpu", "scope"), [(True, "gpu"), (False, "cpu")])
def test_energy_is_of_what_the_training_used(settings, tmp_path, uses_gpu, scope):
    """Promise: a training on the CPU is not judged by an idle GPU, and the output says so."""
    gpus = shared_gpus(2)

    def train(trial):
        for _ in trial.epochs(3):
            end_s = time.monotonic() + 0.2
            while time.monotonic() < end_s:
                if uses_gpu:
                    gpus[1].load(1.0, memory=0.3)
                time.sleep(0.005)
            trial.report(accuracy=0.5)

    both = settings._replace(meters=("virtual", "estimate"))
    bench = FunctionExecutor(train, small_problem(), both, folder=tmp_path / "f")
    try:
        first = bench.run(segment(until=Until(epochs=1)))
        bench.run(segment(key="b", until=Until(epochs=2)))
    finally:
        bench.close()
    assert bench.scope == scope
    assert first.energy_j > 0
    assert first.provenance == {"gpu": "simulated", "cpu": "estimated"}[scope]
    assert ("the GPU was idle" in first.message) is not uses_gpu


def test_a_cap_is_found_in_the_steps_of_a_function(settings, tmp_path):
    """Promise: probes are steps of the training; the limits are as before when the segment ends.

    Energy is judged, not EDP: on a busy machine a probe may take half as long again by chance.
    """
    problem = small_problem()
    bench = FunctionExecutor(
        lambda trial: busy(trial, epochs=9),
        problem,
        settings,
        folder=tmp_path / "f",
        cap_rules=QUICK,
    )
    physical_curves()  # takes its time once, and this training is short
    try:
        progress = bench.run(segment(cap=replace(CAPS, metric="energy"), until=Until(epochs=8)))
        assert limits() == [700, 700]
    finally:
        bench.close()
    assert progress.status is Status.PAUSED
    assert progress.cap.cap_w in CAPS.caps_w
    assert len(progress.cap.probes) >= 2
    assert progress.cap.energy_ratio < 1
    assert progress.provenance == "simulated"
    assert progress.epochs == 8


def test_where_no_cap_may_be_set_the_training_goes_on(settings, tmp_path):
    """Promise: the segment is trained all the same, and says why it has no cap."""
    none = settings._replace(virtual_gpus=0, meters=("estimate",))
    bench = FunctionExecutor(
        lambda trial: busy(trial, steps=1), small_problem(), none, folder=tmp_path / "f"
    )
    progress = bench.run(segment(cap=CAPS))
    bench.close()
    assert progress.status is Status.ENDED
    assert progress.cap.cap_w is None
    assert "gpu" in progress.cap.reason


@pytest.mark.parametrize(
    ("caps_w", "limit_w", "said"),
    [
        ((300.0, 300.0), 700.0, "hardware.power_limit.auto 300,300: give at least two different"),
        ((), 200.0, "there is nothing to choose; give hardware.power_limit.auto"),
    ],
)
def test_caps_that_are_refused_are_named_as_the_specification_does(caps_w, limit_w, said):
    """Promise: no word of an option of another command."""
    levers = find_levers(settings=SETTINGS)
    for number in (0, 1):
        lever_named(levers, f"gpu:{number}/power_limit").write(limit_w)
    refused = cannot_be_set(small_problem().space, SETTINGS, CapRequest(caps_w=caps_w))
    assert said in refused["power_limit"]
    assert "--" not in refused["power_limit"]


def test_levers_are_set_for_a_segment_and_put_back(settings, tmp_path):
    """Promise: each segment runs at its own values, and closing restores the earlier ones."""
    seen = []

    def train(trial):
        for _ in trial.epochs(3):
            seen.append(limits())
            trial.report(accuracy=0.5)

    bench = FunctionExecutor(train, power_problem(), settings, folder=tmp_path / "f")
    bench.run(segment(levers={"power_limit": 300}, until=Until(epochs=1)))
    bench.run(segment(key="b", levers={"power_limit": 500}, until=Until(epochs=2)))
    bench.run(segment(key="c", until=Until(epochs=3)))
    assert seen == [[300, 300], [500, 500], [700, 700]]
    bench.run(segment(key="d", candidate="b", levers={"power_limit": 300}, until=Until(epochs=1)))
    assert limits() == [300, 300]
    bench.close()
    assert limits() == [700, 700]


def test_a_value_that_is_refused_is_no_training(settings, tmp_path):
    """Promise: nothing runs under another cap than the one asked for."""
    bench = FunctionExecutor(pytest.fail, power_problem(), settings, folder=tmp_path / "f")
    progress = bench.run(segment(levers={"power_limit": 5000}))
    bench.close()
    assert progress.status is Status.NOT_SET
    assert "5000" in progress.message


PROGRAM = """
import json, sys, time
from wattloop.tune import current_trial
from wattloop.virtual.node import shared_gpus
trial = current_trial()
gpus = shared_gpus(2)
for epoch in trial.epochs(4):
    for _ in trial.steps(range(40)):
        for gpu in gpus:
            gpu.load(1.0, memory=0.3)
        time.sleep(0.01)
    trial.report(accuracy=epoch / 10)
"""


def test_a_cap_is_found_while_a_command_runs(settings, tmp_path):
    """Promise: steps that a program reports suffice to find its cap from outside."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    bench = CommandExecutor(
        [sys.executable, str(script)],
        small_problem(),
        settings,
        folder=tmp_path / "f",
        cap_rules=QUICK,
    )
    try:
        progress = bench.run(segment(cap=CAPS))
        assert limits() == [700, 700]
    finally:
        bench.close()
    assert progress.status is Status.ENDED, progress.message
    assert progress.epochs == 4
    assert progress.best == pytest.approx(0.3)
    assert progress.cap.cap_w in CAPS.caps_w


def test_a_segment_ends_between_two_steps(settings, tmp_path):
    """Promise: where that is asked for, a segment ends within an epoch and says how far it is."""
    problem = small_problem()
    bench = FunctionExecutor(busy, problem, settings, folder=tmp_path / "f")
    first = bench.run(segment(until=Until(time_s=0.15, anywhere=True)))
    second = bench.run(segment(key="b", until=Until(epochs=1)))
    bench.close()
    assert 0 < first.epochs < 1
    assert first.status is Status.PAUSED
    assert second.epochs == 1
    assert second.repeated_s == 0
    assert json.dumps(first.to_dict())
