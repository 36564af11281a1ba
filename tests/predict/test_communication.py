"""Promises of `communication`: equation 4.8, its overlap with backward, links and networks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.communication import (
    BUCKET_BYTES,
    INTERFERENCE,
    Exchange,
    Ring,
    all_reduce_s,
    exchange,
    ring_of,
)
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.costs.product import gemm
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

RING = Ring(gpus=4, bytes_s=100e9, hop_s=5e-6)


def exchange_by_schedule(
    ready: Sequence[tuple[float, float]],
    backward_s: float,
    ring: Ring,
    *,
    bucket_bytes: float = BUCKET_BYTES,
    interference: float = INTERFERENCE,
) -> Exchange:
    """Compute the exact exchange: seconds since backward began, and bytes, of each gradient."""
    if ring.gpus <= 1:
        return Exchange(np.zeros(()), np.zeros(()))
    total_s = free_s = 0.0
    filled = 0.0
    for index, (when_s, size) in enumerate(ready):
        filled += size
        if filled < bucket_bytes and index + 1 < len(ready):
            continue
        bucket_s = float(all_reduce_s(filled, ring))
        free_s = max(free_s, when_s) + bucket_s
        total_s += bucket_s
        filled = 0.0
    after_s = max(0.0, free_s - backward_s)
    return Exchange(np.asarray(total_s), np.asarray(after_s + interference * (total_s - after_s)))


def test_all_reduce_is_equation_4_8() -> None:
    """2 (n - 1) hops, and 2 (n - 1) / n of the gradients over the link."""
    assert float(all_reduce_s(1e9, RING)) == pytest.approx(6 * 5e-6 + 1.5 * 1e9 / 100e9)
    assert float(all_reduce_s(1e9, Ring(1, 100e9, 5e-6))) == 0.0


def test_bus_bandwidth_is_algorithm_bandwidth_times_2_n_minus_1_over_n() -> None:
    """The factor of NCCL's tests; the thesis's (n - 1) / n is half of it."""
    for gpus, algorithm_bytes_s in ((4, 100e9 / 1.5), (8, 100e9 / 1.75)):
        seconds = float(all_reduce_s(8e9, Ring(gpus, 100e9, 0.0)))
        assert 8e9 / seconds == pytest.approx(algorithm_bytes_s)


def test_a_long_backward_hides_all_but_the_last_bucket() -> None:
    """Gradients are sent while others are computed."""
    size = 10.0 * BUCKET_BYTES
    done = exchange(size, 10.0, RING, interference=0.0)
    assert float(done.exposed_s) == pytest.approx(float(all_reduce_s(BUCKET_BYTES, RING)))
    assert float(done.total_s) == pytest.approx(10 * float(all_reduce_s(BUCKET_BYTES, RING)))


def test_a_short_backward_hides_nothing_but_itself() -> None:
    """Sending continues after backward; it is never longer than without overlap, never negative."""
    size = 10.0 * BUCKET_BYTES
    alone = exchange(size, 1e-3, RING, overlap=False)
    done = exchange(size, 1e-3, RING, interference=0.0)
    assert float(done.exposed_s) == pytest.approx(float(alone.total_s) - 0.9e-3)
    assert float(exchange(size, 0.0, RING).exposed_s) == pytest.approx(float(alone.exposed_s))


def test_what_is_hidden_slows_backward_a_little() -> None:
    """Sending takes SMs from computing: a part of the hidden seconds is paid."""
    size = 10.0 * BUCKET_BYTES
    free, paid = (exchange(size, 10.0, RING, interference=i) for i in (0.0, 0.25))
    hidden_s = float(free.total_s - free.exposed_s)
    assert float(paid.exposed_s - free.exposed_s) == pytest.approx(0.25 * hidden_s)
    assert float(exchange(size, 10.0, RING).exposed_s) > float(free.exposed_s)


def test_one_gpu_sends_nothing() -> None:
    """Without a ring it takes no time."""
    done = exchange(1e9, 0.1, Ring(1, 1e9, 1.0))
    assert (float(done.total_s), float(done.exposed_s)) == (0.0, 0.0)
    assert float(exchange_by_schedule([(0.1, 1e9)], 0.1, Ring(1, 1e9, 1.0)).total_s) == 0.0


def test_many_workloads_at_once_are_each_alone() -> None:
    """Sizes and backward times may be arrays."""
    sizes, backward_s = np.array([1e6, 1e8, 5e9]), np.array([0.01, 0.05, 0.02])
    together = exchange(sizes, backward_s, RING)
    for i in range(3):
        alone = exchange(float(sizes[i]), float(backward_s[i]), RING)
        assert together.exposed_s[i] == pytest.approx(float(alone.exposed_s))


def test_a_schedule_of_even_gradients_agrees_with_the_formula() -> None:
    """The closed form is the schedule of gradients that backward produces evenly."""
    for backward_s in (1e-3, 5e-3, 0.1):
        count = 8
        even = [(backward_s * (i + 1) / count, float(BUCKET_BYTES)) for i in range(count)]
        exact = exchange_by_schedule(even, backward_s, RING)
        formula = exchange(float(count * BUCKET_BYTES), backward_s, RING)
        assert float(exact.exposed_s) == pytest.approx(float(formula.exposed_s))
        assert float(exact.total_s) == pytest.approx(float(formula.total_s))


def test_small_gradients_are_gathered_into_buckets() -> None:
    """A hundred small tensors of a bucket are sent once, so hops are paid once."""
    small = [(0.001 * i, BUCKET_BYTES / 100) for i in range(1, 101)]
    done = exchange_by_schedule(small, 0.1, RING)
    assert float(done.total_s) == pytest.approx(float(all_reduce_s(BUCKET_BYTES, RING)))


def test_large_gradients_that_are_ready_early_hide_better() -> None:
    """VGG's last layers hold most of its parameters, and backward begins there."""
    big, small = 400e6, 10e6
    early, late = (
        exchange_by_schedule([(0.001, first), (0.02, last)], 0.02, RING, interference=0.0)
        for first, last in ((big, small), (small, big))
    )
    assert float(early.exposed_s) < 0.2 * float(late.exposed_s)


