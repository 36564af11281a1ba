"""Promises of the finder on measured curves, where the files are present."""

import os
from pathlib import Path

import pytest

from wattloop.cap.evaluation import MeasuredCurve, evaluate, exhaustive_choice, read_curves, replays
from wattloop.cap.finder import CapFinder

SHARED = Path(
    os.environ.get("WATTLOOP_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data"
)
CURVE = MeasuredCurve(("a",), (100.0, 200.0, 300.0), (2.0, 1.2, 1.0), (100.0, 190.0, 280.0))


def test_four_probes_on_measured_curves():
    """Promise: EDP is within 2% of the best on 95% of the curves of unseen GPUs."""
    tables = [SHARED / "zeus_nsdi23" / f"power_{gpu}.csv" for gpu in ("v100", "a40")]
    if not all(table.is_file() for table in tables):
        pytest.skip(f"{tables[0]} is not there; WATTLOOP_SHARED_DATA names the folder")
    found = evaluate([c for t in tables for c in read_curves(t) if c.responsive], "edp")
    assert found.within_2pct_share >= 0.95
    assert found.median_probes <= 4


def test_regret_is_of_true_values():
    """Promise: regret compares the true values of caps, not their noisy readings."""
    for replayed in replays([CURVE], "energy", 2.0, 0.2, seeds=5):
        truth = [2.0 * 100, 1.2 * 190, 1.0 * 280]
        index = CURVE.caps_w.index(replayed.cap_w)
        assert replayed.regret == pytest.approx(truth[index] / min(truth) - 1)


def test_exhaustive_without_noise_is_always_right():
    """Promise: without noise, trying every cap finds the best one."""
    import numpy as np

    assert exhaustive_choice(CURVE, "energy", 2.0, 0.0, np.random.default_rng(0)) == 0
    assert exhaustive_choice(CURVE, "ed2p", 2.0, 0.0, np.random.default_rng(0)) == 2


def test_exhaustive_has_the_same_noise_however_many_probes_are_made():
    """Promise: finders with different numbers of probes are compared with the same exhaustive
    search.
    """

    def tried(most):
        def make(curve):
            return CapFinder(curve.caps_w, "edp", noise=0.1, most_probes=most)

        return [r.exhaustive_regret for r in replays([CURVE], "edp", 2.0, 0.1, seeds=9, make=make)]

    assert tried(1) == tried(3)


def test_noise_is_repeatable():
    """Promise: an evaluation repeats exactly."""
    first = evaluate([CURVE], "edp", noise=0.05, seeds=3)
    assert evaluate([CURVE], "edp", noise=0.05, seeds=3) == first


def test_gain_minus_loss_has_the_best_cap_of_eds_2():
    """Promise: both metrics choose the same cap."""
    choices = [next(replays([CURVE], m, 2.0, 0.0)).cap_w for m in ("gain_minus_loss", "eds")]
    assert choices[0] == choices[1]
