"""Promises of the suite's lists of cases."""

import random
from collections import Counter

import pytest

from wattloop.predict.calibrate.collection import possible
from wattloop.predict.calibrate.families.base import SECTIONS
from wattloop.predict.calibrate.suite import SHARES, cases, operations_of


@pytest.fixture(scope="module")
def kernels():
    return cases("kernels")


def test_all_sections_have_a_share_of_the_time():
    """A section without a share would never run."""
    assert set(SHARES) == set(SECTIONS)
    assert sum(SHARES.values()) == pytest.approx(1)


def test_no_case_comes_twice(kernels):
    """A key names one case: a second one of it would be skipped as already taken."""
    assert len({case.key for case in kernels}) == len(kernels)


def test_the_same_cases_in_the_same_order_always(kernels):
    """A resumed collection finds its place, whatever else drew random numbers."""
    random.seed(7)
    assert [case.key for case in cases("kernels")] == [case.key for case in kernels]


def test_any_first_part_is_a_sample_of_the_whole(kernels):
    """An interruption does little harm: a tenth of the cases has a tenth of every family."""
    whole = Counter(case.family for case in kernels)
    tenth = Counter(case.family for case in kernels[: len(kernels) // 10])
    for family, number in whole.items():
        assert tenth[family] == pytest.approx(number / 10, rel=0.2, abs=3), family


def test_every_kernel_is_written_as_a_trace_would_write_it(kernels):
    """Measurements can be fitted; only kernels that a trace names otherwise have no operation."""
    unknown = Counter(
        case.family for case in kernels if not operations_of(case.family, case.params)
    )
    assert set(unknown) <= {"copy", "loss", "pool", "index", "reduction"}
    assert sum(unknown.values()) < len(kernels) / 50


def test_precisions_the_gpu_lacks_are_left_out(kernels):
    """A V100 would take tf32 for fp32 and imitate bf16: such samples would say nothing."""
    plain = possible(kernels, {"fp32", "fp16"})
    assert {case.params.get("dtype", "fp32") for case in plain} == {"fp32", "fp16"}
    assert {step.params["precision"] for step in possible(cases("steps"), {"fp32"})} == {"fp32"}
    assert possible(kernels, {"fp32", "fp16", "tf32", "bf16"}) == list(kernels)


def test_large_batches_of_tiny_pictures_are_among_the_kernels(kernels):
    """Networks for 224 pixels fed with 32 end in them, and cuDNN has other kernels for them."""
    tiny = [
        case.params for case in kernels
        if case.family == "conv" and case.params["side"] == 1 and case.params["n"] >= 512
    ]  # fmt: skip
    ways = {(p["dtype"], p["direction"], p["k"] > 1) for p in tiny}
    assert len(ways) == 3 * 3 * 2


def test_held_kernels_cover_all_layers_of_a_picture_network():
    """The power of a class without power runs is that of other classes."""
    held = [case for case in cases("power") if case.family in ("conv", "norm", "elementwise")]
    convs = {(c.params["dtype"], c.params["direction"]) for c in held if c.family == "conv"}
    assert len(convs) == 9
    norms = {
        (c.params["dtype"], c.params["direction"]) for c in held
        if c.family == "norm" and c.params["norm"] == "batch"
    }  # fmt: skip
    assert len(norms) == 4
    assert {"relu", "relu_backward"} <= {c.params.get("function") for c in held}
