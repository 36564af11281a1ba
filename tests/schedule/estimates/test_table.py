"""Promises of the oracle of measured tables."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.cap_curves import CapCurves, CapPoint, load_cap_curves
from wattloop.schedule.estimates.table import TableOracle
from wattloop.schedule.estimates.throughputs import (
    CAPS,
    THROUGHPUTS,
    ThroughputRow,
    Throughputs,
    load_throughputs,
)
from wattloop.schedule.jobs import JobKind

P100 = GpuType("P100", gpu_named("p100-pcie"), 30.0)
V100 = GpuType("fast", gpu_named("v100-sxm-16"), 40.0)
NODES = (NodeGroup("p", "P100", 4, 4), NodeGroup("v", "fast", 4, 4))
CLUSTER = Cluster("old", (P100, V100), NODES)
TABLE = Throughputs(
    [
        ThroughputRow("net", "", "p100", 1, 64, False, 100.0),
        ThroughputRow("net", "", "p100", 2, 64, False, 190.0),
        ThroughputRow("net", "", "v100", 1, 64, False, 250.0),
        ThroughputRow("net", "", "v100", 4, 64, False, 800.0),
        ThroughputRow("net", "", "v100", 2, 64, True, 300.0),
        ThroughputRow("net", "", "v100", 4, 64, True, 500.0),
        ThroughputRow("net", "", "v100", 1, 128, False, 300.0),
    ],
    "here",
)
CURVES = CapCurves(
    [
        CapPoint("net", "v100", 64, 250, 10.0, 225.0),
        CapPoint("net", "v100", 64, 125, 15.0, 125.0),
    ],
    "there",
)
KIND = JobKind("net", "", (1, 2, 4), (64,), (1.0, 0.5), may_spread=True)
SHARED = Path(
    os.environ.get("WATTLOOP_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data"
)


def _rows(
    kind: JobKind, curves: CapCurves | None = CURVES
) -> dict[tuple[object, ...], list[float]]:
    """Return rows: (type, GPUs, spread, batch, cap) -> samples per second, watts of one GPU."""
    found = TableOracle(CLUSTER, TABLE, curves).options(kind)
    return {
        (*found.shape(row), int(found.batch[row]), float(found.cap_w[row])): [
            1 / found.sample_s[row],
            found.power_w[row] / found.gpus[row],
        ]
        for row in range(len(found))
    }


def test_throughput_and_caps_are_composed() -> None:
    """T = samples / throughput x stretch, P = k x TDP x power share, for the type's own TDP."""
    rows = _rows(KIND)
    assert rows[1, 1, False, 64, 300.0] == pytest.approx([250.0, 0.9 * 300])
    assert rows[1, 1, False, 64, 150.0] == pytest.approx([250.0 / 1.5, 0.5 * 300])
    assert rows[0, 2, False, 64, 125.0] == pytest.approx([190.0 / 1.5, 0.5 * 250])


def test_counts_between_and_beyond_are_interpolated() -> None:
    """2 V100 lie between 1 and 4, 4 P100 beyond 2, in log2."""
    rows = _rows(KIND)
    assert rows[1, 2, False, 64, 300.0][0] == pytest.approx(np.sqrt(250.0 * 800.0))
    assert rows[0, 4, False, 64, 250.0][0] == pytest.approx(190.0 * 1.9)


def test_spread_placements_are_those_that_were_measured() -> None:
    """The V100 has figures for GPUs on several nodes, and the P100 does not."""
    rows = _rows(KIND)
    assert rows[1, 4, True, 64, 300.0][0] == pytest.approx(500.0)
    assert not any(key[0] == 0 and key[2] for key in rows)


def test_more_gpus_than_a_node_go_over_the_network() -> None:
    """8 V100 on nodes of 4, packed or not, scale as measured on several nodes."""
    rows = _rows(replace(KIND, gpus=(8,)))
    beyond = 500.0 * 500.0 / 300.0
    assert rows[1, 8, False, 64, 300.0][0] == pytest.approx(beyond)
    assert rows[1, 8, True, 64, 300.0][0] == pytest.approx(beyond)


def test_what_was_not_measured_is_left_out() -> None:
    """Batch 128 was measured on one V100 only; two V100, or the P100, get no assumption."""
    rows = _rows(replace(KIND, batches=(64, 128)))
    assert {key[:3] for key in rows if key[3] == 128} == {(1, 1, False)}
    assert not any(key[4] < 100 for key in _rows(replace(KIND, caps=(0.3,))))


def test_types_are_found_by_the_name_of_their_gpu() -> None:
    """A cluster that calls its V100s `fast` has the table's v100."""
    assert any(key[0] == 1 for key in _rows(KIND))


