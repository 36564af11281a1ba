"""Promises of the assumed static power of a GPU."""

from dataclasses import replace
from statistics import median

import pytest

from wattloop.hardware.gpus import gpu_named, known_gpus
from wattloop.predict.cap_curve import GDDR_SHARE, HBM_SHARE, static_power


def test_a_published_figure_is_taken_with_its_source():
    """The number has its provenance."""
    watts, source = static_power(gpu_named("h200"))
    assert (watts, source) == (80, gpu_named("h200").source("idle_w"))


@pytest.mark.parametrize(
    ("memory", "share"),
    [("gddr6", GDDR_SHARE), ("hbm3", HBM_SHARE), ("", HBM_SHARE)],
)
def test_an_unpublished_one_is_assumed_and_said(memory, share):
    """A missing figure is neither zero nor silent."""
    gpu = replace(gpu_named("h200"), idle_w=None, memory_type=memory)
    watts, source = static_power(gpu)
    assert watts == share * 700
    assert source.startswith(f"assumed: {share:.0%} of 700 W")


def test_the_shares_are_the_medians_of_the_table():
    """A figure added to the table shows here if it changes the assumption for other GPUs."""
    for kind, share in (("gddr", GDDR_SHARE), ("hbm", HBM_SHARE)):
        # V100 cards of both sizes have one measurement between them
        known = {
            (gpu.idle_w, gpu.tdp_w)
            for gpu in known_gpus()
            if gpu.idle_w is not None and gpu.memory_type.startswith(kind)
        }
        assert median(idle_w / tdp_w for idle_w, tdp_w in known) == pytest.approx(share, abs=0.01)
