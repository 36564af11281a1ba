"""Promises of delays: jobs that may wait start in the cheapest or greenest hour, and no later."""

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.step_function import DAY_S, StepFunction

CHEAP_AT_3 = StepFunction((0.0, 3 * 3600.0, 4 * 3600.0), (0.3, 0.1, 0.3), DAY_S)
EVEN = StepFunction((0.0,), (200.0,), DAY_S)


def started(policy: str, deadline_s: float = float("inf"), **series: StepFunction) -> float:
    """Return the start of a job of 600 s that arrives at once, on one GPU."""
    cluster = small_cluster(gpus_per_node=1)
    jobs = jobs_of([(0, 600)], deadlines_s=[deadline_s])
    settings = EngineSettings(checks=True, strict=True, **series)  # type: ignore[arg-type] # any
    simulation = Simulation(
        cluster, jobs, policy_from(policy), truth=PlainOracle(cluster), settings=settings
    )
    return float(simulation.run().started_s[0])


@pytest.mark.parametrize("name", ["selene", "helios"])
@pytest.mark.parametrize("series", ["price_per_kwh", "carbon_g_per_kwh"])
def test_a_job_waits_for_the_cheap_hour_if_its_delay_reaches_it(name: str, series: str) -> None:
    """The hour from 3 o'clock costs a third."""
    assert started(f"{name}{{delay: 6 h}}", **{series: CHEAP_AT_3}) == 3 * 3600
    assert started(f"{name}{{delay: 2 h}}", **{series: CHEAP_AT_3}) == 0
    assert started(f"{name}{{delay: 0 h}}", **{series: CHEAP_AT_3}) == 0


@pytest.mark.parametrize("name", ["selene", "helios"])
def test_a_job_uses_at_most_half_of_its_time_to_spare(name: str) -> None:
    """Due after 8 hours it may wait for 3; due after 5 it may not."""
    policy = f"{name}{{delay: 6 h}}"
    assert started(policy, 8 * 3600, price_per_kwh=CHEAP_AT_3) == 3 * 3600
    assert started(policy, 5 * 3600, price_per_kwh=CHEAP_AT_3) == 0


@pytest.mark.parametrize("name", ["selene", "helios"])
@pytest.mark.parametrize("dear", [0.3, 0.0, -0.05])
def test_a_job_waits_for_the_hour_of_a_lower_price_below_zero(name: str, dear: float) -> None:
    """From a positive price, from none, and from one that is negative as well."""
    below = StepFunction((0.0, 3 * 3600.0, 4 * 3600.0), (dear, -0.06, dear), DAY_S)
    assert started(f"{name}{{delay: 6 h}}", price_per_kwh=below) == 3 * 3600


@pytest.mark.parametrize("name", ["selene", "helios"])
def test_a_job_leaves_no_negative_hour_for_a_dearer_one(name: str) -> None:
    """Nor for a gain of less than 2%: the hour from 3 o'clock gains 1%."""
    policy = f"{name}{{delay: 6 h}}"
    rising = StepFunction((0.0, 3 * 3600.0), (-0.06, -0.01), DAY_S)
    even = StepFunction((0.0, 3 * 3600.0), (-0.06, -0.0606), DAY_S)
    assert started(policy, price_per_kwh=rising) == 0
    assert started(policy, price_per_kwh=even) == 0


def test_the_intensity_goes_before_the_price() -> None:
    """At an even intensity no hour is better, at any price."""
    series = {"carbon_g_per_kwh": EVEN, "price_per_kwh": CHEAP_AT_3}
    assert started("selene{delay: 6 h}", **series) == 0
