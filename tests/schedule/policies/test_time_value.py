"""Promises of Helios' cost: its effect on the choice of lower and higher caps."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.policies.two_types import MALLEABLE, WrongOracle, two_types
from wattloop.schedule.objectives import Estimates
from wattloop.schedule.policies.time_value import (
    gpu_worth,
    joule_price,
    reference_w,
    time_value,
    waiting_level,
)
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView
from wattloop.testing.synthetic_cluster import FormulaOracle

OPTIONS = WrongOracle().options(MALLEABLE)
IDLE_W = np.where(OPTIONS.type_index == 0, 50.0, 60.0) * OPTIONS.gpus
ESTIMATES = Estimates(100 * OPTIONS.sample_s, OPTIONS.power_w, IDLE_W, OPTIONS.gpus, OPTIONS)


def _chosen(value: float, waiting: float = 0.0, price: float = 1.0) -> tuple[int, float]:
    """Return GPUs and cap of the cheapest placement."""
    best = int(np.argmin(time_value(value, waiting, 8, price, exact=True).cost(ESTIMATES)))
    return int(OPTIONS.gpus[best]), float(
        OPTIONS.cap_w[best] / (400, 700)[OPTIONS.type_index[best]]
    )


def test_without_a_price_for_time_the_least_energy_above_idle_is_chosen() -> None:
    """Cost at v = 0 is exactly that energy."""
    cost = time_value(0.0, 5.0, 8, exact=True).cost(ESTIMATES)
    assert cost == pytest.approx((OPTIONS.power_w - IDLE_W) * 100 * OPTIONS.sample_s)


def test_dearer_time_raises_the_cap() -> None:
    """The cap rises from the lowest to the highest."""
    caps = [_chosen(value)[1] for value in (0.0, 0.3, 1.0, 10.0)]
    assert caps == sorted(caps)
    assert caps[0] < caps[-1] == 1.0


def test_a_long_queue_takes_fewer_gpus_per_job() -> None:
    """They scale badly here (k^0.95): GPU seconds count when others wait."""
    assert _chosen(1.0)[0] == 4
    assert _chosen(1.0, waiting=1000.0)[0] == 1


def test_seconds_on_gpus_of_more_worth_are_dearer() -> None:
    """By the root of the worth without waiting jobs, in proportion for each that waits; joules
    do not.
    """
    worth, of_option = (0.5, 1.5), np.where(OPTIONS.type_index == 0, 0.5, 1.5)

    def cost(value: float, waiting: float, worth: tuple[float, ...] = ()) -> NDArray[np.float64]:
        return time_value(value, waiting, 8, worth=worth, exact=True).cost(ESTIMATES)

    joules, alone, plain = cost(0.0, 0.0), cost(1.0, 0.0, worth), cost(1.0, 0.0)
    assert alone - joules == pytest.approx(np.sqrt(of_option) * (plain - joules))
    others = cost(1.0, 1.0) - plain
    assert cost(1.0, 1.0, worth) - alone == pytest.approx(of_option * others)


def test_the_last_of_a_long_queue_adds_less_than_the_first() -> None:
    """It waits for the earlier jobs anyway."""
    alone, one, two = (
        time_value(1.0, waiting, 8, exact=True).cost(ESTIMATES) for waiting in (0.0, 1.0, 2.0)
    )
    assert np.all(two - one > 0)
    assert np.all(two - one < one - alone)


def test_the_reference_is_the_power_above_idle_of_the_fastest_placement() -> None:
    """The value v is in units of this power."""
    fastest = int(np.argmin(OPTIONS.sample_s))
    found = reference_w(exact=True).cost(ESTIMATES)
    assert found == pytest.approx(np.full(len(OPTIONS), OPTIONS.power_w[fastest] - IDLE_W[fastest]))


def test_a_gpu_is_worth_its_power_limit_over_the_mean() -> None:
    """With 400 and 700 W, and as many of each."""
    assert gpu_worth(two_types()) == pytest.approx((400 / 550, 700 / 550))


def test_dear_joules_lower_the_cap() -> None:
    """The price of a joule counts relative to its mean."""
    assert _chosen(1.0, price=3.0)[1] < _chosen(1.0, price=0.2)[1]


def test_prices_are_over_their_mean_and_carbon_goes_before_money() -> None:
    """The value is 1 where the scenario gives none."""
    day = StepFunction((0.0, 6.0), (300.0, 100.0), 24.0)

    def price(carbon: StepFunction | None, money: StepFunction | None) -> float:
        seen = SimpleNamespace(carbon_g_per_kwh=carbon, price_per_kwh=money, now_s=0.0)
        return joule_price(cast(ClusterView, seen))

    assert price(None, None) == 1.0
    assert price(day, StepFunction.constant(5.0)) == pytest.approx(300 / 150)
    assert price(None, StepFunction.constant(5.0)) == 1.0
    assert price(StepFunction.constant(0.0), None) == 1.0
    below = StepFunction((0.0, 6.0), (-0.1, 0.3), 24.0)
    assert price(None, below) == 0.0
    assert price(None, StepFunction.constant(-0.1)) == 0.0
    assert price(None, below.shifted(6.0)) == pytest.approx(0.3 / (0.3 * 18 / 24), rel=0.1)


def test_queues_of_like_length_are_one_level() -> None:
    """Costs are stored per level, so there are few."""
    assert [waiting_level(n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert len({waiting_level(n) for n in range(10_000)}) < 20
    assert waiting_level(1000) == pytest.approx(1000, rel=0.42)


@pytest.mark.filterwarnings("error")
def test_placements_that_draw_no_more_than_idle_have_costs_within_a_delay() -> None:
    """Smaller batches are left out, since a time multiplied by no power has no value."""
    options = FormulaOracle(two_types()).options(replace(MALLEABLE, batches=(32, 64)))
    idle_w = np.full(len(options), 50.0)
    idle = Estimates(100 * options.sample_s, idle_w, idle_w, options.gpus, options)
    assert not np.isnan(time_value(1.0, 0.0, 8, exact=True, max_delay=0.1).cost(idle)).any()
