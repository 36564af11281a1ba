"""Promises of the tuner in a real loop on virtual GPUs."""

import os
import time
from dataclasses import replace

import pytest

from tests.support.virtual_caps import settle
from wattloop.cap.callback import CapTuner
from wattloop.cap.gpus import job_gpus
from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.control.registry import find_levers, lever_named
from wattloop.control.restore import restore
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.integrations.training_meter import TrainingMeter
from wattloop.virtual.gpu import Fault
from wattloop.virtual.node import shared_gpus

SETTINGS = Settings(virtual_gpus=2, meters=("virtual",), interval_s=0.02)
QUICK = OnlineRules(
    settle_s=0.05, least_s=0.3, most_s=0.4, precision=0.5, lag_s=0.15, watch_s=0.5, least_steps=3
)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def lever(number):
    return lever_named(find_levers(settings=SETTINGS), f"gpu:{number}/power_limit")


def limits():
    return [lever(number).read() for number in (0, 1)]


def train(tuner, gpus, until, most_s=120.0):
    """Run steps of a job on all cards; their length follows the cap."""
    give_up_s = time.monotonic() + most_s
    while not until() and time.monotonic() < give_up_s:
        for gpu in gpus:
            gpu.load(1.0, memory=0.3)
        time.sleep(0.01)
        tuner.step()


def test_it_finds_a_cap_for_all_gpus_and_restores_them():
    """Promise: every GPU of the job has the same cap during the search, and its earlier one
    afterwards.
    """
    gpus = shared_gpus(2)
    seen = set()

    def found():
        seen.add(tuple(limits()))
        return tuner.pilot is not None and tuner.pilot.state is OnlineState.HOLDING

    with CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200:700:100") as tuner:
        assert tuner.fault is None
        train(tuner, gpus, found)
        choice = tuner.choice
        assert choice is not None
        seen.add(tuple(limits()))
    assert (choice.cap_w, choice.cap_w) in seen
    assert limits() == [700, 700]
    assert tuner.provenance == "simulated"


def test_a_training_that_ends_first_leaves_the_best_cap_so_far():
    """Promise: finished probes are not lost, and do not count as a whole search."""
    gpus, said = shared_gpus(2), []
    options = {"settings": SETTINGS, "rules": QUICK, "caps": "200:700:100"}
    with CapTuner("edp", report=said.append, **options) as tuner:
        train(tuner, gpus, lambda: bool(tuner.pilot.finder.probes))
        assert tuner.choice is None
        assert "goes on" in tuner.reason
    assert tuner.choice is not None
    assert tuner.choice.unfinished
    assert tuner.choice.probes == len(tuner.pilot.finder.probes)
    assert tuner.choice.why == tuner.reason == "the work ended before the search did"
    assert f"is {tuner.choice.cap_w:g} W" in said[-1]
    assert tuner.end() == tuner.choice


def test_without_a_probe_there_is_no_cap_but_a_reason():
    """Promise: a training that is too short is told how long a probe takes."""
    tuner = CapTuner("edp", settings=SETTINGS, caps="200:700:100")
    assert tuner.reason == "it has not begun"
    with tuner:
        train(tuner, shared_gpus(2), lambda: True)
    assert tuner.choice is None
    assert tuner.fault is None
    assert "before the first probe did, which takes at least 6 steps and 4 s" in tuner.reason


def test_an_exception_in_the_loop_restores_the_caps():
    """Promise: limits are restored, however the training ends."""
    gpus = shared_gpus(2)
    with (
        pytest.raises(ZeroDivisionError),
        CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200,300") as tuner,
    ):
        train(tuner, gpus, lambda: bool(tuner.pilot.finder.probes))
        raise ZeroDivisionError
    assert limits() == [700, 700]


def test_without_permission_it_warns_once_and_training_continues(caplog):
    """Promise: no exception in the loop, one warning, and unchanged caps."""
    for gpu in shared_gpus(2):
        gpu.inject(Fault.SET_FORBIDDEN)
    with CapTuner("edp", settings=SETTINGS) as tuner:
        for _ in range(10):
            tuner.step()
            tuner.interrupt()
    warnings = [r for r in caplog.records if "goes on without" in r.message]
    assert len(warnings) == 1
    assert tuner.choice is None
    assert tuner.fault is not None


def test_without_any_gpu_too(caplog, monkeypatch):
    """Promise: training continues on a machine without levers."""
    with CapTuner(settings=Settings(meters=("virtual",))) as tuner:
        tuner.step()
    assert "gpu/power_limit cannot be set here" in tuner.fault


def test_a_gpu_that_fails_meanwhile_does_not_stop_the_training():
    """Promise: an error in the thread is in `fault`, and does not reach the loop."""
    gpus = shared_gpus(2)
    with CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200:700:100") as tuner:
        train(tuner, gpus, lambda: bool(tuner.pilot.finder.probes))
        gpus[1].inject(Fault.SET_FORBIDDEN)
        train(tuner, gpus, lambda: tuner.fault is not None)
        assert tuner.fault is not None
        tuner.step()
        gpus[1].inject(Fault.NONE)


