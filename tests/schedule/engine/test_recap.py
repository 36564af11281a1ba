"""Promise: a running job can get another power limit, and continues from its present state."""

import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Preempt, Recap, Start
from wattloop.schedule.engine import EngineSettings, Keeps, Preemption, Simulation
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.jobs import JobKind

CAPS = JobKind("toy", caps=(0.25, 1.0))
"""Option 0: 75 W and 2 s a sample; option 1: 300 W and 1 s."""


def test_the_rest_of_the_work_is_done_under_the_new_cap() -> None:
    """10 of 40 samples at 300 W, then 30 at a quarter of it and half the speed."""
    cluster = small_cluster()
    policy = Scripted({0.0: [Start(0, 1)], 10.0: [Recap(0, 0)]})
    simulation = Simulation(
        cluster,
        jobs_of([(0, 40)], kind=CAPS),
        policy,
        truth=PlainOracle(cluster),
        settings=EngineSettings(checks=True, strict=True),
    )
    simulation.run(until_s=15.0)
    running = simulation.view.running[0]
    assert running.power_w == 75
    assert running.expected_end_s == pytest.approx(70)
    result = simulation.run()
    assert result.finished_s.tolist() == [70]
    assert result.energy_j.tolist() == pytest.approx([10 * 300 + 60 * 75])
    assert [event.time_s for event in result.log if event.what is EventKind.RECAP] == [10]


def test_recaps_back_and_forth_lose_nothing() -> None:
    """20 samples: 5 fast, 5 slow (10 s), 10 fast."""
    cluster = small_cluster()
    policy = Scripted({0.0: [Start(0, 1)], 5.0: [Recap(0, 0)], 15.0: [Recap(0, 1)]})
    jobs = jobs_of([(0, 20)], kind=CAPS)
    result = Simulation(
        cluster, jobs, policy, truth=PlainOracle(cluster), settings=EngineSettings(checks=True)
    ).run()
    assert result.finished_s.tolist() == [25]
    assert result.wasted_j.tolist() == [0]


def test_a_checkpoint_before_a_recap_still_counts_after_it() -> None:
    """Checkpoint at 8 s, recap at 9 s, stopped at 10 s: 8 of 20 samples are saved."""
    cluster = small_cluster()
    script = {
        0.0: [Start(0, 1)], 9.0: [Recap(0, 0)], 10.0: [Preempt(0)], 20.0: [Start(0, 1)],
    }  # fmt: skip
    rules = Preemption(Keeps.CHECKPOINTS, checkpoint_period_s=8.0)
    result = Simulation(
        cluster,
        jobs_of([(0, 20)], kind=CAPS),
        Scripted(script),
        truth=PlainOracle(cluster),
        settings=EngineSettings(checks=True, preemption=rules),
    ).run()
    assert result.finished_s.tolist() == pytest.approx([32])
