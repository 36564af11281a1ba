"""Promises of tables that are stored on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.schedule.estimates.clusters import RESNET, VIT, thesis_cluster
from tests.schedule.small_world import PlainOracle, small_cluster
from wattloop.schedule.cluster import Cluster, NodeGroup
from wattloop.schedule.estimates.analytic import AnalyticOracle
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.estimates.oracle import CachedOracle, PlacementOptions
from wattloop.schedule.jobs import JobKind

SMALLER_NODES = (NodeGroup("a", "a100", 2, 4), NodeGroup("h", "h100", 1, 8))


def _with_types(**changes: float) -> Cluster:
    cluster = thesis_cluster()
    return replace(cluster, types=tuple(replace(each, **changes) for each in cluster.types))


class _Counting(AnalyticOracle):
    """An oracle that records its requests."""

    asked = 0

    def options(self, kind: JobKind) -> PlacementOptions:
        self.asked += 1
        return super().options(kind)


def test_a_second_process_reads_what_the_first_computed(tmp_path: Path) -> None:
    """The figures are the same to the last bit, and the oracle is not called."""
    first, second = _Counting(thesis_cluster()), _Counting(thesis_cluster())
    made = CachedOracle(first, tmp_path).options(VIT)
    read = CachedOracle(second, tmp_path).options(VIT)
    assert (first.asked, second.asked) == (1, 0)
    for name in ("type_index", "gpus", "batch", "cap_w", "spread", "sample_s", "power_w", "step_s"):
        assert np.array_equal(getattr(made, name), getattr(read, name))
        assert getattr(made, name).dtype == getattr(read, name).dtype
    assert made.source == read.source


def test_asked_once_in_a_process(tmp_path: Path) -> None:
    """The same object is returned again."""
    oracle = CachedOracle(_Counting(thesis_cluster()), tmp_path)
    assert oracle.options(VIT) is oracle.options(replace(VIT))


@pytest.mark.parametrize(
    "other",
    [
        AnalyticOracle(thesis_cluster(), estimator="roofline"),
        AnalyticOracle(thesis_cluster(nodes=2)),
        AnalyticOracle(thesis_cluster(network_bytes_s=1e9)),
        AnalyticOracle(replace(thesis_cluster(), groups=SMALLER_NODES)),
        AnalyticOracle(_with_types(limit_w=300.0)),
        AnalyticOracle(_with_types(link_bytes_s=30e9)),
    ],
    ids=["estimator", "nodes", "network", "gpus per node", "limit", "link"],
)
def test_whatever_changes_the_answer_changes_the_fingerprint(other: AnalyticOracle) -> None:
    """Another estimator, size or network never gets the file of this one."""
    assert AnalyticOracle(thesis_cluster()).fingerprint(VIT) != other.fingerprint(VIT)


def test_a_calibration_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A user who calibrates a GPU gets new figures at once."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    oracle = AnalyticOracle(thesis_cluster())
    before = oracle.fingerprint(VIT)
    path = tmp_path / "wattloop" / "calibration" / "h100-sxm.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"constants")
    assert oracle.fingerprint(VIT) != before
    assert oracle.fingerprint(RESNET) != oracle.fingerprint(VIT)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"gpus": [1]}', '{"gpus": [1], "batch": [2, 3]}']
)
def test_a_broken_file_is_replaced(tmp_path: Path, content: str) -> None:
    """With any content of the folder answers are right, and the file is valid afterwards."""
    oracle = _Counting(thesis_cluster())
    good = CachedOracle(oracle, tmp_path).options(VIT)
    (path,) = tmp_path.glob("*.json")
    path.write_text(content)
    again = CachedOracle(oracle, tmp_path).options(VIT)
    assert np.array_equal(good.sample_s, again.sample_s)
    assert path.stat().st_size > 1000


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    """A read-only home costs time only."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert len(CachedOracle(AnalyticOracle(thesis_cluster()), blocked / "x").options(VIT)) == 144


def test_oracles_without_a_fingerprint_are_not_written(tmp_path: Path) -> None:
    """Estimates with unknown determinants stay in memory."""
    oracle = CachedOracle(PlainOracle(small_cluster()), tmp_path)
    assert len(oracle.options(JobKind("toy"))) == 1
    assert not list(tmp_path.iterdir())


def test_errors_and_factors_pass_through(tmp_path: Path) -> None:
    """A cached noisy oracle has the same noise."""
    noisy = NoisyOracle(AnalyticOracle(thesis_cluster()), seed=3)
    cached = CachedOracle(noisy, tmp_path)
    assert (cached.power_error, cached.time_error) == (noisy.power_error, noisy.time_error)
    mine, theirs = cached.factors(4, VIT), noisy.factors(4, VIT)
    assert mine is not None and theirs is not None
    assert np.array_equal(mine.time, theirs.time)
    many = cached.factors_of((4, 5), VIT)
    assert many is not None and np.array_equal(many.power[0], theirs.power)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is next to the other caches of Wattloop."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    CachedOracle(AnalyticOracle(thesis_cluster())).options(VIT)
    assert list((tmp_path / "wattloop" / "options").glob("*.json"))
