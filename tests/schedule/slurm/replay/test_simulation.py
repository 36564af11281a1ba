"""Promise: the simulator gets the same jobs, with each scheduler's knowledge and choices."""

import pytest

from tests.schedule.slurm.replay.small_plan import small_plan
from wattloop.schedule.slurm.replay.latency import Latency
from wattloop.schedule.slurm.replay.result import difference
from wattloop.schedule.slurm.replay.simulation import (
    BACKFILL,
    BUILTIN,
    OwnScheduler,
    simulate_replay,
)

LATENCY = Latency(start_s=1.0, end_s=0.5, starts=2, ends=2, source="-")


def test_slurms_own_scheduler_has_jobs_as_asked_for_and_ours_may_choose() -> None:
    """A job of one GPU takes 10 s; with both GPUs of a node, 5 s."""
    plan = small_plan([(0, 10)])
    own, _ = simulate_replay(plan, OwnScheduler(BACKFILL), None)
    ours, _ = simulate_replay(plan, "fifo", None)
    assert own.makespan_s == pytest.approx(10 * plan.speedup)
    assert ours.makespan_s == pytest.approx(5 * plan.speedup)


def test_latencies_are_in_time_and_energy() -> None:
    """The second job on the only node waits for 1 + 10 + 0.5 s, then starts for 1 s."""
    plan = small_plan([(0, 20), (0, 20)], gpus=2, nodes=1)
    told, result = simulate_replay(plan, OwnScheduler(BUILTIN), LATENCY)
    assert result.finished_s.tolist() == pytest.approx([11.0, 22.5])
    assert told.makespan_s == pytest.approx(22.5 * plan.speedup)
    idle_j = 2 * 50 * 3.0
    assert told.gpu_energy_j == pytest.approx((20 * 600 + idle_j) * plan.speedup)
    assert told.wait_mean_s == pytest.approx((1.0 + 12.5) / 2 * plan.speedup)


def test_backfill_believes_time_limits() -> None:
    """A wide job is promised the end of the minute, so a short one that would fit waits.

    Three GPUs busy for 10 s (limit: a minute); the job of two nodes waits for them, and so does
    the one behind it, whose minute would end after theirs.
    """
    plan = small_plan([(0, 10), (0, 40), (1, 1)], gpus=2, nodes=2)
    _, result = simulate_replay(plan, OwnScheduler(BACKFILL), None)
    assert result.started_s[2] >= 5.0


def test_a_difference_is_a_share_of_the_real_figure() -> None:
    """11 for 10 is a tenth too much."""
    assert difference(10.0, 11.0) == pytest.approx(0.1)
    assert difference(0.0, 0.0) == 0.0
