"""Promises of noisy estimates: wrong by no more than stated, and repeatable."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.estimates.clusters import CAPS
from tests.schedule.small_world import PlainOracle, small_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.jobs import JobKind

KIND = JobKind("toy", gpus=(1, 2), batches=(8, 16), caps=CAPS)
EXACT = PlainOracle(small_cluster())


@given(seed=st.integers(-(2**63), 2**63 - 1), job=st.integers(0, 2**20), share=st.floats(0.01, 0.5))
def test_truth_exceeds_estimates_by_no_more_than_stated(seed: int, job: int, share: float) -> None:
    """True time and power are at most 1 + error of the estimate, for any seed and job."""
    oracle = NoisyOracle(EXACT, seed=seed, share=share)
    factors = oracle.factors(job, KIND)
    assert factors is not None
    for each, error in ((factors.time, oracle.time_error), (factors.power, oracle.power_error)):
        assert np.all(1 / each <= 1 + error + 1e-12)
        assert np.all(each <= 1 + share)


def test_ten_per_cent_off_means_eleven_per_cent_more() -> None:
    """An estimate 10% too low leaves the truth 1/0.9 - 1 above it."""
    oracle = NoisyOracle(EXACT, seed=1)
    assert oracle.power_error == oracle.time_error == pytest.approx(1 / 0.9 - 1)


def test_noise_is_the_same_in_any_order_and_company() -> None:
    """A job's noise depends on seed, job and placement only, not on other requests."""
    one, other = NoisyOracle(EXACT, seed=7), NoisyOracle(EXACT, seed=7)
    other.factors_of(range(100, 200), KIND)
    together = other.factors_of((5, 3, 4), KIND)
    alone = one.factors(3, KIND)
    assert together is not None and alone is not None
    assert np.array_equal(together.time[1], alone.time)
    assert np.array_equal(together.power[1], alone.power)


def test_a_placement_keeps_its_noise_without_the_others() -> None:
    """Policies with and without caps get the same estimate of a common placement."""
    oracle = NoisyOracle(EXACT, seed=7)
    many, few = oracle.factors(3, KIND), oracle.factors(3, replace(KIND, caps=(1.0,)))
    assert many is not None and few is not None
    uncapped = EXACT.options(KIND).cap_w == 400.0
    assert np.array_equal(many.time[uncapped], few.time)


@pytest.mark.parametrize("changed", [{"seed": 8}, {"job": 4}], ids=["seed", "job"])
def test_another_seed_or_job_is_another_noise(changed: dict[str, int]) -> None:
    """Draws differ between seeds, jobs, placements, and time from power."""
    asked = {"seed": 7, "job": 3}
    found = []
    for each in (asked, {**asked, **changed}):
        factors = NoisyOracle(EXACT, seed=each["seed"]).factors(each["job"], KIND)
        assert factors is not None
        assert not np.allclose(factors.time, factors.power)
        assert len(set(factors.time.tolist())) == len(EXACT.options(KIND))
        found.append(factors.time)
    assert not np.any(found[0] == found[1])


def test_noise_is_uniform() -> None:
    """Over many jobs the errors fill the band evenly: mean 0, each tenth of it a tenth."""
    factors = NoisyOracle(EXACT, seed=0).factors_of(range(2_000), KIND)
    assert factors is not None
    off = (factors.time - 1).ravel()
    assert abs(off.mean()) < 0.001
    shares = np.histogram(off, bins=10, range=(-0.1, 0.1))[0] / len(off)
    assert np.all(abs(shares - 0.1) < 0.01)
    assert abs(np.corrcoef(factors.time[:-1, 0], factors.time[1:, 0])[0, 1]) < 0.06


def test_power_is_never_believed_above_the_limit() -> None:
    """An estimate above cap x GPUs is not physical: it is clipped (thesis 5.3.2.3)."""
    options = EXACT.options(KIND)
    tight = replace(options, power_w=options.cap_w * options.gpus * 0.98)

    class Tight(PlainOracle):
        def options(self, kind: JobKind):  # type: ignore[no-untyped-def] # one answer
            return tight

    factors = NoisyOracle(Tight(small_cluster()), seed=0).factors_of(range(200), KIND)
    assert factors is not None
    limit_w = tight.cap_w * tight.gpus
    assert np.all(tight.power_w * factors.power <= limit_w * (1 + 1e-12))
    assert np.any(tight.power_w * factors.power > limit_w * (1 - 1e-9))


def test_without_noise_nothing_is_off() -> None:
    """A share of 0 is the exact oracle, and says so."""
    oracle = NoisyOracle(EXACT, seed=0, share=0.0)
    assert oracle.factors(1, KIND) is None
    assert oracle.power_error == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_impossible_noise_is_refused(share: float) -> None:
    """An estimate of 0 or below has no truth above it."""
    with pytest.raises(ConfigError, match="noise"):
        NoisyOracle(EXACT, seed=0, share=share)


def test_options_are_the_truth() -> None:
    """The simulated figure is the exact oracle's, the same object."""
    assert NoisyOracle(EXACT, seed=0).options(KIND) is EXACT.options(KIND)