def test_without_curves_power_must_be_in_the_table() -> None:
    """With power, caps act as on a typical program; without, the error says what to add."""
    with pytest.raises(ConfigError, match="give cap curves, or a column power_w"):
        _rows(KIND, curves=None)
    rows = [ThroughputRow("net", "", "v100", n, 64, False, 100.0 * n, 250.0) for n in (1, 2)]
    oracle = TableOracle(CLUSTER, Throughputs(rows, "here"))
    found = oracle.options(replace(KIND, gpus=(1,), may_spread=False))
    assert found.cap_w.tolist() == [300.0, 150.0]
    assert found.power_w[0] == pytest.approx(250.0, rel=1e-3)
    assert found.power_w[1] <= 150.0 * 1.001
    assert found.sample_s[1] > found.sample_s[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (replace(KIND, model="nett"), "model nett: not in here: did you mean 'net'"),
        (replace(KIND, batches=(32,)), r"has batches 64, 128 \(per GPU\), not 32"),
    ],
)
def test_what_the_table_does_not_have_is_told(kind: JobKind, said: str) -> None:
    """The error lists the existing entries."""
    with pytest.raises(ConfigError, match=said):
        _rows(kind)


def test_another_precision_is_told() -> None:
    """A table in fp16 does not answer for bf16."""
    rows = [ThroughputRow("net", "fp16", "v100", 1, 64, False, 100.0)]
    oracle = TableOracle(CLUSTER, Throughputs(rows, "here"), CURVES)
    with pytest.raises(ConfigError, match="model net: here has it in fp16, not in bf16"):
        oracle.options(replace(KIND, precision="bf16"))
    assert len(oracle.options(replace(KIND, gpus=(1,)))) == 2


def test_a_cluster_of_other_gpus_is_told() -> None:
    """The error comes before jobs that could never run."""
    h100 = GpuType("h100", gpu_named("h100-sxm"), 70.0)
    cluster = Cluster("new", (h100,), (NodeGroup("h", "h100", 1, 8),))
    with pytest.raises(ConfigError, match="has it on p100, v100; the cluster new has h100"):
        TableOracle(cluster, TABLE, CURVES).options(KIND)


SHIPPED = TableOracle(CLUSTER, load_throughputs([str(THROUGHPUTS)]), load_cap_curves([str(CAPS)]))


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(sorted(SHIPPED.throughputs.models)),
    gpus=st.sets(st.integers(1, 16), min_size=1, max_size=4),
    caps=st.sets(st.floats(0.4, 1.0), min_size=1, max_size=4),
)
def test_shipped_figures_are_physical(model: str, gpus: set[int], caps: set[float]) -> None:
    """Ordered by shape; lower caps are never faster nor draw more; power is within the cap."""
    batches = tuple(int(batch) for batch in SHIPPED.throughputs.models[model])
    found = SHIPPED.options(JobKind(model, "", tuple(gpus), batches, tuple(caps), may_spread=True))
    assert found.shapes() == sorted(found.shapes())
    assert set(found.gpus.tolist()) == gpus
    assert np.allclose(found.step_s, found.sample_s * found.gpus * found.batch)
    assert np.all(found.power_w <= found.gpus * found.cap_w * 1.01)
    same = (np.diff(found.type_index) == 0) & (np.diff(found.gpus) == 0)
    same &= (np.diff(found.batch) == 0) & (np.diff(found.spread) == 0)
    assert np.all(np.diff(found.cap_w)[same] < 0)
    assert np.all(np.diff(found.sample_s)[same] >= -1e-12)
    assert np.all(np.diff(found.power_w)[same] <= 1e-6)


def test_shipped_tables_say_that_they_are_predicted() -> None:
    """The tables cannot pass for measurements."""
    assert "predicted, not measured" in load_throughputs([str(THROUGHPUTS)]).source
    for path in (THROUGHPUTS, CAPS):
        assert path.read_text().startswith("# Predicted by Wattloop")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published tables are not on this machine")
def test_published_tables_give_a_placement_for_every_model() -> None:
    """Gavel's seven models on K80, P100 and V100, with caps from the Zeus traces."""
    types = (GpuType("k80", gpu_named("k80"), 30.0), *CLUSTER.types)
    groups = (NodeGroup("k", "k80", 4, 4), *CLUSTER.groups)
    oracle = TableOracle(
        replace(CLUSTER, types=types, groups=groups),
        load_throughputs([str(SHARED / "cluster" / "gavel_throughputs.csv")]),
        load_cap_curves([str(SHARED / "zeus_nsdi23")]),
    )
    assert len(oracle.throughputs.models) == 7
    for model, batches in oracle.throughputs.models.items():
        kind = JobKind(model, "", (1,), tuple(map(int, batches)), (1.0, 0.5))
        found = oracle.options(kind)
        assert set(found.type_index.tolist()) == {0, 1, 2}
        tdp_w = np.array([each.tdp_w for each in types])[found.type_index]
        assert np.all(found.power_w <= 1.02 * np.maximum(found.cap_w, 0.4 * tdp_w))