def test_the_ring_takes_the_gpus_link_then_pcie_then_the_network() -> None:
    """One direction of NVLink at what NCCL reaches; the slowest hop decides across nodes."""
    a100, t4 = gpu_named("a100-sxm-80"), gpu_named("t4")
    assert ring_of(Placement(a100, gpus=8)).bytes_s == pytest.approx(0.75 * 300e9)
    assert ring_of(Placement(t4, gpus=4)).bytes_s == pytest.approx(0.6 * t4.pcie_bytes_s)
    given = Placement(a100, gpus=8, link_bytes_s=50e9, link_latency_s=1e-6)
    assert ring_of(given) == Ring(8, 50e9, 1e-6)
    across = ring_of(Placement(a100, gpus=16, network_bytes_s=25e9))
    assert (across.bytes_s, across.hop_s) == (25e9, 20e-6)


def test_a_bridge_serves_two_cards_only() -> None:
    """A ring of more PCIe cards goes over PCIe, whatever the bridge could do."""
    a40 = gpu_named("a40")
    assert ring_of(Placement(a40, gpus=2)).bytes_s == pytest.approx(0.75 * 56.25e9)
    assert ring_of(Placement(a40, gpus=4)).bytes_s == pytest.approx(0.6 * a40.pcie_bytes_s)
    with pytest.raises(ConfigError, match="link_bytes_s is 0"):
        ring_of(Placement(a40, gpus=4, link_bytes_s=0.0))


def test_a_ring_over_nodes_needs_a_network() -> None:
    """The error names the field and gives an example."""
    with pytest.raises(ConfigError, match="network_bytes_s, such as"):
        ring_of(Placement(gpu_named("h200"), gpus=16))


@pytest.mark.parametrize("wrong", [0.0, -1e9, float("nan")])
def test_a_network_that_carries_nothing_is_named(wrong: float) -> None:
    """It gives neither an infinite time nor a division by zero."""
    with pytest.raises(ConfigError, match=r"network_bytes_s is .*; it must be above 0"):
        ring_of(Placement(gpu_named("h200"), gpus=16, network_bytes_s=wrong))


def test_power_while_exchanging_and_slow_hops_are_settings() -> None:
    """A hop of 10 ms, as the thesis's cluster seems to have, and 70% of the limit meanwhile."""
    a100 = gpu_named("a100-sxm-40")
    products = tuple(gemm(1, 2048, 2048, 2048, dtype="bf16", phase=phase) for phase in Phase)
    model, workload = KernelModel.for_gpu(a100), Workload("x", products, gradient_bytes=10e6)
    plain = Placement(a100, gpus=8)
    slow = replace(plain, link_latency_s=10.5e-3)
    busy = replace(slow, exchange_w=0.7 * a100.tdp_w)
    quick, late, hot = (model.predict(workload, each) for each in (plain, slow, busy))
    # 2 (n - 1) hops of at least one bucket are not hidden
    assert late.step_s - quick.step_s >= 14 * 10.5e-3 * 0.9
    assert hot.step_s == late.step_s
    waiting = late.terms_s["communication"] / late.step_s
    assert hot.power_w > late.power_w + 0.9 * waiting * (0.7 * a100.tdp_w - late.power_w)
