"""Promises of `fits`: the verdict, the missing bytes, and the batch that would fit."""

import itertools
from dataclasses import replace

import pytest

from wattloop.hardware.gpus import gpu_named
from wattloop.predict.memory import FRAGMENTATION, memory_fit
from wattloop.predict.workload.workload import Workload

H200, T4 = gpu_named("h200"), gpu_named("t4")
SMALL = Workload(
    name="small",
    operations=(),
    batch=64,
    parameter_bytes=0.5e9,
    gradient_bytes=0.5e9,
    optimizer_bytes=1e9,
    activation_bytes=5e9,
    peak_bytes=8e9,
)


def test_what_is_small_fits() -> None:
    """Needed is above the tensors' peak: context and fragments are counted."""
    fit = memory_fit(SMALL, H200)
    assert fit.fits and not fit.tight
    assert fit.short_bytes == 0.0
    assert 8e9 < fit.needed_bytes < 10e9
    assert "of" in fit.words and "fit" not in fit.words


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    """The suggested batch does fit, and one a tenth larger does not."""
    large = replace(SMALL, peak_bytes=24e9)
    fit = memory_fit(large, T4)
    assert not fit.fits
    assert fit.short_bytes == pytest.approx(fit.needed_bytes - fit.available_bytes)
    assert fit.largest_batch is not None and 0 < fit.largest_batch < 64
    for batch, fits in ((fit.largest_batch, True), (int(1.1 * fit.largest_batch) + 1, False)):
        peak = 2e9 + 22e9 * batch / 64
        assert memory_fit(replace(large, batch=batch, peak_bytes=peak), T4).fits is fits
    assert "does not fit" in fit.words and "too much" in fit.words
    assert f"about {fit.largest_batch} samples" in fit.words


def test_a_model_that_never_fits_says_so() -> None:
    """State alone is larger than the GPU: no batch helps."""
    huge = replace(SMALL, parameter_bytes=8e9, optimizer_bytes=16e9, peak_bytes=40e9)
    fit = memory_fit(huge, T4)
    assert fit.largest_batch == 0
    assert "leave no room" in fit.words


def test_near_the_limit_it_says_that_it_may_not_fit() -> None:
    """The estimate is accurate to a twentieth."""
    available = memory_fit(SMALL, T4).available_bytes
    near = replace(SMALL, peak_bytes=(0.97 * available - 0.75e9) / 1.05)
    fit = memory_fit(near, T4)
    assert fit.fits and fit.tight
    assert "may not fit" in fit.words


def test_training_together_keeps_gradients_twice() -> None:
    """Buckets of the exchange are a copy."""
    alone, together = memory_fit(SMALL, H200), memory_fit(SMALL, H200, gpus=8)
    assert together.needed_bytes - alone.needed_bytes == pytest.approx(0.5e9)


def test_without_activations_no_batch_is_named() -> None:
    """The growing part is unknown."""
    assert memory_fit(replace(SMALL, peak_bytes=0.0), H200).largest_batch is None


def test_sharding_divides_what_its_stage_says() -> None:
    """1: the optimizer's state; 2: gradients as well; 3: weights except those gathered at once."""
    workload = replace(
        SMALL, parameter_bytes=8e9, gradient_bytes=8e9, optimizer_bytes=16e9, peak_bytes=40e9
    )
    needed = [memory_fit(workload, H200, 8, zero).needed_bytes for zero in (0, 1, 2, 3)]
    saved = [(one - other) / (1 + FRAGMENTATION) for one, other in itertools.pairwise(needed)]
    assert saved[0] == pytest.approx(16e9 * 7 / 8)
    # gradients are not held a second time in buckets, either
    assert saved[1] == pytest.approx(8e9 * 7 / 8 + 8e9 / (1 + FRAGMENTATION))
    assert saved[2] == pytest.approx(8e9 * 7 / 8 - 0.8e9)
