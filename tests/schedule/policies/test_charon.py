"""Promises of Charon: Zeus's choices, and never a watt above the budget."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.policies.two_types import WrongOracle, random_jobs, two_types
from tests.schedule.small_world import BUSY_W, IDLE_W, PlainOracle, jobs_of, small_cluster
from wattloop.schedule.engine import EngineSettings, Preemption, Simulation
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.settings import Keeps, NodeEvent
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies.charon import Charon
from wattloop.schedule.policies.zeus import Zeus
from wattloop.schedule.step_function import StepFunction


def _few(
    budget: StepFunction,
    rows: list[tuple[float, float]],
    kind: JobKind | None = None,
    **group: float,
) -> SimulationResult:
    """Return jobs on two A100s of 300 W (50 W idle)."""
    cluster = small_cluster(**group)
    rules = EngineSettings(budget_w=budget, strict=True, checks=True)
    jobs = jobs_of(rows, kind=kind)
    return Simulation(cluster, jobs, Charon(), truth=PlainOracle(cluster), settings=rules).run()


def test_the_second_job_waits_for_power_though_a_gpu_is_free() -> None:
    """Algorithm 8: a job starts only if projected power stays within the budget."""
    done = _few(StepFunction.constant(2 * BUSY_W - 1), [(0, 100), (0, 100)])
    assert done.started_s.tolist() == [0, 100]
    assert done.peak_w == pytest.approx(BUSY_W + IDLE_W)


def test_both_start_when_the_budget_is_just_enough() -> None:
    """Idle power of the allocated GPUs does not count twice."""
    done = _few(StepFunction.constant(2 * BUSY_W + 0.01), [(0, 100), (0, 100)])
    assert done.started_s.tolist() == [0, 0]


def test_a_job_takes_fewer_gpus_when_all_would_break_the_budget() -> None:
    """It does not wait for power that the budget never has."""
    done = _few(StepFunction.constant(400.0), [(0, 100)], JobKind("toy", gpus=(1, 2)))
    assert done.finished_s[0] == pytest.approx(100)
    assert done.over_budget_s == 0


def test_hosts_count() -> None:
    """The additional power of a host with a GPU at work is part of the projection."""
    budget = StepFunction.constant(2 * BUSY_W + 0.01)
    done = _few(budget, [(0, 100), (0, 100)], host_busy_w_per_gpu=20.0)
    assert done.started_s.tolist() == [0, 100]
    assert done.over_budget_s == 0


def test_a_budget_that_falls_before_the_job_would_end_keeps_it_waiting() -> None:
    """A start has to meet later budgets, too."""
    budget = StepFunction((0.0, 50.0, 200.0), (1000.0, 340.0, 1000.0))
    done = _few(budget, [(0, 100), (0, 40)])
    assert done.started_s.tolist() == [200, 0]
    assert done.over_budget_s == 0
    assert not done.preemptions.any()


def test_a_job_that_stays_longer_than_believed_is_stopped_when_the_budget_falls() -> None:
    """Interference is in no estimate: the last resort is to stop the job that loses least."""
    cluster = small_cluster()
    rules = EngineSettings(
        budget_w=StepFunction((0.0, 105.0), (1000.0, 380.0)),
        interference=0.5,
        preemption=Preemption(keeps=Keeps.NOTHING),
        strict=True,
        checks=True,
    )
    jobs = jobs_of([(0, 100), (50, 54)])
    done = Simulation(cluster, jobs, Charon(), truth=PlainOracle(cluster), settings=rules).run()
    assert done.preemptions.tolist() == [0, 1]
    assert done.over_budget_s == 0
    assert done.is_done.all()


def test_an_oracle_that_errs_more_than_it_says_does_not_make_it_start_and_stop_for_ever() -> None:
    """Each stop makes it trust the estimate less."""

    class Liar(WrongOracle):
        """An oracle that states exactness and errs."""

        power_error = 0.0
        time_error = 0.0

    done = Simulation(
        two_types(),
        random_jobs(1, 20),
        Charon(),
        truth=WrongOracle(),
        oracle=Liar(0.1, 1),
        settings=EngineSettings(
            budget_w=StepFunction.constant(2000.0), strict=True, horizon_s=20_000
        ),
    ).run()
    assert 0 < done.preemptions.sum() <= 40
    assert done.is_done.all()


def test_a_node_that_comes_back_finds_its_idle_power_left_over() -> None:
    """Power of a failed node is not used for other jobs."""
    cluster = small_cluster(nodes=2, gpus_per_node=2)
    rules = EngineSettings(
        budget_w=StepFunction.constant(4 * IDLE_W + BUSY_W),
        node_events=(NodeEvent(1.0, 0, False), NodeEvent(50.0, 0, True)),
        strict=True,
        checks=True,
    )
    jobs = jobs_of([(2, 100), (2, 100)])
    done = Simulation(cluster, jobs, Charon(), truth=PlainOracle(cluster), settings=rules).run()
    assert done.over_budget_s == 0
    assert done.started_s.tolist() == [2, 102]


def test_without_a_budget_it_is_zeus() -> None:
    """The events are the same, one by one."""
    cluster, oracle = two_types(), WrongOracle(0.1)
    runs = [
        Simulation(cluster, random_jobs(3, 60), policy, truth=oracle, oracle=oracle).run()
        for policy in (Charon(), Zeus())
    ]
    assert runs[0].event_hash == runs[1].event_hash


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    budgets_w=st.lists(st.floats(1050, 4000), min_size=1, max_size=4),
    round_s=st.sampled_from([None, 1.0]),
)
def test_never_above_budgets_that_change_with_estimates_off_by_a_tenth(
    seed: int, budgets_w: list[float], round_s: float | None
) -> None:
    """Realised power counts, under any noise; no job is stopped for it, as ends are bounded."""
    cluster = two_types()
    times_s = tuple(600.0 * number for number in range(len(budgets_w)))
    rules = EngineSettings(
        budget_w=StepFunction(times_s, tuple(budgets_w), 600.0 * len(budgets_w)),
        round_s=round_s,
        horizon_s=20_000,
        strict=True,
        checks=True,
    )
    done = Simulation(
        cluster,
        random_jobs(seed, 30),
        Charon(),
        truth=WrongOracle(),
        oracle=WrongOracle(0.1, seed),
        settings=rules,
    ).run()
    assert done.over_budget_s == 0
    assert not done.preemptions.any()
    assert done.is_done.sum() > 0


def _parted(keeps: Keeps, budget: StepFunction, work: float = 250) -> SimulationResult:
    """Simulate one job of 250 s on one of two GPUs."""
    cluster = small_cluster()
    rules = EngineSettings(
        budget_w=budget, preemption=Preemption(keeps=keeps, checkpoint_period_s=30.0), strict=True
    )
    jobs = jobs_of([(0, work)])
    return Simulation(cluster, jobs, Charon(), truth=PlainOracle(cluster), settings=rules).run()


def test_a_job_longer_than_the_budget_lasts_runs_in_parts() -> None:
    """Power for 100 s of every 200: it is stopped when the budget falls, and advances each time."""
    budget = StepFunction((0.0, 100.0), (1000.0, 200.0), 200.0)
    for keeps in (Keeps.ITERATIONS, Keeps.CHECKPOINTS):
        done = _parted(keeps, budget)
        assert done.is_done.all()
        assert done.preemptions[0] >= 2
        assert done.over_budget_s == 0


def test_what_is_left_is_impossible_and_says_why() -> None:
    """Not enough power at any time, or not for long enough without checkpoints."""
    low = _parted(Keeps.ITERATIONS, StepFunction.constant(200.0))
    assert low.left == {0: "toy: impossible: adds 250 W or more, the budget leaves 100 W at most"}
    short = _parted(Keeps.NOTHING, StepFunction((0.0, 100.0), (1000.0, 200.0), 200.0))
    assert short.left[0].startswith("toy: impossible: takes up to 250 s, the budget has power for")


def test_the_time_of_checkpoints_counts_before_a_budget_falls() -> None:
    """It trains 90 s and saves twice for 20 s: more than the 100 s that the budget lasts."""
    cluster = small_cluster()
    rules = EngineSettings(
        budget_w=StepFunction((0.0, 100.0, 200.0), (1000.0, 200.0, 1000.0)),
        preemption=Preemption(Keeps.CHECKPOINTS, 30.0, 20.0),
        round_s=30.0,
        strict=True,
    )
    jobs = jobs_of([(0, 90)])
    done = Simulation(cluster, jobs, Charon(), truth=PlainOracle(cluster), settings=rules).run()
    assert done.over_budget_s == 0
    assert done.started_s[0] == 210
    assert not done.preemptions.any()
