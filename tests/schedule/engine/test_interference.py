"""Promise: jobs on one node slow each other down, as long as they are together."""

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.engine import EngineSettings, Keeps, Preemption, Simulation
from wattloop.schedule.metrics.curves import gpu_allocations
from wattloop.schedule.policies.registry import policy_from


def finished(
    rows: list[tuple[float, float]], nodes: int = 1, policy: str = "fifo", **settings: object
) -> list[float]:
    """Ends of jobs on nodes with two GPUs, half as fast for each neighbour."""
    cluster = small_cluster(nodes)
    rules = EngineSettings(interference=1.0, checks=True, **settings)  # type: ignore[arg-type] # any
    simulation = Simulation(
        cluster, jobs_of(rows), policy_from(policy), truth=PlainOracle(cluster), settings=rules
    )
    result = simulation.run()
    ends: list[float] = result.finished_s.tolist()
    # the replay of the events finds the same machines: no GPU has two jobs at once
    for each in (found := gpu_allocations(result, PlainOracle(cluster))):
        others = [one for one in found if (one.node, one.gpu) == (each.node, each.gpu)]
        assert sum(one.begin_s <= each.begin_s < one.end_s for one in others) <= 1
    return ends


def test_a_job_alone_is_not_slowed() -> None:
    """One job on the node."""
    assert finished([(0, 10)]) == [10]


def test_two_jobs_on_one_node_take_twice_as_long() -> None:
    """Both at half speed all the time."""
    assert finished([(0, 10), (0, 10)]) == pytest.approx([20, 20])


def test_speed_changes_when_a_neighbour_comes_and_goes() -> None:
    """Alone to 4 s; together to 8 s (two samples each); the first alone for the last four."""
    assert finished([(0, 10), (4, 2)]) == pytest.approx([12, 8])


def test_jobs_on_different_nodes_do_not_meet() -> None:
    """Four jobs on two nodes: each has one neighbour, not three."""
    assert finished([(0, 10)] * 4, nodes=2) == pytest.approx([20] * 4)


def test_isolated_jobs_get_a_node_each_while_there_is_one() -> None:
    """Two jobs on two nodes do not meet; by default they share the first."""
    assert finished([(0, 10)] * 2, nodes=2) == pytest.approx([20, 20])
    assert finished([(0, 10)] * 2, nodes=2, policy="fifo{isolate: true}") == pytest.approx([10, 10])


def test_checkpoints_go_on_by_the_clock_while_a_job_is_slowed() -> None:
    """Alone: 8 s, a checkpoint to 10 s, and the last two samples. The neighbour comes at 11 s.

    One sample is left then, at half speed: done at 13 s.
    """
    rules = Preemption(Keeps.CHECKPOINTS, checkpoint_period_s=8.0, checkpoint_cost_s=2.0)
    ends = finished([(0, 10), (11, 4)], preemption=rules)
    assert ends[0] == pytest.approx(13)
