"""Promises of constants of GPUs without a calibration."""

import math
from dataclasses import replace

import pytest

from tests.predict.models.kernels.made import step_of, transformer_step
from wattloop.hardware.gpus import Gpu, gpu_named, known_gpus
from wattloop.predict.models.kernels import KernelConstants, KernelModel
from wattloop.predict.models.kernels.datasheet import SpecRules, shipped_rules, spec_constants
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.workload import Workload, costs

GPUS = sorted(gpu.name for gpu in known_gpus())
STEP = transformer_step(dtype="fp32")
MIXED = transformer_step(dtype="bf16")


def predicted(gpu: Gpu, workload: Workload = STEP) -> Prediction:
    """Predict by the data sheet alone, whatever calibration exists."""
    constants = spec_constants(gpu, KernelConstants(), gpu_named("h200"))
    return KernelModel(constants).predict(workload, Placement(gpu))


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_of_the_table_has_an_answer(name: str) -> None:
    """Promise: time, power and intervals are finite and within what the card can do."""
    gpu = gpu_named(name)
    for workload in (STEP, MIXED):
        found = predicted(gpu, workload)
        assert math.isfinite(found.step_s)
        assert found.step_s > 0
        assert 0 < found.power_w <= 1.01 * gpu.tdp_w
        assert found.clock_mhz is not None
        assert found.clock_mhz <= gpu.boost_clock_mhz
        assert found.step_interval is not None
        assert found.step_interval.low < found.step_s < found.step_interval.high


@pytest.mark.parametrize("name", GPUS)
def test_a_better_gpu_is_never_slower(name: str) -> None:
    """Promise: more bandwidth, or more FLOPs on any unit, cannot make a step longer."""
    gpu = gpu_named(name)
    more_bandwidth = replace(gpu, memory_bytes_s=1.2 * gpu.memory_bytes_s)
    more_flops = replace(
        gpu,
        matrix_flops={dtype: 1.2 * peak for dtype, peak in gpu.matrix_flops.items()},
        vector_flops={dtype: 1.2 * peak for dtype, peak in gpu.vector_flops.items()},
    )
    for workload in (STEP, MIXED):
        step_s = predicted(gpu, workload).step_s
        for better in (more_bandwidth, more_flops):
            assert predicted(better, workload).step_s <= 1.001 * step_s


def test_newer_generations_are_quicker() -> None:
    """Promise: the order of data-centre GPUs is right, in fp32 and under autocast."""
    names = ("k80", "p100-pcie", "v100-pcie-32", "a100-pcie-40", "h100-pcie", "h200")
    for workload in (STEP, MIXED):
        times = [predicted(gpu_named(name), workload).step_s for name in names]
        assert times == sorted(times, reverse=True)


def test_the_warning_names_the_gpu_and_the_command() -> None:
    """Promise: a user who gets a guess is told so, with the way to improve it."""
    gpu = gpu_named("t4")
    (warning,) = KernelModel.for_gpu(gpu).predict(STEP, Placement(gpu)).warnings[:1]
    assert "Tesla T4" in warning
    assert "wattloop calibrate collect" in warning


def test_a_small_card_lowers_its_clock() -> None:
    """Promise: 70 W do not run a T4 at its boost clock; 250 W suffice for a V100."""
    t4, v100 = gpu_named("t4"), gpu_named("v100-pcie-32")
    assert (predicted(t4).clock_mhz or 0) < 0.8 * t4.boost_clock_mhz
    assert (predicted(v100).clock_mhz or 0) > 0.95 * v100.boost_clock_mhz


def test_issue_slots_decide_the_share_of_the_fp32_peak() -> None:
    """Promise: 16 lanes per scheduler (Volta, A100) reach more of the peak than 32 (P100, L40)."""

    def share(name: str) -> float:
        constants = spec_constants(gpu_named(name), KernelConstants(), gpu_named("h200"))
        return constants.values["product.efficiency.gemm.fp32"]

    assert share("v100-pcie-32") == pytest.approx(share("a100-sxm-80"))
    assert share("p100-pcie") == pytest.approx(share("l40"))
    assert share("v100-pcie-32") == pytest.approx(shipped_rules().spare_issue * share("p100-pcie"))


def test_fp32_products_on_amd_use_the_matrix_units() -> None:
    """Promise: a large product on MI210 takes less time than its ordinary units could."""
    gpu = gpu_named("mi210")
    product = costs.gemm(1, 8192, 8192, 8192, dtype="fp32")
    found = predicted(gpu, step_of(product, precision="fp32", training=False))
    assert found.step_s < product.flops / gpu.vector_flops["fp32"]


def test_the_same_architecture_keeps_what_was_measured() -> None:
    """Promise: for an H200, neutral rules give the calibrated numbers back."""
    h200 = gpu_named("h200")
    known = KernelConstants()
    carried = spec_constants(h200, known, h200, SpecRules())
    assert carried.values.numbers == pytest.approx(known.values.numbers)


def test_a_fit_starts_from_the_carried_numbers() -> None:
    """Promise: what training steps taught the calibrated GPU is not transferred to another one."""
    known = replace(KernelConstants(), before={"stream.efficiency": 0.5})
    carried = spec_constants(gpu_named("h100-pcie"), known, gpu_named("h200"))
    assert carried.unfitted().values.numbers == carried.values.numbers


def test_rules_survive_their_file(tmp_path) -> None:
    """Promise: fitted rules are read back unchanged."""
    rules = SpecRules(products=0.9, intervals={"residuals": {"all": {"time": [0.1, 0.2]}}})
    rules.save(tmp_path / "rules.yaml")
    read = SpecRules.load(tmp_path / "rules.yaml")
    assert read == rules
    assert read.intervals == rules.intervals
