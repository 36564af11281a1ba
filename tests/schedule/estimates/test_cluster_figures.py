"""Promises of the figures of a cluster file: the analytic oracle uses them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.estimates.analytic import AnalyticOracle
from wattloop.schedule.estimates.oracle import CachedOracle
from wattloop.schedule.jobs.kind import JobKind

KIND = JobKind(
    "hf:google/vit-base-patch16-224", "tf32", gpus=(1, 8), batches=(64,), types=("a100",)
)


def with_a100(**figures: float) -> Cluster:
    cluster = load_cluster("thesis")
    a100, h100 = cluster.types
    return replace(cluster, types=(replace(a100, **figures), h100))


def test_an_operators_limit_is_the_cap_of_every_placement() -> None:
    """Slower, and 250 W instead of 400 W."""
    full = AnalyticOracle(load_cluster("thesis")).options(KIND)
    limited = AnalyticOracle(with_a100(limit_w=250.0)).options(KIND)
    assert set(full.cap_w) == {400}
    assert set(limited.cap_w) == {250}
    assert np.all(limited.power_w <= 250 * limited.gpus)
    assert np.all(limited.sample_s > full.sample_s)


def test_a_slow_link_slows_down_several_gpus_only() -> None:
    """PCIe in place of NVLink does not affect a single GPU."""
    full = AnalyticOracle(load_cluster("thesis")).options(KIND)
    slow = AnalyticOracle(with_a100(link_bytes_s=5e9)).options(KIND)
    assert slow.sample_s[0] == full.sample_s[0]
    assert slow.sample_s[1] > 1.02 * full.sample_s[1]


def test_kept_options_are_not_those_of_another_limit_or_link(tmp_path: Path) -> None:
    """The cache on disk separates such clusters."""
    clusters = (load_cluster("thesis"), with_a100(limit_w=250.0), with_a100(link_bytes_s=5e9))
    for cluster in clusters:
        kept = CachedOracle(AnalyticOracle(cluster), tmp_path).options(KIND)
        exact = AnalyticOracle(cluster).options(KIND)
        assert np.array_equal(kept.sample_s, exact.sample_s)
        assert np.array_equal(kept.cap_w, exact.cap_w)
