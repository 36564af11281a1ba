import logging
import multiprocessing
import threading
import time

import pytest

import wattloop
from tests.integrations.conftest import INTERVAL_S, Machine
from tests.support.synthetic_energy import about_j
from wattloop.core.errors import ConfigError
from wattloop.integrations.step_timeline import Edge
from wattloop.integrations.training_meter import TrainingMeter
from wattloop.measure.api import active_session

STEP_S = 0.01


def train(meter: TrainingMeter, epochs: int = 2, steps: int = 20) -> None:
    for epoch in range(epochs):
        meter.epoch_begin()
        for i in range(steps):
            meter.step_begin()
            time.sleep(STEP_S)
            meter.step_end(loss=1 / (i + 1))
        meter.epoch_end(accuracy=epoch)


def test_epochs_and_steps_have_their_energy(machine: Machine) -> None:
    """Promise: every step and epoch gets joules, uncertainty, time, power, loss and metrics."""
    with TrainingMeter() as meter:
        train(meter)
    assert meter.fault is None
    assert [e.steps for e in meter.epochs] == [20, 20]
    assert len(meter.steps) == 40
    for epoch in meter.epochs:
        assert epoch.final
        assert epoch.energy_j == about_j(machine.power_w, epoch.duration_s, machine.driver)
        assert epoch.power_w == pytest.approx((epoch.energy_j or 0.0) / epoch.duration_s)
        assert epoch.uncertainty_j > 0
        assert "accuracy" in epoch.metrics
    step = meter.steps[5]
    assert step.loss == pytest.approx(1 / 6)
    assert set(step.energy) == {"cpu:0/package", "dram:0"}
    first_epoch = [s.energy_j or 0.0 for s in meter.steps if s.epoch == 0]
    assert sum(first_epoch) == pytest.approx(meter.epochs[0].energy_j, rel=0.05)


def test_values_are_readable_inside_the_loop(machine: Machine) -> None:
    """Promise: a search can read energy and power while it trains, epoch by epoch."""
    seen = []
    with TrainingMeter() as meter:
        for _ in range(2):
            train(meter, epochs=1)
            last = meter.last_epoch
            assert last is not None
            seen.append((last, meter.energy_so_far_j(), meter.power_w()))
    # between two readings, at either of which the counter may have stood still for a while
    margin_w = machine.power_w * (0.3 + 2 * machine.driver.longest_s / INTERVAL_S)
    for epoch, _, power_w in seen:
        expected_j = about_j(machine.power_w, epoch.duration_s, machine.driver, rel=0.3)
        assert epoch.energy_j == expected_j
        assert power_w == pytest.approx(machine.power_w, abs=margin_w)
    assert seen[1][1] > seen[0][1] > 0


def test_the_journal_holds_every_step_and_epoch(machine: Machine) -> None:
    """Promise: steps and epochs are in the journal, those of the last second included."""
    with TrainingMeter("digits") as meter:
        train(meter)
    (journal,) = machine.journals()
    assert journal.header["name"] == "digits"
    batches = [e for e in journal.events if e["type"] == "steps"]
    assert [i for e in batches for i in e["index"]] == list(range(40))
    epochs = [e for e in journal.events if e["type"] == "step"]
    assert [e["index"] for e in epochs] == [0, 1]
    assert epochs[1]["metrics"]["accuracy"] == 1.0
    assert journal.end is not None
    assert meter.run is not None


def test_joins_a_run_that_is_open(machine: Machine) -> None:
    """Promise: inside `wattloop.measure` the training is a part of that run, which stays open."""
    with wattloop.measure("outer"):
        with TrainingMeter() as meter:
            train(meter, epochs=1)
        assert meter.run is None
        assert active_session() is not None
        epoch = meter.epochs[0]
        expected_j = about_j(machine.power_w, epoch.duration_s, machine.driver, rel=0.3)
        assert epoch.energy_j == expected_j
    (journal,) = machine.journals()
    assert [e["kind"] for e in journal.events if e["type"] == "step"] == ["epoch"]
    assert meter.epochs[0].final


