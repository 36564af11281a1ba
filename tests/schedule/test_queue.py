"""Promise: costs stored with waiting jobs are those that a fresh computation gives."""

import random
from dataclasses import replace
from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.objectives import EDP, ENERGY, TIME, Estimates, PlacementObjective
from wattloop.schedule.queue import JobQueue
from wattloop.testing.synthetic_cluster import World, random_world

SEEDS = st.integers(0, 1000)


def queue_of(world: World, *, noisy: bool) -> JobQueue:
    """An empty queue."""
    oracle = NoisyOracle(world.truth, seed=3) if noisy else world.truth
    return JobQueue(world.jobs, oracle, [each.idle_w for each in world.cluster.types])


def plainly(objective: PlacementObjective) -> PlacementObjective:
    """The same cost without its optimisations."""
    return replace(objective, name=f"plain {objective.name}", degree=None, keeps_order=False)


@given(seed=SEEDS, noisy=st.booleans())
def test_costs_follow_jobs_that_come_and_go(seed: int, noisy: bool) -> None:
    """Jobs are added and removed at random: every column stays that of its job."""
    world, dice = random_world(seed), random.Random(seed)
    queue = queue_of(world, noisy=noisy)
    for _ in range(30):
        job = dice.randrange(len(world.jobs))
        if job in queue:
            queue.remove(job)
        else:
            queue.add(job, world.jobs.work[job] * dice.random())
        if dice.random() < 0.5:
            queue.cost(dice.choice([TIME, ENERGY, EDP]))
    rows = queue.columns()
    assert sorted(rows.job.tolist()) == queue.in_order()
    for objective in (TIME, ENERGY, EDP):
        costs = queue.cost(objective)
        for row, job in enumerate(rows.job.tolist()):
            afresh = objective.cost(queue.estimates(job))
            least = np.full(len(queue.shapes), np.inf)
            np.minimum.at(least, queue.shape_of(job), afresh)
            np.testing.assert_allclose(costs[:, row], least, rtol=1e-12)
            assert rows.work[row] == queue.work(job)
            assert rows.deadline_s[row] == world.jobs.deadline_s[job]
            assert rows.user[row] == world.jobs.user[job]


@given(seed=SEEDS, noisy=st.booleans())
def test_the_quick_way_finds_what_the_plain_way_finds(seed: int, noisy: bool) -> None:
    """Best options and their order are the same, with and without stored costs of a kind."""
    world = random_world(seed)
    queue = queue_of(world, noisy=noisy)
    queue.add(0, 7.0)
    for objective in (TIME, ENERGY, EDP):
        costs = objective.cost(queue.estimates(0))
        assert (np.diff(costs[queue.options_by(objective, 0)]) >= 0).all()
        for shape in set(queue.options(0).shapes()):
            quick = queue.best_option(objective, 0, shape)
            plain = queue.best_option(plainly(objective), 0, shape)
            np.testing.assert_allclose(costs[quick], costs[plain], rtol=1e-12)
            assert queue.options(0).shape(quick) == shape
        placed = list(queue.placed_by(objective, 0) or ())
        assert {found.shape for found in placed} == set(queue.options(0).shapes())
        found_costs = [queue.cost_of(objective, 0, found) for found in placed]
        assert found_costs == sorted(found_costs)
        for found, cost in zip(placed, found_costs, strict=True):
            np.testing.assert_allclose(cost, costs[found.option], rtol=1e-12)
            assert queue.options(0).shape(found.option) == found.shape


def test_a_cost_that_is_no_number_is_left_to_the_slow_way() -> None:
    """There it is an error with the job's number; here it would sort after every other cost."""
    queue = queue_of(random_world(1), noisy=True)
    queue.add(0, 1.0)
    broken = replace(EDP, name="broken", cost=lambda seen: seen.time_s * np.nan)
    assert queue.placed_by(broken, 0) is None


def test_a_kind_that_fits_no_gpu_costs_nothing_and_does_no_harm() -> None:
    """Objectives never get an empty list of options."""
    world = random_world(1)
    nowhere = replace(world.jobs.kinds[0], types=("b200",))
    jobs = replace(world.jobs, kinds=(nowhere, *world.jobs.kinds[1:]))
    picky = replace(EDP, name="picky", cost=lambda seen: seen.time_s / seen.time_s.max())
    queue = JobQueue(jobs, world.truth, [each.idle_w for each in world.cluster.types])
    job = int(np.flatnonzero(jobs.kind == 0)[0])
    queue.add(job, 1.0)
    assert np.isinf(queue.cost(picky)).all()
    assert queue.placed_by(picky, job) == []


def test_the_first_is_who_came_first_even_when_stopped_and_back() -> None:
    """A job that returns to the queue has its earlier place."""
    world = random_world(1)
    queue = queue_of(world, noisy=False)
    for job in range(4):
        queue.add(job, 1.0)
    assert queue.remove(0) == 1.0
    assert queue.head() == 1
    queue.add(0, 0.5)
    assert queue.head() == 0
    assert list(queue.by_arrival()) == queue.in_order() == [0, 1, 2, 3]
    assert queue.work(0) == 0.5


def test_the_first_jobs_are_found_without_a_walk_through_those_that_have_left() -> None:
    """The first job stays and all later ones leave, as behind one that is too wide to start."""
    queue = queue_of(random_world(1), noisy=False)
    for job in range(5000):
        queue.add(job, 1.0)
    for job in range(1, 4990):
        queue.remove(job)
    tried = [0]

    class Watched(dict[int, float]):
        def __contains__(self, job: object) -> bool:
            tried[0] += 1
            return super().__contains__(job)

    queue.waiting = Watched(queue.waiting)
    assert list(islice(queue.by_arrival(), 5)) == [0, 4990, 4991, 4992, 4993]
    assert tried[0] < 300


def test_costs_are_computed_only_on_request() -> None:
    """An objective of an earlier hour is not updated with every arriving job."""
    world = random_world(1)
    queue, seen = queue_of(world, noisy=True), list[int]()

    def counted(estimates: Estimates) -> NDArray[np.float64]:
        seen.append(1 if estimates.time_s.ndim == 1 else len(estimates.time_s))
        return TIME.cost(estimates)

    jobs = [job for job in range(len(world.jobs)) if len(queue.options(job))]
    once = PlacementObjective("once", counted)
    queue.cost(once)
    for job in jobs:
        queue.add(job, world.jobs.work[job])
        queue.cost(TIME)
    assert not seen
    np.testing.assert_array_equal(queue.cost(once), queue.cost(TIME))
    assert sum(seen) == len(jobs)
    queue.cost(once)
    assert sum(seen) == len(jobs)