def test_a_gpu_that_is_lost_in_mid_probe_is_given_up():
    """Promise: when its energy cannot be read any more, the others' caps are restored."""
    gpus = shared_gpus(2)
    rules = replace(QUICK, silent_s=0.3, least_s=0.5, most_s=5.0)
    with CapTuner("edp", settings=SETTINGS, rules=rules, caps="200,300") as tuner:
        train(tuner, gpus, lambda: lever(0).read() == 300)
        gpus[1].inject(Fault.LOST)
        train(tuner, gpus[:1], lambda: tuner.fault is not None)
        first = tuner.fault.partition(";")[0]
        # no energy any more, or a probe that has just ended and a lever that refuses the next
        assert "GPU energy" in first or "fallen off the bus" in first
        train(tuner, gpus[:1], lambda: "wattloop restore" in tuner.fault)
        assert lever(0).read() == 700
        gpus[1].inject(Fault.NONE)
    assert tuner.fault.startswith(first)  # the first fault is still reported
    assert "wattloop restore" in tuner.fault
    restore()
    assert limits() == [700, 700]


def test_without_apply_the_caps_are_restored():
    """Promise: when the cap is found, caps are restored and the thread ends."""
    gpus = shared_gpus(2)
    with CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200:700:100", apply=False) as tuner:
        thread = tuner._thread
        train(tuner, gpus, lambda: not thread.is_alive(), most_s=15.0)
        assert not thread.is_alive()
        assert tuner.choice is not None
        assert tuner.fault is None
        assert limits() == [700, 700]


def test_it_can_be_used_for_one_training_after_the_other():
    """Promise: after its end the callback can begin again."""
    gpus = shared_gpus(2)
    tuner = CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200,300")
    for _ in range(2):
        with tuner:
            train(tuner, gpus, lambda: bool(tuner.pilot.finder.probes))
            assert tuner.pilot.finder.probes
        assert limits() == [700, 700]


def test_a_forked_process_leaves_the_caps_alone():
    """Promise: a process that loads data and ends does not end the tuner."""
    with CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200,300") as tuner:
        train(tuner, shared_gpus(2), lambda: lever(0).read() == 300)
        child = os.fork()
        if child == 0:
            tuner.step()
            tuner.end()
            os._exit(0)
        os.waitpid(child, 0)
        assert limits() == [300, 300]
        train(tuner, shared_gpus(2), lambda: bool(tuner.pilot.finder.probes))
        assert tuner.pilot.finder.probes
    assert limits() == [700, 700]


def test_a_step_without_progress_is_an_interruption():
    """Promise: a step of 0 units ends no measurement."""
    gpus = shared_gpus(2)
    with CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200,300") as tuner:
        for _ in range(5):
            tuner.step(0)
        train(tuner, gpus, lambda: bool(tuner.pilot.finder.probes))
        assert tuner.fault is None
        assert tuner.pilot.finder.probes


def test_other_ranks_leave_it_to_the_first(monkeypatch):
    """Promise: one process of a job sets the caps of a machine."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with CapTuner(settings=SETTINGS) as tuner:
        tuner.step()
    assert "another process" in tuner.fault


def test_a_framework_s_meter_drives_it():
    """Promise: steps, interruptions and the end come from the meter that callbacks use."""
    meter = TrainingMeter(meters=("virtual",), interval_s=0.02, virtual_gpus=2)
    tuner = CapTuner("edp", settings=SETTINGS, rules=QUICK, caps="200:700:100").attach(meter)
    gpus = shared_gpus(2)
    with meter:
        assert tuner.fault is None
        give_up_s = time.monotonic() + 120
        while not tuner.pilot.finder.probes and time.monotonic() < give_up_s:
            for gpu in gpus:
                gpu.load(1.0, memory=0.3)
            time.sleep(0.01)
            meter.step_end()
        assert tuner.pilot.finder.probes
    assert limits() == [700, 700]


def test_a_meter_that_has_begun_can_be_joined():
    """Promise: Lightning makes a meter for each fit; attaching to a running one works."""
    with TrainingMeter(meters=("virtual",), virtual_gpus=2) as meter:
        tuner = CapTuner("edp", settings=SETTINGS, caps="300,700").attach(meter)
        assert tuner.fault is None
        assert tuner.pilot is not None
    assert limits() == [700, 700]


def test_wrong_options_are_refused_at_once():
    """Promise: a typing error is reported before the training."""
    with pytest.raises(ConfigError, match="unknown metric"):
        CapTuner("joule")
    with pytest.raises(ConfigError, match="above 1"):
        CapTuner("eds", 0.5)


@pytest.mark.parametrize(
    ("visible", "gpus"), [("1", "1"), ("1,0", "1,0"), ("1,-1,0", "1"), ("0,GPU-unknown", "0")]
)
def test_visible_devices_are_the_job_s(monkeypatch, visible, gpus):
    """Promise: a job on some GPUs leaves the caps of the others alone."""
    levers = find_levers(settings=SETTINGS)
    assert job_gpus(levers) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert job_gpus(levers) == gpus


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-unknown"])
def test_a_job_without_gpus_sets_no_caps(monkeypatch, visible):
    """Promise: where CUDA shows no GPU, or an unknown one, no card is set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with CapTuner(settings=SETTINGS) as tuner:
        tuner.step()
    assert "names no GPU" in tuner.fault
    assert tuner.pilot is None
