"""Promise: the time and energy to start a job and to clear it away are counted."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.engine.scripted import Scripted
from tests.schedule.engine.test_properties import Reckless, assert_adds_up
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Preempt, Start
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.step_function import StepFunction
from wattloop.testing.synthetic_cluster import random_world

SLOW = EngineSettings(start_latency_s=3.0, end_latency_s=2.0, checks=True, strict=True)


def simulated(
    policy: str, rows: list[tuple[float, float]], rules: EngineSettings = SLOW
) -> SimulationResult:
    """Simulate one node with two GPUs, 50 W each when idle and 300 W at work."""
    cluster = small_cluster()
    truth = PlainOracle(cluster)
    return Simulation(
        cluster, jobs_of(rows), policy_from(policy), truth=truth, settings=rules
    ).run()


def test_gpus_idle_while_a_job_starts_and_while_it_is_cleared_away() -> None:
    """A job of 10 s has its GPU for 15 s and draws its power for 10 of them."""
    result = simulated("fifo", [(0, 10)])
    assert result.started_s[0] == 0.0
    assert result.finished_s[0] == pytest.approx(13.0)
    assert result.end_s == pytest.approx(15.0)
    assert result.gpu_s[0] == pytest.approx(15.0)
    assert result.energy_j[0] == pytest.approx(5 * 50 + 10 * 300)
    assert result.total_j == pytest.approx(15 * 2 * 50 + 10 * 250)
    assert result.power_times_s.tolist() == pytest.approx([0, 3, 13])
    assert result.power_w.tolist() == pytest.approx([100, 350, 100])


def test_the_next_job_waits_until_the_gpu_is_cleared() -> None:
    """Three jobs on two GPUs: the third starts when the first is cleared, not when it is done."""
    result = simulated("fifo", [(0, 10), (0, 20), (0, 10)])
    assert result.started_s[2] == pytest.approx(15.0)
    assert result.finished_s[2] == pytest.approx(28.0)


def test_a_job_that_has_not_begun_counts_against_the_budget() -> None:
    """400 W let one of two jobs run: the second does not start while the first is still
    starting.
    """
    rules = replace(SLOW, budget_w=StepFunction.constant(400.0))
    result = simulated("charon", [(0, 10), (1, 10)], rules)
    assert result.peak_w == pytest.approx(350.0)
    assert result.started_s[1] == pytest.approx(15.0)  # its end is unknown before


def test_a_job_stopped_before_it_begins_leaves_nothing_behind() -> None:
    """Stopped after one second of three: it drew idle power, and no reservation of power is
    left.
    """
    cluster = small_cluster()
    script = Scripted({0.0: [Start(0, 0)], 1.0: [Preempt(0)], 20.0: [Start(0, 0)]})
    truth = PlainOracle(cluster)
    simulation = Simulation(cluster, jobs_of([(0, 10)]), script, truth=truth, settings=SLOW)
    result = simulation.run()
    assert result.finished_s[0] == pytest.approx(33.0)
    assert result.total_j == pytest.approx(35 * 100 + 10 * 250)
    assert simulation.world.expected_w == 0.0


def test_a_job_that_is_done_cannot_be_stopped() -> None:
    """It cannot be restarted either: it only waits to be cleared."""
    cluster = small_cluster()
    script = Scripted({0.0: [Start(0, 0)], 14.0: [Preempt(0)]})
    rules = replace(SLOW, strict=False)
    truth = PlainOracle(cluster)
    result = Simulation(cluster, jobs_of([(0, 10)]), script, truth=truth, settings=rules).run()
    assert "has done its work" in result.refused[0]
    assert result.finished_s[0] == pytest.approx(13.0)


@given(seed=st.integers(0, 10_000), dice=st.integers(0, 10_000))
@settings(max_examples=15)
def test_everything_adds_up_with_latencies(seed: int, dice: int) -> None:
    """In any cluster under any policy the invariants hold after every event."""
    world = random_world(seed)
    rules = replace(world.settings, checks=True, start_latency_s=1.5, end_latency_s=dice % 3)
    result = Simulation(
        world.cluster,
        world.jobs,
        Reckless(dice),
        truth=world.truth,
        oracle=world.oracle,
        settings=rules,
    ).run()
    assert_adds_up(result)


@pytest.mark.parametrize("name", ["start_latency_s", "end_latency_s"])
def test_a_latency_is_a_time(name: str) -> None:
    """Negative ones are refused by name."""
    with pytest.raises(ConfigError, match=name):
        EngineSettings(**{name: -1.0})
