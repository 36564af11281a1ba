"""Promise: idle GPUs and nodes sleep by the cluster's states, and every joule is accounted for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.engine.scripted import Scripted
from tests.schedule.engine.test_properties import Reckless, assert_adds_up
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from tests.schedule.wide_world import wide_world
from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Start
from wattloop.schedule.cluster import Cluster, SleepState
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.metrics.curves import gpu_allocations
from wattloop.schedule.policies.registry import policy_from
from wattloop.testing.synthetic_cluster import random_world

GPU = SleepState("doze", 10.0, enter_s=2.0, exit_s=4.0, enter_j=100.0, exit_j=240.0, after_s=10.0)
"""Of a GPU that idles at 50 W: after 10 s, 2 s at 50 W; waking takes 4 s at 60 W."""
NODE = SleepState("off", 5.0, enter_s=5.0, exit_s=20.0, enter_j=400.0, exit_j=4000.0, after_s=100.0)
"""Of a node with two such GPUs: after 100 s, 5 s at 80 W; booting takes 20 s at 200 W."""


def sleepy(cluster: Cluster, *, gpu: bool = True, node: bool = False) -> Cluster:
    types = tuple(replace(each, sleeps=(GPU,) if gpu else ()) for each in cluster.types)
    groups = tuple(replace(each, sleeps=(NODE,) if node else ()) for each in cluster.groups)
    return replace(cluster, types=types, groups=groups)


def run(cluster: Cluster, arrivals_s: list[float], horizon_s: float) -> SimulationResult:
    """Run one-GPU jobs of 10 samples, started on arrival."""
    policy = Scripted({at_s: [Start(job, 0)] for job, at_s in enumerate(arrivals_s)})
    policy.sleeps = True
    return Simulation(
        cluster,
        jobs_of([(at_s, 10) for at_s in arrivals_s]),
        policy,
        truth=PlainOracle(cluster),
        settings=EngineSettings(checks=True, strict=True, horizon_s=horizon_s),
    ).run()


def test_a_gpu_sleeps_after_its_time_and_a_job_waits_until_it_is_awake() -> None:
    """Two GPUs; a job at 30 s wakes one of them, which draws 60 W for 4 s and then 300 W."""
    result = run(sleepy(small_cluster()), [30.0], 100.0)
    assert result.finished_s.tolist() == [44.0]
    assert result.energy_j.tolist() == pytest.approx([240 + 10 * 300])
    other = 12 * 50 + 88 * 10
    same = 12 * 50 + 18 * 10 + 12 * 50 + 44 * 10
    assert result.idle_j == pytest.approx(other + same)
    assert result.wakes == 1
    assert result.asleep_gpu_s[0] == pytest.approx(90 + 20 + 46)


def test_a_job_that_comes_while_a_gpu_falls_asleep_waits_for_both() -> None:
    """At 11 s a second of falling asleep is left, then 4 s of waking."""
    result = run(sleepy(small_cluster(gpus_per_node=1)), [11.0], 40.0)
    assert result.finished_s.tolist() == [11 + 1 + 4 + 10]
    assert result.energy_j.tolist() == pytest.approx([50 + 240 + 3000])


def test_the_gpu_that_was_used_last_is_used_first() -> None:
    """The second job uses the GPU of the first one, which is awake, though the other has a lower
    number.
    """
    result = run(sleepy(small_cluster()), [30.0, 46.0], 100.0)
    assert result.finished_s.tolist() == [44.0, 56.0]
    assert result.wakes == 1


def test_a_node_without_a_job_is_switched_off_and_boots_for_the_next_one() -> None:
    """Host 100 W, two GPUs without states of their own: off at 105 s, a job at 205 s boots it."""
    cluster = sleepy(small_cluster(host_w=100.0), gpu=False, node=True)
    result = run(cluster, [205.0], 300.0)
    assert result.finished_s.tolist() == [235.0]
    # the host's part: awake, falling asleep, off, booting, awake
    host_j = 100 * 100 + 400 + 100 * 5 + 4000 + 75 * 100
    assert result.host_j == pytest.approx(host_j)
    assert result.energy_j.tolist() == pytest.approx([10 * 300])
    assert result.idle_j == pytest.approx(100 * 100 + 75 * 50 + 65 * 50)


def test_the_break_even_time_is_the_one_that_costs_the_same_awake() -> None:
    state = SleepState.of(50.0, 10.0, 5.0, 10.0, exit_j=1500.0)
    idle_s = state.after_s
    asleep_j = state.enter_j + state.exit_j + 10.0 * (idle_s - 15.0)
    assert asleep_j == pytest.approx(50.0 * idle_s)
    assert SleepState.of(50.0, 10.0, 5.0, 10.0).after_s == pytest.approx(15.0)


def test_sleep_needs_states_in_the_cluster() -> None:
    cluster = small_cluster()
    with pytest.raises(ConfigError, match="has no power-down states; give its groups gpu_sleep"):
        Simulation(
            cluster,
            jobs_of([(0, 1)]),
            policy_from("pollux{sleep: true}"),
            truth=PlainOracle(cluster),
        )


@pytest.mark.parametrize("name", ["pollux", "aurachronos", "charon", "helios"])
@pytest.mark.parametrize("make", [random_world, wide_world])
@given(seed=st.integers(0, 10_000), gpu=st.booleans())
@settings(max_examples=6)
def test_energy_adds_up_with_sleep(name: str, make, seed: int, gpu: bool) -> None:
    """Failures, latencies, stepped budgets, sleeping GPUs and nodes: after every event."""
    world = make(seed)
    cluster = sleepy(world.cluster, gpu=gpu, node=not gpu or seed % 2 == 0)
    result = Simulation(
        cluster,
        world.jobs,
        policy_from(f"{name}{{sleep: true}}"),
        truth=world.truth,
        oracle=world.oracle,
        settings=replace(world.settings, checks=True),
    ).run()
    assert_adds_up(result)
    assert not result.refusals
    gpu_allocations(result, world.truth)  # no GPU twice


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8)
def test_energy_adds_up_with_sleep_under_a_bad_policy(seed: int) -> None:
    world, policy = random_world(seed), Reckless(seed)
    policy.sleeps = True
    rules = replace(world.settings.preemption, resize_s=float(seed % 3))
    result = Simulation(
        sleepy(world.cluster, node=True),
        world.jobs,
        policy,
        truth=world.truth,
        oracle=world.oracle,
        settings=replace(world.settings, checks=True, preemption=rules),
    ).run()
    assert_adds_up(result)
