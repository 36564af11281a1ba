"""Promises of AuraChronos: which jobs it stops for a deadline, and that none is stopped
needlessly.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.policies.two_types import WrongOracle, random_jobs, two_types
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.engine import EngineSettings, Preemption, Simulation
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.jobs import JobTable
from wattloop.schedule.policies.aurachronos import AuraChronos
from wattloop.schedule.policies.zeus import Zeus

NOTHING = Preemption(keeps=Keeps.NOTHING)
NEVER = np.inf


def _run(jobs: JobTable, gpus: int = 2, policy: AuraChronos | None = None) -> SimulationResult:
    """Run on one node; a stopped job begins again."""
    cluster = small_cluster(gpus_per_node=gpus)
    rules = EngineSettings(preemption=NOTHING, strict=True, checks=True)
    policy = policy or AuraChronos(patience=1.0)
    return Simulation(cluster, jobs, policy, truth=PlainOracle(cluster), settings=rules).run()


def test_the_job_that_loses_least_is_stopped_for_a_deadline() -> None:
    """Of two candidates the younger one, with less energy so far; the urgent job starts at once."""
    done = _run(jobs_of([(0, 1000), (50, 1000), (60, 100)], deadlines_s=[NEVER, NEVER, 170]))
    assert done.preemptions.tolist() == [0, 1, 0]
    assert done.started_s[2] == pytest.approx(60)
    assert done.finished_s.tolist() == [1000, 1160, 160]
    assert done.wasted_j[1] == pytest.approx(300 * 10)


def test_nobody_is_stopped_when_a_gpu_is_free_in_time() -> None:
    """The first job is estimated to end at 100, and 100 + 100 is before the deadline."""
    done = _run(jobs_of([(0, 100), (0, 1000), (60, 100)], deadlines_s=[NEVER, NEVER, 210]))
    assert not done.preemptions.any()
    assert done.started_s[2] == pytest.approx(100)
    assert done.finished_s[2] <= 210


def test_others_do_not_take_what_an_urgent_job_waits_for() -> None:
    """Two GPUs are needed: the free one stays free, though a job waits for it."""
    jobs = jobs_of([(0, 100), (10, 100), (20, 500)], deadlines_s=[NEVER, 320, NEVER])
    pair = type(jobs.kinds[0])("pair", gpus=(2,))
    jobs = JobTable(
        kinds=(jobs.kinds[0], pair),
        users=jobs.users,
        arrival_s=jobs.arrival_s,
        kind=np.array([0, 1, 0]),
        user=jobs.user,
        work=jobs.work,
        deadline_s=jobs.deadline_s,
        priority=jobs.priority,
    )
    done = _run(jobs)
    assert done.started_s.tolist() == [0, 100, 150]
    assert not done.preemptions.any()


def test_nobody_is_stopped_for_a_deadline_that_cannot_be_kept() -> None:
    """Its job waits like any other."""
    done = _run(jobs_of([(0, 100), (0, 100), (60, 100)], deadlines_s=[NEVER, NEVER, 120]))
    assert not done.preemptions.any()
    assert done.started_s[2] == pytest.approx(100)


def test_urgent_jobs_are_not_stopped_for_urgent_ones_that_leave_them_no_time() -> None:
    """The running one meets its deadline."""
    jobs = jobs_of([(0, 100), (0, 100), (10, 100)], deadlines_s=[150, 150, 120])
    done = _run(jobs)
    assert not done.preemptions.any()
    assert done.finished_s[0] == done.finished_s[1] == 100


def test_an_urgent_job_with_time_to_spare_makes_way_for_one_without() -> None:
    """Both deadlines are met, which neither order of arrival nor patience could achieve."""
    jobs = jobs_of([(0, 100), (10, 100)], deadlines_s=[300, 120])
    done = _run(jobs, gpus=1)
    assert done.preemptions.tolist() == [1, 0]
    assert done.finished_s.tolist() == [210, 110]


def test_no_job_is_stopped_more_often_than_allowed() -> None:
    """Urgent jobs keep coming; a job stopped twice is not stopped for the third."""
    rows = [(0.0, 1000.0), *((100.0 * n, 50.0) for n in range(1, 6))]
    done = _run(jobs_of(rows, deadlines_s=[NEVER, *(100.0 * n + 60 for n in range(1, 6))]), gpus=1)
    assert done.preemptions.tolist() == [2, 0, 0, 0, 0, 0]
    assert done.is_done.all()


def test_an_impatient_one_stops_others_though_it_could_still_wait() -> None:
    """Patience is a share of the slack: the rest of it is for later urgent jobs."""
    jobs = jobs_of([(0, 100), (60, 100)], deadlines_s=[NEVER, 210])
    assert not _run(jobs, gpus=1, policy=AuraChronos(patience=1.0)).preemptions.any()
    assert _run(jobs, gpus=1, policy=AuraChronos(patience=0.2)).preemptions.tolist() == [1, 0]


def test_without_deadlines_it_is_zeus() -> None:
    """The events are the same, one by one."""
    cluster, oracle = two_types(), WrongOracle(0.1)
    jobs = random_jobs(5, 60, urgent=0.0)
    hashes = [
        Simulation(cluster, jobs, policy, truth=WrongOracle(), oracle=oracle).run().event_hash
        for policy in (AuraChronos(), Zeus())
    ]
    assert hashes[0] == hashes[1]


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 3),
    keeps=st.sampled_from([Keeps.NOTHING, Keeps.ITERATIONS]),
    rate_per_s=st.sampled_from([0.01, 0.05]),
)
def test_all_jobs_end_and_nobody_is_stopped_too_often(
    seed: int, nodes: int, keeps: Keeps, rate_per_s: float
) -> None:
    """On any load every action is possible, no job starves, and preemptions stay within bounds."""
    done = Simulation(
        two_types(nodes),
        random_jobs(seed, 20, rate_per_s, urgent=0.4, factor=1.8),
        AuraChronos(),
        truth=WrongOracle(),
        oracle=WrongOracle(0.1, seed),
        settings=EngineSettings(
            preemption=Preemption(keeps=keeps), round_s=1.0, strict=True, checks=True
        ),
    ).run()
    assert done.is_done.all()
    assert done.preemptions.max() <= 2
