"""Promise: a stopped job keeps the work that its rules state, and the lost work is wasted
energy.
"""

import math

import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Preempt, Start
from wattloop.schedule.engine import EngineSettings, Keeps, Preemption, Simulation, SimulationResult
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.view import ClusterView, PreemptionLoss

TEN_PER_STEP = JobKind("toy", batches=(10,))
"""One iteration is ten samples, which take ten seconds."""


def stopped_at(
    stop_s: float, rules: Preemption, again_s: float = 100.0, kind: JobKind = TEN_PER_STEP
) -> SimulationResult:
    """Simulate a job of 50 samples (50 s) that is stopped once and started again."""
    cluster = small_cluster()
    script = {0.0: [Start(0, 0)], stop_s: [Preempt(0)], again_s: [Start(0, 0)]}
    settings = EngineSettings(preemption=rules, checks=True, strict=True)
    jobs = jobs_of([(0, 50)], kind=kind)
    truth = PlainOracle(cluster)
    return Simulation(cluster, jobs, Scripted(script), truth=truth, settings=settings).run()


def test_a_job_loses_the_iteration_it_was_in() -> None:
    """Thesis 5.3.2.4: stopped at 25 s it has done two iterations; five seconds are lost."""
    result = stopped_at(25.0, Preemption(Keeps.ITERATIONS))
    assert result.finished_s[0] == pytest.approx(130)
    assert result.wasted_j[0] == pytest.approx(5 * 300)
    assert result.energy_j[0] == pytest.approx(55 * 300)
    assert result.preemptions[0] == 1


def test_a_job_stopped_between_iterations_loses_nothing() -> None:
    """At 20 s two iterations are whole."""
    result = stopped_at(20.0, Preemption(Keeps.ITERATIONS))
    assert result.finished_s[0] == pytest.approx(130)
    assert result.wasted_j[0] == pytest.approx(0)


def test_a_job_may_lose_everything() -> None:
    """Thesis 5.6.4: the job begins again, and all the energy it drew was wasted."""
    result = stopped_at(25.0, Preemption(Keeps.NOTHING))
    assert result.finished_s[0] == pytest.approx(150)
    assert result.wasted_j[0] == pytest.approx(25 * 300)


def test_a_job_goes_on_from_its_last_checkpoint() -> None:
    """Every 8 s of training one that takes 2 s: at 25 s two are complete, 16 s of work are saved.

    It has trained for 21 s; 5 of them are lost. The 34 s left have four checkpoints between them.
    """
    rules = Preemption(Keeps.CHECKPOINTS, checkpoint_period_s=8.0, checkpoint_cost_s=2.0)
    result = stopped_at(25.0, rules)
    assert result.finished_s[0] == pytest.approx(100 + 34 + 4 * 2)
    assert result.wasted_j[0] == pytest.approx(25 * 300 * 5 / 21)


def test_a_checkpoint_that_was_not_complete_does_not_count() -> None:
    """At 9 s the first one, begun at 8 s, is unfinished: all work is lost."""
    rules = Preemption(Keeps.CHECKPOINTS, checkpoint_period_s=8.0, checkpoint_cost_s=2.0)
    result = stopped_at(9.0, rules)
    assert result.finished_s[0] == pytest.approx(100 + 50 + 6 * 2)
    assert result.wasted_j[0] == pytest.approx(9 * 300)


def test_checkpoints_cost_time_even_without_a_stop() -> None:
    """50 s of training, a checkpoint of 2 s after every 8 but not at the end: six of them."""
    cluster = small_cluster()
    rules = Preemption(Keeps.CHECKPOINTS, checkpoint_period_s=8.0, checkpoint_cost_s=2.0)
    simulation = Simulation(
        cluster,
        jobs_of([(0, 50), (0, 48)]),
        Scripted({0.0: [Start(0, 0), Start(1, 0)]}),
        truth=PlainOracle(cluster),
        settings=EngineSettings(preemption=rules, checks=True),
    )
    simulation.run(until_s=1.0)
    believed = [running.expected_end_s for running in simulation.view.running.values()]
    assert believed == pytest.approx([62, 58])
    assert simulation.run().finished_s.tolist() == pytest.approx([50 + 6 * 2, 48 + 5 * 2])


