"""Promises of `predict inspect`: the parts add up to the whole."""

import pytest

from tests.predict.small import small_workload
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.breakdown import (
    by_kind,
    by_module,
    by_phase,
    operation_times_s,
)
from wattloop.predict.forecaster import estimator_for
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload


def test_like_layers_are_one_row_and_parts_add_up() -> None:
    """Three equal layers are `layers.0-2`; FLOPs, calls and time are those of all of them."""
    workload = small_workload()
    placement = Placement(gpu_named("h200"))
    estimator = estimator_for(placement.gpu)
    times = operation_times_s(estimator, workload, placement)
    assert times is not None
    modules = by_module(workload, times, depth=2)
    assert set(modules) == {"layers.0-2", "(optimizer)", "(outside of modules)"}
    for parts in (modules, by_kind(workload, times), by_phase(workload, times)):
        assert sum(p.flops for p in parts.values()) == 9 * 2.0 * 4096 * 1024 * 1024
        assert sum(p.calls for p in parts.values()) == 9 + 3 + 1 + 7
        assert sum(p.gpu_s or 0 for p in parts.values()) == pytest.approx(sum(times.values()))
    deeper = by_module(workload, times, depth=3)
    assert {"layers.0-2.linear", "layers.0-2"} <= set(deeper)
    assert list(by_phase(workload, times)) == ["forward", "backward", "optimizer"]


def test_passes_that_accumulate_count_but_the_optimizer_counts_once() -> None:
    """Four passes do four times the products and one optimizer step."""
    one, four = small_workload(), small_workload(accumulate=4)
    before, after = by_phase(one, None), by_phase(four, None)
    assert after["forward"].flops == 4 * before["forward"].flops
    assert after["optimizer"].bytes_moved == before["optimizer"].bytes_moved
    assert before["forward"].gpu_s is None


def test_layers_that_differ_stay_apart() -> None:
    """Only neighbours that do the same work are merged."""
    sizes = (1.0, 1.0, 2.0, 1.0)
    operations = tuple(
        Operation("aten.add", Kind.ELEMENTWISE, Phase.FORWARD, f"h.{i}.act", bytes_read=size)
        for i, size in enumerate(sizes)
    )
    workload = Workload("x", operations)
    assert set(by_module(workload, None, 3)) == {"h.0-1.act", "h.2.act", "h.3.act"}


def test_the_share_without_a_rule_is_by_bytes() -> None:
    """An operation without a rule is counted, and named."""
    known = Operation("aten.add", Kind.ELEMENTWISE, Phase.FORWARD, bytes_read=3.0)
    strange = Operation("my.op", Kind.OTHER, Phase.FORWARD, bytes_read=1.0, ruled=False)
    assert Workload("x", (known, strange)).unruled_share == 0.25
    assert Workload("x", ()).unruled_share == 0.0
