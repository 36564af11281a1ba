"""Promise: a simulation ends under any policy, and names the reason and the unfinished jobs."""

import math

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Action, Preempt, Start, Wake
from wattloop.schedule.engine import (
    EngineSettings,
    Keeps,
    Preemption,
    Simulation,
    SimulationEnd,
    SimulationResult,
)
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView

DAY_S = 86_400.0
NIGHT_AND_DAY = StepFunction((0.0, 43_200.0), (1000.0, 500.0), DAY_S)


class Never(Policy):
    """A policy that starts nothing."""

    name = "never"

    def decide(self, view: ClusterView) -> list[Action]:
        """Return no actions."""
        del view
        return []


class Sleepless(Never):
    """A policy that asks to be woken every second, for ever."""

    name = "sleepless"

    def decide(self, view: ClusterView) -> list[Action]:
        """Return a wake a second later."""
        return [Wake(view.now_s + 1.0)]


class Undecided(Policy):
    """A policy that stops in each round what it started in the last one, for ever."""

    name = "undecided"
    needs_free_gpus = False

    def decide(self, view: ClusterView) -> list[Action]:
        """Reverse the present state."""
        return [Preempt(0)] if view.running else [Start(0, 0)]


class WithinBudget(Policy):
    """A policy that starts a job only within the present budget."""

    name = "within budget"

    def decide(self, view: ClusterView) -> list[Action]:
        """Start the first job, 250 W above idle."""
        job = view.queue.head()
        fits = view.power_w + 250.0 <= view.budget_w.at(view.now_s)
        return [Start(job, 0)] if job is not None and fits else []


def simulated(policy: Policy, **settings: object) -> SimulationResult:
    """Simulate one job of 10 s on two GPUs."""
    cluster = small_cluster()
    rules = EngineSettings(checks=True, **settings)  # type: ignore[arg-type] # any setting
    truth = PlainOracle(cluster)
    return Simulation(cluster, jobs_of([(0, 10)]), policy, truth=truth, settings=rules).run()


def test_a_job_that_is_never_chosen_is_reported() -> None:
    """No event is left: the simulation is stuck, with the job and the reason."""
    result = simulated(Never())
    assert result.ended is SimulationEnd.STUCK
    assert result.left == {0: "toy: starved: it could run, but never never started it"}
    assert not result.never


def test_prices_that_change_for_ever_do_not_keep_it_alive() -> None:
    """After a whole period without an event nothing will change."""
    result = simulated(Never(), price_per_kwh=NIGHT_AND_DAY)
    assert result.ended is SimulationEnd.STUCK
    assert result.end_s <= DAY_S


def test_a_budget_that_never_allows_the_job_is_the_reason() -> None:
    """At most 200 W, and the job needs 250 W more than the 100 W of the idle cluster."""
    result = simulated(
        WithinBudget(), budget_w=StepFunction((0.0, 43_200.0), (150.0, 200.0), DAY_S)
    )
    assert result.ended is SimulationEnd.STUCK
    assert result.left == {
        0: "toy: impossible: adds 250 W or more, the budget leaves 100 W at most"
    }
    assert result.end_s <= DAY_S


def test_a_job_waits_for_the_hour_when_the_budget_allows_it() -> None:
    """It starts at noon, when the budget rises, since the change wakes the policy."""
    result = simulated(
        WithinBudget(), budget_w=StepFunction((0.0, 43_200.0), (150.0, 400.0), DAY_S)
    )
    assert result.started_s.tolist() == [43_200]
    assert result.ended is SimulationEnd.DONE


def test_a_budget_that_changes_once_far_ahead_is_waited_for() -> None:
    """Without a period every change counts."""
    result = simulated(WithinBudget(), budget_w=StepFunction((0.0, 5 * DAY_S), (150.0, 400.0)))
    assert result.started_s.tolist() == [5 * DAY_S]


def test_a_policy_that_only_wakes_itself_is_given_up() -> None:
    """Without running jobs, ten thousand wakes without effect are enough."""
    result = simulated(Sleepless())
    assert result.ended is SimulationEnd.STUCK
    assert result.end_s == pytest.approx(10_000, abs=2)
    assert 0 in result.left


class Late(WithinBudget):
    """A policy that wakes once, days after the only job came, and leaves the rest to the budget."""

    name = "late"

    def decide(self, view: ClusterView) -> list[Action]:
        """Do nothing before the third day."""
        return super().decide(view) if view.now_s > 3 * DAY_S else [Wake(3 * DAY_S)]


def test_the_period_that_is_waited_for_begins_when_nothing_else_is_to_come() -> None:
    """It wakes at midnight of the third day; the budget allows the job at noon."""
    result = simulated(Late(), budget_w=StepFunction((0.0, 43_200.0), (150.0, 400.0), DAY_S))
    assert result.started_s.tolist() == [3 * DAY_S + 43_200]


def test_a_policy_that_stops_its_jobs_for_ever_is_given_up() -> None:
    """The limit is a number of events without an arrival or an end."""
    rules = Preemption(Keeps.NOTHING)
    result = simulated(Undecided(), round_s=1.0, preemption=rules, patience=500)
    assert result.ended is SimulationEnd.STALLED
    assert result.end_s == pytest.approx(500, abs=2)


def test_with_a_horizon_waiting_jobs_are_no_riddle() -> None:
    """The horizon has passed, so the jobs are not reported as left over."""
    result = simulated(Never(), horizon_s=1000.0, price_per_kwh=NIGHT_AND_DAY)
    assert (result.ended, result.end_s, result.left) == (SimulationEnd.HORIZON, 1000, {})


def test_a_pause_is_no_end() -> None:
    """Stopped at 4 s by the caller, it can continue."""
    cluster = small_cluster()
    simulation = Simulation(cluster, jobs_of([(0, 10)]), WithinBudget(), truth=PlainOracle(cluster))
    half = simulation.run(until_s=4.0)
    assert (half.ended, half.end_s, half.energy_j.tolist()) == (SimulationEnd.NOT_YET, 4, [1200])
    half_hash = half.event_hash
    whole = simulation.run()
    assert half.event_hash == half_hash != whole.event_hash
    assert (whole.ended, whole.end_s) == (SimulationEnd.DONE, 10)
    assert math.isclose(whole.total_j, 3500)
