"""Promise: jobs start, run and end at the right times, and clock and joules agree."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Start, Wake
from wattloop.schedule.engine import (
    EngineSettings,
    NodeEvent,
    Preemption,
    Simulation,
    SimulationEnd,
    SimulationResult,
)
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.fifo import Fifo


def simulated(
    jobs: JobTable, policy: Policy | None = None, nodes: int = 1, **settings: object
) -> SimulationResult:
    """Simulate jobs on nodes with two GPUs."""
    cluster = small_cluster(nodes)
    rules = EngineSettings(checks=True, **settings)  # type: ignore[arg-type] # any setting
    return Simulation(
        cluster, jobs, policy or Fifo(), truth=PlainOracle(cluster), settings=rules
    ).run()


def test_jobs_run_one_after_the_other_where_they_must() -> None:
    """Three jobs on two GPUs: the third starts when the first of the others ends."""
    result = simulated(jobs_of([(0, 10), (1, 4), (2, 5)]))
    assert result.started_s.tolist() == [0, 1, 5]
    assert result.finished_s.tolist() == [10, 5, 10]
    assert result.ended is SimulationEnd.DONE
    assert result.end_s == 10


def test_every_joule_is_accounted_by_what_drew_it() -> None:
    """19 GPU seconds of work at 300 W, and the idle second at 50 W."""
    result = simulated(jobs_of([(0, 10), (1, 4), (2, 5)]))
    assert result.energy_j.tolist() == [3000, 1200, 1500]
    assert result.active_j == pytest.approx(5700)
    assert result.idle_j == pytest.approx(50 * 1)
    assert result.total_j == pytest.approx(5750)
    assert result.gpu_s.tolist() == [10, 4, 5]
    assert result.busy_gpu_s == (19,)
    assert result.peak_w == 600


def test_power_over_time_integrates_to_the_energy() -> None:
    """The recorded steps of power are complete."""
    result = simulated(jobs_of([(0, 10), (1, 4), (2.5, 5), (30, 2)]), nodes=2)
    lengths_s = np.diff(np.append(result.power_times_s, result.end_s))
    assert float(lengths_s @ result.power_w) == pytest.approx(result.total_j)


def test_a_job_without_work_ends_where_it_starts() -> None:
    """Zero samples: started and finished at once, without energy, and the next job is not
    delayed.
    """
    result = simulated(jobs_of([(0, 0), (0, 0), (0, 0), (0, 3)]))
    assert result.finished_s.tolist() == [0, 0, 0, 3]
    assert result.energy_j.tolist() == [0, 0, 0, 900]


def test_ends_come_before_arrivals_of_the_same_moment() -> None:
    """The GPUs of jobs that end at 5 s are free for those that arrive at 5 s."""
    result = simulated(jobs_of([(0, 5), (0, 5), (5, 1), (5, 1)]))
    assert result.started_s.tolist() == [0, 0, 5, 5]


def test_jobs_that_come_together_go_by_their_number() -> None:
    """Ties are broken by the order of the table."""
    result = simulated(jobs_of([(1, 2), (1, 2), (1, 2), (1, 2)]))
    assert result.started_s.tolist() == [1, 1, 3, 3]


def test_rounds_fall_on_multiples_and_see_what_happens_on_them() -> None:
    """With a round every 10 s: 0 s is a round, 3 s waits for 10 s, 20 s is handled at once."""
    result = simulated(jobs_of([(0, 5), (3, 5), (20, 5)]), round_s=10)
    assert result.started_s.tolist() == [0, 10, 20]


def test_rounds_of_a_fraction_do_not_drift() -> None:
    """Ten thousand rounds of 0.1 s: decisions stay on multiples of 0.1."""
    arrivals = [(0.1 * number + 0.03, 0.01) for number in range(0, 10_000, 97)]
    result = simulated(jobs_of(arrivals), round_s=0.1)
    rounds = [math.ceil(arrival / 0.1) for arrival, _ in arrivals]
    assert result.started_s.tolist() == [number * 0.1 for number in rounds]


def test_a_policy_that_changed_something_is_asked_again_at_the_next_round_only() -> None:
    """It decides once per round: at 0 s and 10 s (because it started a job), then no more."""
    policy = Scripted({0.0: [Start(0, 0)]})
    simulated(jobs_of([(0, 100)]), policy, round_s=10)
    assert policy.asked_s == [0, 10, 100]


def test_without_rounds_a_policy_is_asked_until_it_is_quiet() -> None:
    """At once after it started a job, and when the job ends."""
    policy = Scripted({0.0: [Start(0, 0)]})
    simulated(jobs_of([(0, 100)]), policy)
    assert policy.asked_s == [0, 0, 100]


def test_a_policy_wakes_when_it_asked_to() -> None:
    """The only event at 7 s is the wake."""
    result = simulated(jobs_of([(0, 2)]), Scripted({0.0: [Wake(7.0)], 7.0: [Start(0, 0)]}))
    assert result.started_s.tolist() == [7]


def test_a_wake_that_was_asked_for_before_is_one_wake() -> None:
    """Requested at every decision, it is in the event heap once."""
    cluster = small_cluster()
    policy = Scripted({0.0: [], 1.0: [], 2.0: [], 50.0: [Start(0, 0)]})
    jobs = jobs_of([(number / 10, 1) for number in range(30)])
    simulation = Simulation(cluster, jobs, policy, truth=PlainOracle(cluster))
    simulation.run(until_s=10.0)
    assert len(simulation.world.heap) == 1


def test_a_wake_between_rounds_waits_for_the_round() -> None:
    """Decisions fall on rounds, whatever woke the policy."""
    policy = Scripted({0.0: [Wake(7.0)], 10.0: [Start(0, 0)]})
    assert simulated(jobs_of([(0, 2)]), policy, round_s=10).started_s.tolist() == [10]


def test_the_horizon_ends_everything() -> None:
    """At 8 s one job is done, one runs, one waits; idle time counts up to the horizon."""
    result = simulated(jobs_of([(0, 5), (4, 10), (4, 10), (9, 1)]), horizon_s=8.0)
    assert result.ended is SimulationEnd.HORIZON
    assert result.end_s == 8
    assert result.finished_s.tolist()[:1] == [5]
    assert np.isnan(result.finished_s[1:]).all()
    assert result.energy_j.tolist() == pytest.approx([1500, 1200, 900, 0])
    assert result.gpu_s.tolist() == pytest.approx([5, 4, 3, 0])


def test_an_idle_cluster_draws_power_up_to_the_horizon() -> None:
    """All is done at 5 s, and the horizon is at 100 s."""
    result = simulated(jobs_of([(0, 5)]), horizon_s=100.0)
    assert result.idle_j == pytest.approx(50 * 5 + 100 * 95)
    assert result.end_s == 100


def test_no_jobs_at_all_is_an_empty_result() -> None:
    """The result is empty, without an error."""
    result = simulated(jobs_of([]))
    assert (result.end_s, result.total_j, result.ended) == (0, 0, SimulationEnd.DONE)


def test_a_job_larger_than_the_cluster_is_reported_and_delays_no_job() -> None:
    """It is in `never` with the reason, and the job after it runs."""
    kind = JobKind("huge", gpus=(8,))
    few = jobs_of([(0, 1), (0, 1)])
    both = JobTable(
        (kind, JobKind("toy")), few.users, few.arrival_s, np.array([0, 1]), few.user, few.work,
        few.deadline_s, few.priority,
    )  # fmt: skip
    result = simulated(both)
    assert result.never == {0: "huge: needs at least 8 GPUs of one type, the cluster has 2 at most"}
    assert result.is_done.tolist() == [False, True]
    assert result.ended is SimulationEnd.DONE


def test_the_log_tells_all_of_it() -> None:
    """Arrivals, starts with their option, and ends, in order."""
    result = simulated(jobs_of([(0, 2), (1, 2)]))
    assert [(event.time_s, event.what, event.job) for event in result.log] == [
        (0, EventKind.ARRIVE, 0),
        (0, EventKind.START, 0),
        (1, EventKind.ARRIVE, 1),
        (1, EventKind.START, 1),
        (2, EventKind.FINISH, 0),
        (3, EventKind.FINISH, 1),
    ]


def test_oracles_that_speak_of_different_options_are_refused() -> None:
    """A policy chooses an option by its number, so both must have the same options."""
    cluster = small_cluster()
    jobs = jobs_of([(0, 1)], kind=JobKind("toy", gpus=(1, 2)))

    class OneGpu(PlainOracle):
        def options(self, kind: JobKind) -> PlacementOptions:
            return super().options(replace(kind, gpus=(1,)))

    with pytest.raises(ConfigError, match="differ in the options of toy"):
        Simulation(cluster, jobs, Fifo(), truth=PlainOracle(cluster), oracle=OneGpu(cluster))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulated(jobs_of([(0, math.nan)])), "work of job 0 is nan"),
        (lambda: simulated(jobs_of([(0, 1), (1, -2)])), "work of job 1 is -2"),
        (lambda: simulated(jobs_of([(-1, 1)])), "arrival_s of job 0 is -1"),
        (lambda: simulated(jobs_of([]), node_events=(NodeEvent(1, 7, False),)), "node 7"),
        (lambda: simulated(jobs_of([]), node_events=(NodeEvent(-1, 0, False),)), "time_s is -1"),
        (lambda: EngineSettings(round_s=0.0), "round_s is 0"),
        (lambda: EngineSettings(horizon_s=0.0), "horizon_s is 0"),
        (lambda: EngineSettings(interference=-0.1), "interference is -0.1"),
        (lambda: Preemption(checkpoint_period_s=0.0), "checkpoint_period_s is 0"),
        (lambda: Preemption(restart_s=math.inf), "restart_s is inf"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(make: object, message: str) -> None:
    """A time that would run backwards or never end is a ConfigError that names the place."""
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator] # a lambda
