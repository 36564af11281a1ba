"""Promises of the cap finder: few probes, honest about noise, and repeatable answers."""

import json
import math

import pytest

from tests.support.virtual_caps import virtual_curve
from wattloop.cap.evaluation import MeasuredCurve, evaluate, replays
from wattloop.cap.finder import CapFinder
from wattloop.core.errors import ConfigError

V100_CAPS = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
H200_CAPS = [200.0, 250.0, 300.0, 350.0, 400.0, 450.0, 500.0, 550.0, 600.0, 650.0, 700.0]
CURVES = [
    virtual_curve(card, intensity, caps)
    for card, caps in (("v100", V100_CAPS), ("h200", H200_CAPS))
    for intensity in (60.0, 150.0, 250.0, 600.0)
]


def searched(finder: CapFinder, curve: MeasuredCurve) -> CapFinder:
    while (cap_w := finder.ask()) is not None:
        index = curve.caps_w.index(cap_w)
        time_s = curve.time_s[index]
        finder.tell(cap_w, time_s, finder.devices * time_s * curve.power_w[index])
    return finder


@pytest.mark.parametrize(("metric", "k"), [("energy", 2), ("edp", 2), ("eds", 1.5), ("ed2p", 2)])
def test_four_probes_find_the_best_cap_of_a_physical_card(metric, k):
    """Promise: it comes within 2% of the best point on cards with unknown parameters."""
    found = evaluate(CURVES, metric, k)
    assert found.responsive_curves >= 6
    assert found.within_2pct_share >= 0.9
    assert found.median_probes <= 4


def test_the_reference_comes_first_and_asking_changes_nothing():
    """Promise: gains refer to the highest cap, so it is probed; `ask` may be repeated."""
    finder = CapFinder(V100_CAPS, "edp")
    assert finder.ask() == finder.ask() == 250
    finder.tell(250, 10, 2_300)
    assert finder.ask() == finder.ask() != 250


def test_a_search_continues_from_plain_data():
    """Promise: a search restored from JSON asks and answers the same."""
    finder = CapFinder(V100_CAPS, "eds", 1.5, noise=0.02, devices=2)
    finder.tell(250, 10, 4_600)
    finder.tell(150, 11.5, 3_300, noise=0.04)
    other = CapFinder.from_dict(json.loads(json.dumps(finder.to_dict())))
    assert other.ask() == finder.ask()
    assert other.best() == finder.best()


def test_a_job_that_no_cap_touches_gets_the_lowest_with_few_probes():
    """Promise: power far below every cap means any cap is right; the lowest wins."""
    flat = MeasuredCurve(("flat",), tuple(V100_CAPS), (10.0,) * 7, (42.0,) * 7)
    finder = searched(CapFinder(V100_CAPS, "eds"), flat)
    assert finder.best().cap_w == 100
    assert finder.best().flat
    assert len(finder.probes) <= 2


def test_power_above_the_cap_is_possible():
    """Promise: caps are not hard limits; a card 21% above its lowest cap still gets the best
    one.
    """
    powers = (121.0, 128.0, 146.0, 162.0, 180.0, 199.0, 216.0, 231.0, 244.0)
    times = (2.9, 2.5, 1.62, 1.2, 1.07, 1.03, 1.015, 1.01, 1.0)
    caps = tuple(float(c) for c in range(100, 301, 25))
    curve = MeasuredCurve(("a40",), caps, times, powers)
    (done,) = replays([curve], "edp", 2, 0.0)
    assert done.regret <= 0.02


def test_several_devices_share_the_energy():
    """Promise: two cards at the same cap give the choice of one, with twice the joules."""
    one = searched(CapFinder(V100_CAPS, "edp"), CURVES[3])
    two = searched(CapFinder(V100_CAPS, "edp", devices=2), CURVES[3])
    assert [p.cap_w for p in one.probes] == [p.cap_w for p in two.probes]
    assert one.best().cap_w == two.best().cap_w


def test_noisier_readings_give_wider_gains():
    """Promise: the stated interval accounts for the noise."""

    def width(noise: float) -> float:
        gain = searched(CapFinder(V100_CAPS, "edp", noise=noise), CURVES[3]).best().energy_gain_pct
        return gain.high - gain.low

    assert width(0.05) > 1.2 * width(0.005)


