"""Promises of the step that follows from a profile: host, clock, cap, placement."""

from dataclasses import replace

import numpy as np
import pytest

from tests.predict.models.kernels.made import H200, step_of, transformer_step
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement, Regime
from wattloop.predict.workload import Workload, costs

MODEL = KernelModel()
HERE = Placement(H200)


@pytest.fixture(scope="module")
def heavy() -> Workload:
    """Return products that draw more than a lowered cap."""
    return step_of(costs.gemm(1, 8192, 8192, 8192, dtype="bf16", count=20), batch=8)


def test_a_lower_cap_never_quickens_a_step_and_is_kept(heavy: Workload) -> None:
    """Power stays at or under the cap; time only grows as the cap falls."""
    caps = (700.0, 500.0, 400.0, 300.0, 250.0)
    steps = [MODEL.predict(heavy, Placement(H200, cap_w=cap)) for cap in caps]
    assert all(step.power_w <= cap for step, cap in zip(steps, caps, strict=True))
    times = [step.step_s for step in steps]
    assert times == sorted(times)
    assert times[-1] > 1.1 * times[0]
    assert steps[-1].clock_mhz < steps[0].clock_mhz


def test_a_cap_stretches_compute_bound_time_only() -> None:
    """Memory-bound operations take no longer when the clock falls."""
    stream = step_of(costs.elementwise(2**28, 2, 1, "fp32", count=20))
    free = MODEL.predict(stream, Placement(H200, clock_mhz=1980))
    slow = MODEL.predict(stream, Placement(H200, clock_mhz=990))
    assert slow.step_s == pytest.approx(free.step_s, rel=1e-6)


def test_a_locked_clock_stretches_products(heavy: Workload) -> None:
    """Half the clock, twice the time, less power."""
    free, slow = (MODEL.predict(heavy, Placement(H200, clock_mhz=c)) for c in (1200.0, 600.0))
    assert slow.step_s == pytest.approx(2 * free.step_s, rel=0.02)
    assert slow.power_w < free.power_w
    assert slow.clock_mhz == pytest.approx(600)


def test_small_batches_wait_for_the_host() -> None:
    """A step of tiny kernels is launch-bound and takes the host's time; a large one is not."""
    small, large = transformer_step(batch=1, length=16), transformer_step(batch=64, length=512)
    waiting = MODEL.predict(small, HERE)
    assert waiting.regime is Regime.LAUNCH
    assert waiting.step_s == pytest.approx(waiting.host_s, rel=0.1)
    assert MODEL.predict(large, HERE).regime in (Regime.COMPUTE, Regime.MEMORY)
    quick = MODEL.predict(small, replace(HERE, host_speed=1.3))
    assert quick.step_s == pytest.approx(waiting.step_s / 1.3, rel=0.1)


def test_a_slow_data_loader_bounds_the_step(heavy: Workload) -> None:
    """8 samples at 40 a second take 0.2 s."""
    step = MODEL.predict(heavy, Placement(H200, samples_s=40.0))
    assert step.step_s == pytest.approx(0.2)
    assert step.regime is Regime.DATA
    assert step.power_w < MODEL.predict(heavy, HERE).power_w


def test_accumulation_repeats_passes_and_not_the_optimizer() -> None:
    """Four passes take less than four steps: the optimizer runs once."""
    once = transformer_step(batch=32)
    four = once.accumulating(4)
    one_s, four_s = (MODEL.predict(w, HERE).step_s for w in (once, four))
    assert 2 * one_s < four_s < 4 * one_s


def test_more_gpus_take_longer_steps_and_more_energy() -> None:
    """Exchange of gradients is never free, and energy counts all GPUs."""
    work = transformer_step(batch=16)
    one, eight = (MODEL.predict(work, Placement(H200, gpus=n)) for n in (1, 8))
    assert eight.step_s > one.step_s
    assert eight.energy_j == pytest.approx(eight.step_s * eight.power_w * 8)


def test_many_at_once_are_the_same_as_one_by_one(heavy: Workload) -> None:
    """`predict_many` fills a table of workloads and placements with `predict`'s numbers."""
    works = [heavy, transformer_step(batch=4)]
    places = [HERE, Placement(H200, cap_w=300), Placement(H200, gpus=4, host_speed=0.5)]
    table = MODEL.predict_many(works, places)
    alone = [[MODEL.predict(w, p) for p in places] for w in works]
    np.testing.assert_allclose(table.step_s, [[a.step_s for a in row] for row in alone])
    np.testing.assert_allclose(table.power_w, [[a.power_w for a in row] for row in alone])


def test_terms_name_phase_and_kind_and_add_up() -> None:
    """The seconds of a compute-bound step by phase and kind sum to its GPU time."""
    step = MODEL.predict(transformer_step(batch=64), HERE)
    assert "backward.gemm" in step.terms_s
    assert sum(step.terms_j.values()) == pytest.approx(step.energy_j)
    assert step.terms_j["backward.gemm"] > step.terms_j["forward.gemm"] > 0
    assert sum(step.terms_s.values()) == pytest.approx(step.gpu_s, rel=0.05)
    timed = MODEL.timed_operations(transformer_step(batch=64), HERE.gpu)
    at_full_clock_s = sum(value for name, value in step.terms_s.items() if "." in name)
    assert sum(seconds for _, seconds in timed) == pytest.approx(at_full_clock_s)
    assert any(op.op == "aten.addmm" for op, _ in timed)


def test_an_unknown_gpu_says_that_its_constants_are_guessed() -> None:
    """Without calibration the prediction carries a warning that names the remedy."""
    other = replace(H200, name="h9000", product="NVIDIA H9000")
    step = KernelModel.for_gpu(other).predict(transformer_step(), Placement(other))
    assert "NVIDIA H9000" in step.warnings[0]
    assert "calibrate" in step.warnings[0]
