"""Promise: packing over arrays starts what the thesis's loop, written out job by job, starts."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.policies.by_hand import Job, starts
from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Start
from wattloop.schedule.engine import Simulation
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView
from wattloop.testing.synthetic_cluster import random_world

Score = tuple[float, ...]


def edp(time_s: float, power_w: float) -> float:
    return power_w * (time_s * time_s)


def time(time_s: float, power_w: float) -> float:
    return time_s


def use(view: ClusterView, job: int) -> float:
    return float(view.use.gpu_s(view.now_s)[view.jobs.user[job]])


def age(view: ClusterView, job: int) -> float:
    return view.now_s - float(view.jobs.arrival_s[job])


def chronos(view: ClusterView, job: int, time_s: float) -> Score:
    deadline_s = float(view.jobs.deadline_s[job])
    if deadline_s < np.inf:
        return 0, deadline_s - (view.now_s + time_s)
    return 1, time_s - 0.3 * age(view, job)


LITERAL: dict[str, tuple[Callable[[float, float], float], Callable[..., Score]]] = {
    "sjf": (time, lambda view, job, cost: (float(view.queue.estimates(job).time_s.min()),)),
    "pollux{age_weight: 0.3}": (time, lambda view, job, cost: (cost - 0.3 * age(view, job),)),
    "themis": (time, lambda view, job, cost: (cost * (use(view, job) + 1),)),
    "themis-as-printed": (time, lambda view, job, cost: (cost / (use(view, job) + 1),)),
    "chronos{age_weight: 0.3}": (time, chronos),
    "zeus{age_weight_per_s: 0.1}": (
        edp, lambda view, job, cost: (cost / (1 + 0.1 * age(view, job)),)
    ),
    "hades": (edp, lambda view, job, cost: (cost * (use(view, job) + 1),)),
    "hades-as-printed": (edp, lambda view, job, cost: (cost / (use(view, job) + 1),)),
}  # fmt: skip
"""Policy -> what it chooses placements by, and its score."""


def literally(name: str, view: ClusterView) -> list[Action]:
    """Run algorithms 3, 4, 5, 6, 9 and the loop of 5.3.2.4, one job and one placement at a time."""
    cost_of, score_of = LITERAL[name]
    candidates = []
    for job in view.queue.in_order():
        options, estimates = view.queue.options(job), view.queue.estimates(job)
        best_cost, best_placement = np.inf, None
        for placement in range(len(options)):
            if view.free.fits(options.shape(placement)):
                predicted = float(estimates.time_s[placement]), float(estimates.power_w[placement])
                if cost_of(*predicted) < best_cost:
                    best_cost, best_placement = cost_of(*predicted), placement
        if best_placement is not None:
            score = score_of(view, job, best_cost)
            candidates.append((-int(view.jobs.priority[job]), score, job, best_placement))
    idle, dispatched = view.free.copy(), list[Action]()
    for _, _, job, placement in sorted(candidates):
        shape = view.queue.options(job).shape(placement)
        if idle.fits(shape):
            idle.take(shape)
            dispatched.append(Start(job, placement))
    return dispatched


class Compared(Policy):
    """A policy that is compared with its transcription."""

    def __init__(self, name: str) -> None:
        self._policy, self._name = policy_from(name), name
        self.several = 0

    def decide(self, view: ClusterView) -> Sequence[Action]:
        actions = list(self._policy.decide(view))
        assert actions == literally(self._name, view)
        self.several += len(actions) > 1
        return actions


@pytest.mark.parametrize("name", LITERAL)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_packing_does_what_the_thesis_says_job_by_job(name: str, seed: int) -> None:
    """The states come from random clusters and jobs, with and without noise."""
    world = random_world(seed)
    policy = Compared(name)
    Simulation(
        world.cluster, world.jobs, policy, truth=world.truth, oracle=world.oracle,
        settings=world.settings,
    ).run()  # fmt: skip


def test_rounds_with_several_starts_are_among_those_compared() -> None:
    """Otherwise the comparison above would prove little."""
    several = 0
    for seed in range(20):
        world = random_world(seed)
        policy = Compared("hades")
        Simulation(world.cluster, world.jobs, policy, truth=world.truth).run()
        several += policy.several
    assert several > 10


class Unsure(PackingPolicy):
    """A policy whose score is NaN."""

    name = "unsure"
    objective = TIME

    def rank(
        self,
        view: ClusterView,
        waiting: Columns,
        cost: np.ndarray[tuple[int], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return cost * np.nan


def test_a_score_that_is_no_number_is_an_error_that_names_policy_and_job() -> None:
    """Otherwise a job would never start, without a message."""
    with pytest.raises(ConfigError, match="policy unsure: the score of job 0 is not a number"):
        starts(Unsure(), {"solo": [(1, 1.0, 300.0)]}, [Job("solo", 0, 100)])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_job_alone_is_placed_as_it_is_among_others(seed: int) -> None:
    """With estimates of each job's own too, the fast path for one job changes no event."""
    world = random_world(seed)
    hashes = []
    for short in (True, False):
        simulation = Simulation(
            world.cluster,
            world.jobs,
            policy_from("zeus"),
            truth=world.truth,
            oracle=NoisyOracle(world.truth, seed=seed, share=0.3),
        )
        queue = simulation.world.queue
        if not short:
            queue.placed_by = lambda objective, job: None  # type: ignore[method-assign]  # a test
        hashes.append(simulation.run().event_hash)
    assert hashes[0] == hashes[1]