def test_checkpoints_without_a_period_keep_nothing_and_cost_nothing() -> None:
    """An infinite period means no checkpoints."""
    result = stopped_at(25.0, Preemption(Keeps.CHECKPOINTS, math.inf, 5.0))
    assert result.finished_s[0] == pytest.approx(150)


def test_a_restart_takes_time_and_its_energy_is_wasted() -> None:
    """20 s before it trains again; the first start was immediate."""
    result = stopped_at(20.0, Preemption(Keeps.ITERATIONS, restart_s=20.0))
    assert result.finished_s[0] == pytest.approx(100 + 20 + 30)
    assert result.wasted_j[0] == pytest.approx(20 * 300)


def test_a_job_stopped_during_its_restart_has_done_nothing() -> None:
    """Started at 100 s, stopped at 110 s: ten seconds are wasted, and the work is unchanged."""
    cluster = small_cluster()
    script = {
        0.0: [Start(0, 0)], 20.0: [Preempt(0)], 100.0: [Start(0, 0)], 110.0: [Preempt(0)],
        200.0: [Start(0, 0)],
    }  # fmt: skip
    result = Simulation(
        cluster,
        jobs_of([(0, 50)], kind=TEN_PER_STEP),
        Scripted(script),
        truth=PlainOracle(cluster),
        settings=EngineSettings(preemption=Preemption(restart_s=20.0), checks=True),
    ).run()
    assert result.finished_s[0] == pytest.approx(200 + 20 + 30)
    assert result.wasted_j[0] == pytest.approx((10 + 20) * 300)
    assert result.preemptions[0] == 2


def test_a_stop_after_a_restart_wastes_the_restart_and_the_lost_share() -> None:
    """Restarted from 100 s to 120 s, stopped at 135 s: ten of its fifteen seconds are saved."""
    cluster = small_cluster()
    script = {
        0.0: [Start(0, 0)], 20.0: [Preempt(0)], 100.0: [Start(0, 0)], 135.0: [Preempt(0)],
    }  # fmt: skip
    result = Simulation(
        cluster,
        jobs_of([(0, 50)], kind=TEN_PER_STEP),
        Scripted(script),
        truth=PlainOracle(cluster),
        settings=EngineSettings(preemption=Preemption(restart_s=20.0), checks=True),
    ).run()
    assert result.wasted_j[0] == pytest.approx((20 + 5) * 300)


def test_the_old_end_of_a_stopped_job_is_void() -> None:
    """Stopped at 25 s and started at 30 s, it does not end at 50 s."""
    result = stopped_at(25.0, Preemption(Keeps.NOTHING), again_s=30.0)
    assert result.finished_s.tolist() == [80]


def test_a_policy_is_told_what_stopping_would_lose() -> None:
    """The view's loss equals the loss that is counted when the job is stopped."""
    seen: list[PreemptionLoss] = []

    class Looks(Scripted):
        def decide(self, view: ClusterView) -> list[object]:  # type: ignore[override] # a list
            if view.now_s == 25.0 and 0 in view.running:
                seen.append(view.loss(view.running[0]))
            return list(super().decide(view))

    cluster = small_cluster()
    policy = Looks({0.0: [Start(0, 0)], 25.0: [Preempt(0)], 60.0: [Start(0, 0)]})
    jobs = jobs_of([(0, 50)], kind=TEN_PER_STEP)
    result = Simulation(cluster, jobs, policy, truth=PlainOracle(cluster)).run()
    assert seen == [PreemptionLoss(pytest.approx(5), pytest.approx(1500))]
    assert result.wasted_j[0] == pytest.approx(1500)
