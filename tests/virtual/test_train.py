"""Promises of the virtual training job: its time, its energy, and the state of the cards after
it.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from wattloop.core.errors import ConfigError
from wattloop.virtual.job import job_named
from wattloop.virtual.node import CardLimits, node_named, shared_gpus, steady_outcome
from wattloop.virtual.train import TrainingRun

NODE = node_named("node004")
COMMAND = [sys.executable, "-m", "wattloop.virtual.train"]


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    monkeypatch.setenv("WATTLOOP_VIRTUAL_MODEL", "node004")


def trained(gpus, clock, count, **options):
    steps = options.pop("steps", 10)
    return TrainingRun(gpus, count, clock, node=NODE, **options).run([NODE.job] * steps)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("cap_w", [260, 170])
def test_a_run_takes_the_time_and_energy_of_the_model(gpus, clock, count, cap_w):
    """A run second by second on a clock and the closed form agree once the node is warm."""
    for gpu in gpus[:count]:
        gpu.set_power_cap(cap_w)
    trained(gpus, clock, count)
    result = trained(gpus, clock, count)
    expected = steady_outcome(NODE, NODE.job, count, CardLimits(cap_w))
    assert result.time_s == pytest.approx(expected.time_s, rel=1e-6)
    assert result.node_energy_j == pytest.approx(expected.node_energy_j, rel=0.01)
    assert result.provenance == "simulated"


@pytest.mark.parametrize("cap_w", [260, 170])
def test_scaling_time_keeps_simulated_seconds_and_joules(gpus, clock, cap_w):
    """A sixtieth of the work in a sixtieth of the time, at the same watts."""
    for gpu in gpus:
        gpu.set_power_cap(cap_w)
    whole = trained(gpus, clock, 8)
    clock.advance(10_000)  # cool again
    begin_s = clock.now_s()
    short = trained(gpus, clock, 8, time_scale=60.0)
    assert short.wall_s == pytest.approx(whole.wall_s / 60)
    assert clock.now_s() - begin_s == pytest.approx(short.wall_s)
    assert short.time_s == pytest.approx(whole.time_s)
    assert short.gpu_energy_j == pytest.approx(whole.gpu_energy_j, rel=1e-3)
    assert short.node_energy_j == pytest.approx(whole.node_energy_j, rel=0.01)


def test_a_cap_set_meanwhile_takes_effect(gpus, clock):
    """Half the steps free, half capped: the time lies between."""

    def cap(step):
        if step == 5:
            for gpu in gpus:
                gpu.set_power_cap(110)

    free_s = steady_outcome(NODE, NODE.job, 8).time_s
    capped_s = steady_outcome(NODE, NODE.job, 8, CardLimits(110)).time_s
    result = TrainingRun(gpus, 8, clock, node=NODE).run([NODE.job] * 10, cap)
    assert result.time_s == pytest.approx((free_s + capped_s) / 2, rel=0.02)


def test_the_slowest_card_sets_the_pace(gpus, clock):
    """One capped card of eight slows the others down."""
    gpus[3].set_power_cap(110)
    capped_s = steady_outcome(NODE, NODE.job, 8, CardLimits(110)).time_s
    assert trained(gpus, clock, 8).time_s == pytest.approx(capped_s, rel=0.01)


def test_unused_cards_stay_idle_and_used_ones_end_so(gpus, clock):
    """As in the document: two of eight work, and the node pays the idle power of the other six."""
    begin_s = clock.now_s()
    trained(gpus, clock, 2)
    idle_j = NODE.card.idle_w * (clock.now_s() - begin_s)
    assert gpus[7].true_energy_j(begin_s, clock.now_s()) == pytest.approx(idle_j)
    assert all(gpu.now().busy == 0 for gpu in gpus)


def test_a_job_that_fails_leaves_the_cards_idle(gpus, clock):
    """A step may fail in any way."""

    def fail(step):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        TrainingRun(gpus, 4, clock).run([job_named("cnn")] * 3, fail)
    assert all(gpu.now().busy == 0 for gpu in gpus)


def test_workloads_react_differently(gpus, clock):
    """A cap finder depends on it: a lower clock slows matmul, but not memory-bound work."""

    def slowed(name):
        times = []
        for clock_mhz in (None, 1200):
            for gpu in gpus:
                gpu.set_clock(clock_mhz)
            times.append(TrainingRun(gpus, 1, clock).run([job_named(name)]).time_s)
        return times[1] / times[0]

    assert slowed("memory") == pytest.approx(1.0)
    assert slowed("matmul") > 1.4
    assert slowed("matmul") > slowed("cnn") > slowed("starved") > 1.05


def test_more_cards_than_there_are_is_an_error(gpus, clock):
    """The message says how to get more."""
    with pytest.raises(ConfigError, match="WATTLOOP_VIRTUAL_GPUS=9"):
        TrainingRun(gpus, 9, clock)


def test_the_program_prints_steps_and_its_result(state):
    """Progress lines that a regular expression finds, JSON at the end, exit code 0."""
    arguments = ["--gpus", "4", "--steps", "3", "--time-scale", "1000"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True)
    *steps, last = done.stdout.splitlines()
    assert [line.split()[:3] for line in steps] == [["step", f"{i}/3", "loss"] for i in (1, 2, 3)]
    result = json.loads(last)
    assert (result["job"], result["gpus"]) == ("xception", 4)
    expected = steady_outcome(NODE, NODE.job, 4)
    assert result["time_s"] == pytest.approx(expected.time_s, rel=1e-3)
    assert all(gpu.now().busy == 0 for gpu in shared_gpus(4))


def test_the_workload_can_change_half_way(state):
    """For tests of re-probing: both jobs are named in the result."""
    arguments = ["--steps", "4", "--time-scale", "5000", "--job", "matmul", "--change-to", "memory"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["job"] == "matmul then memory"


def test_a_killed_job_does_not_load_the_cards_for_ever(state):
    """After kill -9 the next reader finds the work ended, as with a driver."""
    child = subprocess.Popen([*COMMAND, "--time-scale", "1"], stdout=subprocess.DEVNULL)
    (gpu,) = shared_gpus(1)
    while gpu.now().busy == 0:
        time.sleep(0.01)
    gpu.reap()
    assert gpu.now().busy == 1, "its owner lives"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    gpu.reap()
    assert gpu.now().busy == 0


def test_a_terminated_job_leaves_the_cards_idle(state):
    """SIGTERM ends it with the exit code that a shell gives."""
    child = subprocess.Popen([*COMMAND, "--time-scale", "1"], stdout=subprocess.DEVNULL)
    (gpu,) = shared_gpus(1)
    while gpu.now().busy == 0:
        time.sleep(0.01)
    child.terminate()
    assert child.wait(120) == 128 + signal.SIGTERM
    assert gpu.now().busy == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", "0"],
        ["--steps", "0"],
        ["--time-scale", "0"],
        ["--time-scale", "nan"],
        ["--job", "gpt"],
        ["--change-to", "gpt"],
    ],
)
def test_wrong_arguments_are_exit_code_2(state, arguments):
    """There is a message, no traceback, and no card is set."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr
