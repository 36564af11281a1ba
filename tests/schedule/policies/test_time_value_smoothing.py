"""Promises of smoothing: product forms stay exact, and isolated noise is removed."""

import numpy as np
import pytest

from tests.schedule.policies.two_types import MALLEABLE, WrongOracle
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.objectives import Estimates
from wattloop.schedule.policies.time_value import full_batch, smooth

OPTIONS = WrongOracle().options(MALLEABLE)


def _estimates(time_s: np.ndarray, power_w: np.ndarray) -> Estimates:
    return Estimates(time_s, power_w, np.zeros(len(OPTIONS)), OPTIONS.gpus, OPTIONS)


def test_times_that_are_products_of_gpus_and_cap_are_left_alone() -> None:
    """The toy oracle has that form, so smoothing changes nothing."""
    seen = smooth(_estimates(OPTIONS.sample_s, OPTIONS.power_w))
    assert seen.time_s == pytest.approx(OPTIONS.sample_s)
    assert seen.power_w == pytest.approx(OPTIONS.power_w)


def test_most_of_the_noise_goes() -> None:
    """Less than seven tenths remain with 12 placements per type, and less with more."""
    dice = np.random.default_rng(0)
    noise = dice.uniform(0.9, 1.1, (200, len(OPTIONS)))
    seen = smooth(_estimates(OPTIONS.sample_s * noise, OPTIONS.power_w * noise))
    left = np.std(np.log(seen.time_s / OPTIONS.sample_s)) / np.std(np.log(noise))
    assert left < 0.7


def test_luck_does_not_decide_how_many_gpus_are_best() -> None:
    """The estimate of how 4 GPUs compare with 2 is three times better than a single one."""
    noise = np.random.default_rng(1).uniform(0.9, 1.1, (200, len(OPTIONS)))
    seen = np.log(smooth(_estimates(OPTIONS.sample_s * noise, OPTIONS.power_w)).time_s)
    raw = np.log(noise)
    two, four = (np.flatnonzero(OPTIONS.gpus == gpus)[0] for gpus in (2, 4))
    left = np.std(seen[:, four] - seen[:, two]) / np.std(raw[:, four] - raw[:, two])
    assert left < 0.33


def test_the_full_batch_is_the_largest_of_each_shape() -> None:
    """Other GPUs may allow other batches by their memory."""
    kind = JobKind("toy", gpus=(1, 2), caps=(1.0,))
    few = WrongOracle().options(kind)
    columns = {
        name: np.repeat(getattr(few, name), 2)
        for name in PlacementOptions.__dataclass_fields__
        if name != "source"
    }
    columns["batch"] = np.array([8, 16, 8, 16, 8, 8, 32, 4])
    assert full_batch(PlacementOptions(**columns)).tolist() == [
        False, True, False, True, True, True, True, False,
    ]  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_job_of_no_length_has_no_logarithm_and_stays_as_it_is() -> None:
    """It has a row of its own, and the others are smoothed as without it."""
    time_s = np.stack([OPTIONS.sample_s, 0 * OPTIONS.sample_s])
    seen = smooth(_estimates(time_s, np.stack([OPTIONS.power_w] * 2)))
    assert seen.time_s[0] == pytest.approx(OPTIONS.sample_s)
    assert not seen.time_s[1].any()