def test_gains_contain_the_true_values():
    """Promise: without noise, energy gain and time loss of the choice contain the true ones."""
    curve = CURVES[3]
    choice = searched(CapFinder(V100_CAPS, "eds", noise=0.001), curve).best()
    at = curve.caps_w.index(choice.cap_w)
    loss_pct = 100 * (curve.time_s[at] / curve.time_s[-1] - 1)
    gain_pct = 100 - (100 + loss_pct) * curve.power_w[at] / curve.power_w[-1]
    for interval, truth in ((choice.time_loss_pct, loss_pct), (choice.energy_gain_pct, gain_pct)):
        assert interval.low - 0.5 <= truth <= interval.high + 0.5


def test_with_noise_a_model_beats_the_smallest_reading():
    """Promise: at 5% noise the search does better than trying every cap once."""
    found = evaluate(CURVES, "energy", noise=0.05, seeds=3)
    assert found.within_2pct_share > found.exhaustive_within_2pct_share


@pytest.mark.parametrize(
    ("caps", "options", "message"),
    [
        ([250], {}, "at least two"),
        ([100, -5], {}, "above 0"),
        ([100, 200], {"metric": "joule"}, "unknown metric"),
        ([100, 200], {"metric": "power"}, "needs no finder"),
        ([100, 200], {"k": 1.0}, "above 1"),
        ([100, 200], {"noise": 2.0}, "between 0 and 0.5"),
        ([100, 200], {"most_probes": 0}, "at least one"),
        ([100, 200], {"certainty": 2}, "certainty is 2"),
    ],
)
def test_wrong_questions_are_refused(caps, options, message):
    """Promise: a search that is impossible says why."""
    with pytest.raises(ConfigError, match=message):
        CapFinder(caps, **options)


def test_wrong_answers_are_refused():
    """Promise: a cap that was not offered, no energy, or an invalid noise does not enter the
    model.
    """
    finder = CapFinder(V100_CAPS)
    with pytest.raises(ConfigError, match="none of the caps"):
        finder.tell(101, 1, 1)
    with pytest.raises(ConfigError, match="energy at 250 W"):
        finder.tell(250, 1, 0)
    for noise in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="noise at 250 W"):
            finder.tell(250, 1, 1, noise)
    with pytest.raises(ConfigError, match="nothing was tried"):
        finder.best()


@pytest.mark.parametrize("meter", [0.9, 1.06, 1.14])
def test_a_card_that_exceeds_its_caps_is_not_flat(meter):
    """Promise: power well above every cap, even the highest, does not read as 'no effect'."""
    curve = CURVES[3]
    read = MeasuredCurve(
        curve.key, curve.caps_w, curve.time_s, tuple(meter * p for p in curve.power_w)
    )
    for metric in ("edp", "ed2p"):
        finder = searched(CapFinder(V100_CAPS, metric, noise=0.005), read)
        assert not finder.best().flat
        (done,) = replays([read], metric, 2, 0.0)
        assert done.regret <= 0.02


@pytest.mark.parametrize(
    "caps",
    [
        H200_CAPS,
        [float(cap) for cap in range(100, 261, 10)],  # 17 caps
        [100.0, 150.0, 170.0, 180.0, 250.0],  # uneven
        [90.0, 120.0, 140.0, 160.0, 180.0, 200.0, 220.0],  # the card could be set higher
    ],
)
def test_any_grid_of_caps_will_do(caps):
    """Promise: neither the number of caps nor their steps matter, nor the card's own maximum."""
    card = "h200" if caps[-1] > 300 else "v100"
    curves = [virtual_curve(card, intensity, caps) for intensity in (60.0, 150.0, 250.0, 600.0)]
    for metric in ("energy", "edp"):
        assert all(r.regret <= 0.02 for r in replays(curves, metric, 2, 0.0) if r.curve.responsive)


def test_caps_may_come_in_any_order():
    """Promise: unsorted and repeated caps give the same search."""
    mixed = CapFinder([175, 250, 100, 225, 150, 125, 200, 250], "edp")
    assert [p.cap_w for p in searched(mixed, CURVES[3]).probes] == [
        p.cap_w for p in searched(CapFinder(V100_CAPS, "edp"), CURVES[3]).probes
    ]
    assert mixed.ask() is None and mixed.reference_w == 250


@pytest.mark.parametrize("told", [0.01, 0.025, 0.1])
def test_wrongly_stated_noise_costs_little(told):
    """Promise: at 5% noise, stating half, twice or no noise still ends near the best cap."""
    done = replays(
        CURVES, "eds", 2, 0.05, seeds=2, make=lambda c: CapFinder(c.caps_w, "eds", noise=told)
    )
    regrets = [r.regret for r in done if r.curve.responsive]
    assert sum(regrets) / len(regrets) < 0.05
