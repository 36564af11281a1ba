"""Promises of the virtual card's physics: the laws that sweeps and cap finders rely on."""

import statistics
from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.virtual.cards import CARDS, card_named
from wattloop.virtual.gpu import IDLE, Activity, GpuWork, normal

GEMM = {name: GpuWork(c.flops_per_s, 0.3 * c.bytes_per_s) for name, c in CARDS.items()}
COPY = {name: GpuWork(0.05 * c.flops_per_s, c.bytes_per_s) for name, c in CARDS.items()}


@pytest.mark.parametrize("name", CARDS)
def test_a_lower_cap_means_lower_clock_lower_power_and_longer_time(name):
    """Capping a compute-bound card slows it and saves energy, monotonically."""
    card = card_named(name)
    activity = card.activity(GEMM[name])
    caps_w = [
        card.min_limit_w + k * 10 for k in range(int((card.max_limit_w - card.min_limit_w) / 10))
    ]
    points = [card.settle(activity, cap_w, card.max_clock_mhz) for cap_w in caps_w]
    for cap_w, low, high in zip(caps_w, points, points[1:], strict=False):
        assert low.clock_mhz <= high.clock_mhz
        assert low.slowdown >= high.slowdown
        assert low.power_w <= cap_w * (1 + card.overshoot) + 1e-6


@pytest.mark.parametrize("name", CARDS)
def test_energy_has_a_best_clock_between_the_extremes(name):
    """Low clocks waste static power, and high clocks need a high voltage."""
    card = card_named(name)
    activity = card.activity(GEMM[name])

    def energy(clock_mhz):
        point = card.at_clock(activity, clock_mhz)
        return point.power_w * point.slowdown

    clocks = [card.min_clock_mhz + k * 15 for k in range(200)]
    clocks = [clock for clock in clocks if clock <= card.max_clock_mhz]
    best = min(clocks, key=energy)
    assert clocks[0] < best < clocks[-1]
    assert best == pytest.approx(card.knee_mhz, abs=0.2 * card.max_clock_mhz)


@pytest.mark.parametrize("name", CARDS)
def test_memory_bound_work_is_not_slowed_by_a_moderate_clock(name):
    """Roofline: with bandwidth as the limit, a lower clock costs no time but saves power."""
    card = card_named(name)
    activity = card.activity(COPY[name])
    fast, slow = (card.at_clock(activity, share * card.max_clock_mhz) for share in (1.0, 0.6))
    assert slow.slowdown == fast.slowdown == 1.0
    assert slow.power_w < fast.power_w


def test_h200_meets_what_was_measured_on_a_real_one():
    """At 700 W a matrix product runs at about 1660 MHz instead of 1980; idle is 80 W."""
    card = card_named("h200")
    point = card.settle(card.activity(GEMM["h200"]), 700, card.max_clock_mhz)
    assert point.clock_mhz == pytest.approx(1660, rel=0.02)
    assert card.settle(IDLE, 700, 1980).power_w == 80


def test_a_cap_below_the_power_of_the_lowest_clock_is_exceeded():
    """Caps are not hard limits: at its lowest clock the card draws what it needs."""
    card = card_named("v100")
    point = card.settle(Activity(1, 1, 1), 50, card.max_clock_mhz)
    assert point.clock_mhz == pytest.approx(card.min_clock_mhz)
    assert point.power_w > 50


def test_layers_that_take_turns_feel_the_clock_less_than_arithmetic_alone():
    """Without overlap times add: half memory, half arithmetic loses half as much."""
    card = card_named("rtx6000")
    half = card.max_clock_mhz / 2
    mixed = card.at_clock(Activity(1, 1, 1, overlap=0.0), half).slowdown
    assert mixed == pytest.approx(1.5)
    assert card.at_clock(Activity(1, 1, 1), half).slowdown == pytest.approx(2)


@pytest.mark.parametrize("name", CARDS)
def test_a_lower_memory_clock_costs_bandwidth_and_saves_power(name):
    """Memory-bound work slows in proportion; idle power falls a little, too."""
    card = card_named(name)
    highest, lower = card.memory_clocks_mhz[:2]
    activity = card.activity(COPY[name])
    fast, slow = (card.at_clock(activity, card.max_clock_mhz, mhz) for mhz in (highest, lower))
    assert slow.slowdown == pytest.approx(highest / lower)
    assert slow.power_w < fast.power_w
    assert card.at_clock(IDLE, card.max_clock_mhz, lower).power_w < card.idle_w


def test_overshoot_is_how_far_a_capped_card_settles_above_its_cap():
    """Real cards do not settle exactly at their cap."""
    card = replace(card_named("v100"), overshoot=0.05)
    point = card.settle(card.activity(GEMM["v100"]), 200, card.max_clock_mhz)
    assert point.power_w == pytest.approx(210, rel=1e-4)


def test_an_a40_exceeds_its_lowest_cap_where_memory_is_busy():
    """As Zeus's published runs show: 21% above a cap of 100 W, at most 1% above higher ones."""
    card = card_named("a40")
    activity = Activity(0.5, 1.0, 1.0)
    assert 110 < card.settle(activity, 100, card.max_clock_mhz).power_w < 125
    assert card.settle(activity, 150, card.max_clock_mhz).power_w < 152


def test_noise_repeats_and_has_the_stated_size():
    """The same tick reads the same; over many ticks mean and deviation are as stated."""
    values = [normal(0, tick) for tick in range(4_000)]
    assert normal(0, 7) == values[7]
    assert normal(1, 7) != values[7]
    assert statistics.fmean(values) == pytest.approx(0, abs=0.08)
    assert statistics.pstdev(values) == pytest.approx(1, rel=0.1)


def test_every_card_names_its_source_and_unknown_ones_are_refused():
    """A typing error gets the list of known cards."""
    assert all(card.source and card.name.startswith("virtual") for card in CARDS.values())
    with pytest.raises(ConfigError, match="h200, a100, v100"):
        card_named("h2000")