def test_an_error_of_the_meter_never_reaches_the_loop(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: an error in the meter is reported once, and training continues."""
    with caplog.at_level(logging.WARNING, "wattloop"), TrainingMeter() as meter:
        train(meter, epochs=1, steps=2)

        def broken(*args: object) -> Edge:
            raise OSError("out of luck")

        monkeypatch.setattr(meter._timeline, "mark", broken)
        train(meter, epochs=2, steps=3)
    assert "out of luck" in (meter.fault or "")
    assert caplog.text.count("without being measured") == 1
    assert active_session() is None


def test_a_meter_that_was_not_begun_says_so(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The error comes once, and the loop continues; after `begin` the meter works."""
    meter = TrainingMeter()
    for _ in range(3):
        meter.epoch_begin()
        meter.step_end()
        meter.epoch_end()
    assert "has not begun" in (meter.fault or "")
    assert len(caplog.records) == 1
    with meter:
        meter.epoch_begin()
        meter.epoch_end()
    assert meter.fault is None
    assert len(meter.epochs) == 1


def test_a_wrong_setting_is_reported_before_the_training(machine: Machine) -> None:
    """Promise: a typing mistake is an error at once, not after three days."""
    with pytest.raises(ConfigError, match="interval"):
        TrainingMeter(interval_s=0).begin()
    assert active_session() is None


def test_validation_between_steps_belongs_to_none(machine: Machine) -> None:
    """Promise: time inside `paused` belongs to the epoch but to no step."""
    paused_s = 0.0
    with TrainingMeter() as meter:
        meter.epoch_begin()
        for _ in range(3):
            time.sleep(STEP_S)
            meter.step_done()
            with meter.paused():
                since_s = time.monotonic()
                time.sleep(0.1)
                paused_s += time.monotonic() - since_s
        meter.epoch_end()
    stepping_s = sum(s.duration_s for s in meter.steps)
    assert len(meter.steps) == 3
    assert stepping_s >= 3 * STEP_S
    assert stepping_s + paused_s <= meter.epochs[0].duration_s


def test_trainings_inside_a_long_run_leave_no_thread_behind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a run with thousands of small fits has as many threads at its end as with one."""
    monkeypatch.setattr("wattloop.integrations.step_resolver.PASS_EVERY_S", 0.02)
    with wattloop.measure("outer"):
        meters = []
        for _ in range(5):
            with TrainingMeter() as meter:
                train(meter, epochs=1, steps=2)
            meters.append(meter)
        limit_s = time.monotonic() + 120
        while any(t.name == "wattloop-steps" for t in threading.enumerate()):
            assert time.monotonic() < limit_s
            time.sleep(0.05)
        session = active_session()
        assert session is not None
        assert session.before_end == []
        assert all(m.epochs[0].final and len(m.steps) == 2 for m in meters)
    assert machine.journals()[0].end is not None


def test_metric_that_is_not_a_number_is_left_out(machine: Machine) -> None:
    """Promise: the loop may log any object without an error."""

    class Odd:
        def __float__(self) -> float:
            raise KeyError("odd")

    with TrainingMeter() as meter:
        meter.epoch_begin()
        meter.step_end(loss=Odd(), accuracy=0.5)
        meter.log(f1=Odd(), recall=0.25)
        meter.epoch_end()
    assert meter.fault is None
    assert meter.steps[0].metrics == {"accuracy": 0.5}
    assert meter.epochs[0].metrics == {"recall": 0.25}
    assert machine.journals()


def _in_child(meter: TrainingMeter, queue: "multiprocessing.Queue[int]") -> None:
    meter.step_end()
    meter.epoch_end()
    meter.end()
    queue.put(len(meter.epochs))


def test_a_forked_child_leaves_the_meter_alone(machine: Machine) -> None:
    """Promise: a worker that inherits the meter neither writes nor ends the parent's run."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with TrainingMeter() as meter:
        meter.epoch_begin()
        child = context.Process(target=_in_child, args=(meter, queue))
        child.start()
        assert queue.get(timeout=300) == 0
        child.join()
        time.sleep(STEP_S)
        meter.step_end()
        meter.epoch_end()
    assert len(meter.epochs) == 1
    (journal,) = machine.journals()
    assert journal.end is not None
    assert journal.torn_bytes == 0


def test_nothing_readable_is_not_zero(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: without any sensor energies are None, and the training is timed all the same."""
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(machine.sysfs / "nowhere"))
    with TrainingMeter() as meter:
        train(meter, epochs=1, steps=3)
    assert meter.epochs[0].energy_j is None
    assert meter.power_w() is None
    assert [s.energy_j for s in meter.steps] == [None] * 3
    assert meter.steps[0].duration_s > 0.005
