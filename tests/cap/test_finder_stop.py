"""Promises of the end of a search: noise decides, between four probes and one per cap."""

import math

import numpy as np
import pytest

from tests.support.virtual_caps import virtual_curve
from wattloop.cap.curve_model import CapReading, fit_curves, physical_curves
from wattloop.cap.evaluation import MeasuredCurve, Replayed, replays
from wattloop.cap.finder import CapFinder, continue_reason, most_allowed, stop_reason

V100_CAPS = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
CURVES = [virtual_curve("v100", intensity, V100_CAPS) for intensity in (150.0, 250.0, 600.0)]


def searches(metric, noise, curves=CURVES, seeds=2, **options) -> list[Replayed]:
    def make(curve):
        return CapFinder(curve.caps_w, metric, noise=noise, **options)

    return list(replays(curves, metric, 2.0, noise, seeds=seeds, make=make))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_exact_readings_end_after_four(noise):
    """Promise: up to 2% of noise no search makes more than four probes."""
    for metric in ("energy", "edp", "ed2p"):
        assert max(done.probes for done in searches(metric, noise)) <= 4


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_noisy_readings_need_more_but_at_most_one_per_cap(noise):
    """Promise: where four noisy readings leave doubt there are more, at most one per cap."""
    probes = [done.probes for done in searches("edp", noise, seeds=3)]
    assert max(probes) > 4
    assert max(probes) <= len(V100_CAPS)


def test_further_probes_pay():
    """Promise: at 5% noise the choice is nearer to the best cap than with four probes, for fewer
    probes than there are caps, on curves of the model's family.
    """
    reading = CapReading(6, 0.0, math.log(225.0), 1e-3)
    belief = fit_curves(physical_curves(seed=7), np.array(V100_CAPS), [reading])
    drawn = [
        MeasuredCurve(("drawn",), tuple(V100_CAPS), tuple(np.exp(time)), tuple(np.exp(power)))
        for time, power in zip(belief.sampled_time[:40], belief.sampled_power[:40], strict=True)
    ]
    curves = [curve for curve in drawn if curve.responsive]
    on = searches("edp", 0.05, curves=curves, seeds=1)
    four = searches("edp", 0.05, curves=curves, seeds=1, most_probes=4)
    assert sum(done.regret for done in on) < sum(done.regret for done in four)
    assert sum(done.probes for done in on) < len(V100_CAPS) * len(on)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 99])
def test_a_limit_is_a_limit(most):
    """Promise: under any noise there are at most as many probes as allowed, and as caps."""
    probes = [done.probes for done in searches("ed2p", 0.1, most_probes=most)]
    assert max(probes) <= min(most, len(V100_CAPS))


@pytest.mark.parametrize("caps", [[100.0, 250.0], [100.0, 175.0, 250.0]])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_few_caps_need_few_probes(caps, noise):
    """Promise: two or three caps are read no more often than by trying each."""
    curve = virtual_curve("v100", 250.0, caps)
    assert next(replays([curve], "edp", 2.0, noise, seeds=1)).probes <= len(caps)


def test_the_reason_to_continue_or_end_is_given():
    """Promise: the reason names noise and doubt during the search, and the cause at its end."""
    curve, finder = CURVES[1], CapFinder(V100_CAPS, "ed2p", noise=0.1)
    said = []
    while (cap_w := finder.ask()) is not None:
        said.append(finder.why_on)
        at = curve.caps_w.index(cap_w)
        finder.tell(cap_w, curve.time_s[at], curve.time_s[at] * curve.power_w[at])
    assert said[:4] == [""] * 4 and len(said) > 4
    assert all("readings are 10% apart" in why and "probing on" in why for why in said[4:])
    assert finder.best().why
    held = CapFinder(V100_CAPS, "ed2p", noise=0.1, most_probes=1)
    held.tell(250, 10, 2_300)
    assert held.ask() is None and held.best().why == "1 was allowed"


def test_a_reason_to_end_is_dropped_when_the_search_continues():
    """Promise: `why` is empty while more probes would help, also after an end that was revoked."""
    finder = CapFinder([100, 200, 300])
    finder.tell(300, 1, 50)
    assert finder.ask() is None and finder.best().why == "no cap changes anything"
    finder.tell(200, 1.2, 230)
    assert finder.ask() == 100 and finder.best().why == ""


@pytest.mark.parametrize(("noise", "said"), [(0.051, "5.1%"), (0.49, "49%"), (1.0, "100%")])
def test_noise_is_reported_in_percent(noise, said):
    """Promise: noisy readings are described in plain numbers."""
    finder = CapFinder(V100_CAPS, "edp")
    for cap_w, time_s, energy_j in ((250, 10, 2_300), (175, 11, 1_900), (150, 12, 1_800)):
        finder.tell(cap_w, time_s, energy_j, noise)
    assert f" error of {said}," in stop_reason(finder.best(), None, noise)
    assert f" {said} apart" in continue_reason(finder.best(), noise)


def test_noise_that_was_measured_counts_as_noise_that_was_stated():
    """Promise: noisy readings raise the limit, though little noise was expected."""
    finder = CapFinder(V100_CAPS, "edp", noise=0.01)
    assert finder.limit == 4
    finder.tell(250, 10, 2_300, noise=0.06)
    assert finder.limit == len(V100_CAPS)
    assert CapFinder(V100_CAPS, "edp", noise=0.06, most_probes=3).limit == 3


def test_the_limit_follows_noise_caps_and_what_was_asked():
    """Promise: four by default, one per cap with noise, or as requested; never more than caps."""
    assert most_allowed(7, None, 0.02) == 4
    assert most_allowed(7, None, 0.021) == 7
    # runs that are stated 2% apart, and a counter that is read within 0.3%
    assert most_allowed(7, None, math.hypot(0.02, 0.003)) == 4
    assert most_allowed(3, None, 0.0) == 3
    assert most_allowed(7, 5, 0.0) == most_allowed(7, 5, 0.2) == 5
    assert most_allowed(7, 99, 0.2) == 7
