"""Promises of `race` on unseen synthetic workloads with defaults near the best."""

import importlib
from dataclasses import replace

import pytest
from tests.benchmarks.running import run_benchmark

from wattloop.tune.replay.replay import replay

SEEDS = 10


@pytest.mark.parametrize(("draw", "number", "default"), [(0, 30, 32), (0, 30, 256), (2, 3, 64)])
def test_a_first_search_comes_within_5pct_of_the_best(draw, number, default):
    """A default that costs 17 to 37% more than the best may end a search too early.

    The budget for other configurations must last until early curves differ.
    """
    synthetic = importlib.import_module("benchmarks.tune_synthetic")
    workload = synthetic.synthetic_workloads(number + 1, seed=draw)[number]
    found = replay(replace(workload, default=default), "race", seeds=SEEDS, recurrences=1)
    assert found.within_5pct_share >= 0.9
    assert found.failures == 0


def test_without_data_it_says_what_to_set(tmp_path) -> None:
    """Promise: missing data gives a clear message."""
    done = run_benchmark("tune_replay", WATTLOOP_SHARED_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr
