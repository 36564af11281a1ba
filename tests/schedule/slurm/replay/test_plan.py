"""Promise: a plan has the scenario's jobs, accelerated, in the form of Slurm's options."""

import numpy as np
import pytest

from tests.schedule.slurm.replay.small_plan import kinds_of, small_plan
from wattloop.core.errors import ConfigError
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.slurm.replay.plan import replay_plan

TINY = {"jobs.generate.count": 20}


def test_times_shrink_and_power_stays() -> None:
    """Arrivals, work and deadlines by the speedup; the oracle is the scenario's own."""
    scenario = load_scenario("slurm-lab", TINY)
    world = scenario.world(3)
    plan = replay_plan(scenario, seed=3, speedup=50.0)
    expected = (world.jobs.arrival_s - world.jobs.arrival_s[0]) / 50.0
    assert plan.asked.arrival_s == pytest.approx(expected)
    assert plan.asked.work == pytest.approx(world.jobs.work / 50.0)
    due = np.isfinite(world.jobs.deadline_s)
    allowed_s = (world.jobs.deadline_s - world.jobs.arrival_s)[due] / 50.0
    assert (plan.asked.deadline_s - plan.asked.arrival_s)[due] == pytest.approx(allowed_s)
    assert plan.truth is scenario.truth


def test_users_ask_for_one_way_to_run_and_the_driver_may_choose_gpus() -> None:
    """One GPU count and batch as submitted; the same batch on any count of a node as planned."""
    plan = replay_plan(load_scenario("slurm-lab", TINY), speedup=50.0)
    for job in range(len(plan.asked)):
        asked = plan.asked.kinds[plan.asked.kind[job]]
        could = plan.open.kinds[plan.open.kind[job]]
        assert len(asked.gpus) == len(asked.batches) == 1
        assert could.batches == asked.batches
        assert could.gpus == (1, 2, 4)


def test_a_job_of_several_nodes_stays_as_it_was_submitted() -> None:
    """Slurm changes the GPU count within a node only."""
    assert kinds_of(small_plan([(0, 1)], gpus=4)) == [(4,)]
    assert kinds_of(small_plan([(0, 1)], gpus=2)) == [(1, 2)]


def test_limits_are_whole_minutes_that_no_placement_exceeds() -> None:
    """70 samples take 70 s on one GPU: two minutes with a careful user's margin."""
    plan = small_plan([(0, 70), (0, 1)])
    assert [plan.limit_min(job) for job in (0, 1)] == [2, 1]


@pytest.mark.parametrize("speedup", [0.0, -3.0, 0.5, 1e9, float("nan")])
def test_a_speedup_that_is_none_is_refused(speedup: float) -> None:
    """The error has the allowed range."""
    with pytest.raises(ConfigError, match="from 1 to 100000"):
        replay_plan(load_scenario("slurm-lab", TINY), speedup=speedup)
