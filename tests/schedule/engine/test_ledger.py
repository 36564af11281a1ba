"""Promise: budgets, prices and carbon that change over time apply at their times."""

import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Start
from wattloop.schedule.cluster import Cluster
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.step_function import StepFunction


def simulated(cluster: Cluster | None = None, **settings: object) -> SimulationResult:
    """Simulate one job of 3,600 s on one of two GPUs: 350 W for an hour, then the end."""
    cluster = cluster or small_cluster()
    rules = EngineSettings(checks=True, **settings)  # type: ignore[arg-type] # any setting
    truth = PlainOracle(cluster)
    return Simulation(cluster, jobs_of([(0, 3600)]), Fifo(), truth=truth, settings=rules).run()


def test_time_and_joules_above_a_budget_that_changes_are_counted() -> None:
    """350 W against 400 W, then 300 W for 600 s, then 400 W again."""
    result = simulated(budget_w=StepFunction((0.0, 1000.0, 1600.0), (400.0, 300.0, 400.0)))
    assert result.over_budget_s == pytest.approx(600)
    assert result.over_budget_j == pytest.approx(600 * 50)


def test_a_budget_that_is_just_kept_is_kept() -> None:
    """350 W against 350 W."""
    assert simulated(budget_w=StepFunction.constant(350.0)).over_budget_s == 0


def test_missing_prices_are_not_zero() -> None:
    """Without a price the cost is missing; without an intensity the carbon is."""
    result = simulated()
    assert (result.carbon_g, result.cost) == (None, None)


def test_prices_and_carbon_follow_the_hour() -> None:
    """0.35 kWh: the first quarter of the hour is expensive and dirty, the rest cheap and clean."""
    result = simulated(
        price_per_kwh=StepFunction((0.0, 900.0), (0.4, 0.2)),
        carbon_g_per_kwh=StepFunction((0.0, 900.0), (400.0, 100.0)),
    )
    assert result.cost == pytest.approx(0.35 * (0.25 * 0.4 + 0.75 * 0.2))
    assert result.carbon_g == pytest.approx(0.35 * (0.25 * 400 + 0.75 * 100))


def test_hours_of_a_negative_price_are_subtracted() -> None:
    """0.35 kWh: a quarter of the hour at 0.10, the rest at -0.20, so that the sum is negative."""
    result = simulated(price_per_kwh=StepFunction((0.0, 900.0), (0.1, -0.2)))
    assert result.cost == pytest.approx(0.35 * (0.25 * 0.1 - 0.75 * 0.2))


def test_prices_change_while_nothing_runs_up_to_the_horizon() -> None:
    """An hour of work at 0.35 kWh, then an hour idle at 0.1 kWh for ten times the price."""
    result = simulated(price_per_kwh=StepFunction((0.0, 3700.0), (1.0, 10.0)), horizon_s=7200.0)
    idle_kwh = 0.1 / 3600
    assert result.cost == pytest.approx(0.35 + 100 * idle_kwh + 3500 * idle_kwh * 10)


def test_hosts_draw_more_while_their_gpus_work() -> None:
    """100 W always, 40 W more for the GPU at work."""
    cluster = small_cluster(host_w=100.0, host_busy_w_per_gpu=40.0)
    result = simulated(cluster)
    assert result.host_j == pytest.approx(3600 * 140)
    assert result.peak_w == pytest.approx(300 + 50 + 140)


def test_the_network_draws_power_always() -> None:
    """80 W for an hour."""
    small = small_cluster()
    cluster = Cluster("small", small.types, small.groups, network_w=80.0)
    assert simulated(cluster).network_j == pytest.approx(3600 * 80)


def test_a_policy_sees_the_power_of_the_whole_cluster() -> None:
    """Idle GPUs, hosts and network are included."""
    cluster = small_cluster(host_w=100.0)
    simulation = Simulation(
        cluster,
        jobs_of([(0, 10), (5, 1)]),
        Scripted({0.0: [Start(0, 0)], 5.0: [Start(1, 0)]}),
        truth=PlainOracle(cluster),
    )
    simulation.run(until_s=7.0)
    assert simulation.view.power_w == pytest.approx(300 + 50 + 100)
