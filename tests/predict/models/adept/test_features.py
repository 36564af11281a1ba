"""Promises of the features that ADEPT reads from a workload."""

from dataclasses import replace

import pytest

from tests.predict.models.made import GPU, PLACE, addition, conv, gemm, workload
from wattloop.predict.models.adept.features import AdeptFeatures, optimizer_bytes, optimizer_flops
from wattloop.predict.workload.operation import Phase


def test_adamw_moves_what_equations_4_4_and_4_5_say() -> None:
    """Weights and two moments in fp32, gradients in bf16 under autocast: 14 + 12 bytes."""
    assert optimizer_bytes(1e6, "adamw", "bf16") == (14e6, 12e6)
    assert optimizer_bytes(1e6, "adamw", "fp32") == (16e6, 12e6)


def test_other_optimizers_keep_their_own_moments() -> None:
    """SGD keeps one with momentum and none without; an unknown one is taken for AdamW."""
    assert optimizer_bytes(1e6, "sgd+momentum", "fp32") == (12e6, 8e6)
    assert optimizer_bytes(1e6, "sgd", "fp32") == (8e6, 4e6)
    assert optimizer_bytes(1e6, "lion", "fp32") == (16e6, 12e6)
    assert optimizer_flops(1e6, "sgd") < optimizer_flops(1e6, "lion") == 18e6


def test_adamw_takes_18_flops_per_parameter() -> None:
    """The thesis's count."""
    assert optimizer_flops(1e6, "adamw") == 18e6


def test_flops_are_apart_by_unit_and_over_its_peak() -> None:
    """Products, convolutions and the rest each have their seconds at the peak."""
    step = workload(
        gemm(1000, 1000, 1000, dtype="bf16", count=2),
        conv(64, 14, 32, dtype="bf16"),
        addition(10**6),
        precision="bf16",
    )
    found = AdeptFeatures.of([(step, PLACE)])
    assert found.gemm_s[0] == pytest.approx(2 * 2e9 / 1000e12)
    assert found.conv_s[0] == pytest.approx(2 * 32 * 196 * 64 * 64 * 9 / 1000e12)
    assert found.alu_s[0] == pytest.approx(1e6 / 50e12)
    assert found.elements[0] == 10**6
    assert (found.bf16[0], found.albert[0]) == (1, 0)


def test_the_update_is_analytic_and_its_operations_only_launch() -> None:
    """Traced operations of the optimizer count as launches; volumes are 4.4 and 4.5's."""
    update = addition(10**9, count=12, phase=Phase.OPTIMIZER)
    step = workload(addition(10**6, count=3), update, accumulate=4, parameters=10**6)
    found = AdeptFeatures.of([(step, PLACE)])
    assert found.memory_s[0] == pytest.approx(3 * 12e6 / 5e12)
    assert found.optimizer_memory_s[0] == pytest.approx(28e6 / 5e12)
    assert found.optimizer_compute_s[0] == pytest.approx(18e6 / 50e12)
    assert found.kernels[0] == 4 * 3 + 12
    assert found.working_set[0] == pytest.approx(12e6 / 50e6)


def test_forward_only_has_no_update() -> None:
    """Inference neither updates weights nor shares gradients."""
    step = replace(workload(gemm(64, 64, 64)), training=False, optimizer="")
    found = AdeptFeatures.of([(step, replace(PLACE, gpus=4))])
    assert found.optimizer_memory_s[0] == found.gradient_s[0] == 0


def test_albert_is_known_by_its_name_and_distilbert_is_not_it() -> None:
    """It is the thesis's only architecture with scalars of its own."""
    names = ("hf:albert-base-v2", "distilbert_base@256")
    rows = [(workload(gemm(8, 8, 8), name=name), PLACE) for name in names]
    assert AdeptFeatures.of(rows).albert.tolist() == [1, 0]


def test_a_gpu_without_links_of_its_own_shares_over_pcie() -> None:
    """The bandwidth of 4.8 is one direction of the link, or of PCIe."""
    step = workload(gemm(8, 8, 8), parameters=10**6)
    linked = replace(PLACE, gpus=2)
    unlinked = replace(linked, gpu=replace(GPU, link_bytes_s=0.0))
    found = AdeptFeatures.of([(step, linked), (step, unlinked)])
    assert found.gradient_s.tolist() == pytest.approx([4e6 / 450e9, 4e6 / 64e9])
