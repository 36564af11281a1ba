"""Promises of node plans: when running jobs leave room for a placement."""

from types import SimpleNamespace
from typing import cast

from tests.schedule.policies.two_types import two_types
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.view import ClusterView, RunningJob

A100 = 0


def _plan(*running: tuple[int, int, float], now_s: float = 0.0) -> NodePlan:
    """Plan two nodes of four A100s (and two of H100s); a job is node, mask of GPUs, estimated
    end.
    """
    jobs = {
        number: RunningJob(number, 0, A100, mask.bit_count(), ((node, mask),), 0.0, 0.0, end_s, 1.0)
        for number, (node, mask, end_s) in enumerate(running)
    }
    seen = SimpleNamespace(cluster=two_types(2), is_up=[True] * 4, running=jobs, now_s=now_s)
    return NodePlan(cast(ClusterView, seen))


def test_a_whole_node_is_free_when_the_first_node_is_and_not_before() -> None:
    """Two GPUs on each of two nodes do not fit a packed job of four; a spread one fits."""
    plan = _plan((0, 0b1111, 10.0), (1, 0b0011, 20.0))
    assert plan.soonest_s((A100, 2, False)) == 0.0
    assert plan.soonest_s((A100, 4, False)) == 10.0
    plan = _plan((0, 0b0011, 10.0), (1, 0b0011, 20.0))
    assert plan.soonest_s((A100, 4, False)) == 10.0
    assert plan.soonest_s((A100, 4, True)) == 0.0
    assert plan.soonest_s((A100, 8, True)) == 20.0
    assert plan.soonest_s((A100, 9, True)) == float("inf")


def test_what_is_overdue_is_believed_to_take_as_long_again() -> None:
    """Due at 10 s and still running at 40 s: not before 70 s."""
    plan = _plan((0, 0b1111, 10.0), (1, 0b1111, 90.0), now_s=40.0)
    assert plan.soonest_s((A100, 4, False)) == 70.0
