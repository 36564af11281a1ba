"""Promise: a policy sees how much later its jobs are than in another policy's schedule."""

import math
from collections.abc import Sequence

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Action
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView, JobAges, RealisedDelay


class Slow(Fifo):
    """A Fifo that starts no job in the first 300 s of the simulation."""

    needs_free_gpus = False

    def __init__(self) -> None:
        self.seen: list[tuple[float, RealisedDelay | None]] = []

    def references(self) -> Sequence[Policy]:
        return (Fifo(),)

    def decide(self, view: ClusterView) -> Sequence[Action]:
        self.seen.append((view.now_s, view.delay))
        return super().decide(view) if view.now_s >= 300 else ()


def _seen(
    budget_w: float = math.inf, policy: Slow | None = None
) -> dict[float, RealisedDelay | None]:
    cluster, policy = small_cluster(gpus_per_node=1), policy or Slow()
    jobs = jobs_of([(0, 100), (50, 100), (300, 10), (1000, 10)])
    settings = EngineSettings(budget_w=StepFunction.constant(budget_w))
    Simulation(cluster, jobs, policy, truth=PlainOracle(cluster), settings=settings).run()
    return dict(policy.seen)


def test_ages_are_those_of_both_schedules_up_to_now() -> None:
    """At 300 s Fifo had ended two jobs after 100 and 150 s; here they still wait."""
    seen = _seen()
    assert seen[300] == RealisedDelay(3, JobAges(3, 300 + 250), (JobAges(1, 100 + 150),))
    # here the first three end at 400, 500 and 510 s, there at 100, 200 and 310 s
    found = seen[1000]
    assert found is not None
    assert found.own.age_s == pytest.approx(400 + 450 + 210)
    assert found.references[0].age_s == pytest.approx(100 + 150 + 10)


def test_the_references_are_under_the_same_budget() -> None:
    """A policy is compared with what another one makes of the same power: Fifo overlooks it."""

    class Watchful(Fifo):
        def decide(self, view: ClusterView) -> Sequence[Action]:
            assert view.budget_w.at(view.now_s) == 10_000.0
            return super().decide(view)

    class SlowUnderABudget(Slow):
        def references(self) -> Sequence[Policy]:
            return (Watchful(),)

    assert _seen(10_000.0, SlowUnderABudget())[300] == _seen()[300]
