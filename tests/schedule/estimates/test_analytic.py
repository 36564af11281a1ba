"""Promises of the oracle that uses `predict`."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.estimates.clusters import ALBERT, RESNET, VIT, thesis_cluster
from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.forecaster import estimator_for
from wattloop.predict.memory import memory_fit
from wattloop.predict.parallel.layout import Links
from wattloop.predict.parallel.model import ParallelModel, ParallelQuestion
from wattloop.predict.prediction import Placement
from wattloop.schedule.engine.machines import why_never
from wattloop.schedule.estimates.analytic import AnalyticOracle, kind_workload
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.jobs.kind import ServiceLoad

ORACLE = AnalyticOracle(thesis_cluster())
TWO_NODES = AnalyticOracle(thesis_cluster(nodes=2, network_bytes_s=10e9))


def _by_placement(options: PlacementOptions, value: str) -> dict[tuple[object, ...], float]:
    columns = ("type_index", "gpus", "spread", "batch", "cap_w", value)
    rows = zip(*(getattr(options, name).tolist() for name in columns), strict=True)
    return {row[:-1]: row[-1] for row in rows}


def test_the_thesis_jobs_need_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three models on all placements come from data shipped with the package."""
    monkeypatch.setitem(sys.modules, "torch", None)
    oracle = AnalyticOracle(thesis_cluster())
    for kind in (VIT, ALBERT, RESNET):
        assert len(oracle.options(kind)) == 2 * 4 * 3 * 6


def test_vit_takes_what_adr_0031_says() -> None:
    """One ViT job on 8 A100, batch 256: 11.8 minutes of 8 times 287 W."""
    found = ORACLE.options(VIT)
    row = (found.type_index == 0) & (found.gpus == 8) & (found.batch == 256)
    row &= found.cap_w == 400.0
    assert 2.5e6 * found.sample_s[row][0] / 60 == pytest.approx(11.8, abs=0.05)
    assert found.power_w[row][0] / 8 == pytest.approx(287.3, abs=0.5)


@pytest.mark.parametrize("estimator", ["kernels", "roofline"])
def test_all_at_once_is_one_by_one(estimator: str) -> None:
    """Vectorised figures are those of `predict` for a single placement."""
    cluster = thesis_cluster(nodes=2)
    kind = replace(RESNET, gpus=(1, 4), batches=(64, 256), caps=(1.0,), may_spread=True)
    found = AnalyticOracle(cluster, estimator=estimator).options(kind)
    models = [estimator_for(each.gpu, estimator) for each in cluster.types]
    workloads = {batch: kind_workload(kind, batch) for batch in kind.batches}
    for row in range(len(found)):
        type_index, gpus, spread = found.shape(row)
        gpu = cluster.types[type_index].gpu
        alone = models[type_index].predict(
            workloads[int(found.batch[row])],
            Placement(gpu, gpus, gpu.tdp_w, gpus_per_node=1 if spread else 8, network_bytes_s=25e9),
        )
        if estimator == "roofline" and gpus > 1:
            assert found.step_s[row] > 1.002 * alone.step_s  # the exchange is computed here
            continue
        assert found.step_s[row] == pytest.approx(alone.step_s, rel=2e-3)
        assert found.power_w[row] == pytest.approx(alone.power_w * gpus, rel=2e-3)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from([VIT, ALBERT, RESNET]),
    gpus=st.sets(st.integers(1, 20), min_size=1, max_size=4),
    caps=st.sets(st.floats(0.05, 1.0), min_size=1, max_size=5),
    spread=st.booleans(),
)
def test_figures_are_physical(
    kind: JobKind, gpus: set[int], caps: set[float], spread: bool
) -> None:
    """Ordered by shape; lower caps are never faster nor draw more; power is within idle and cap."""
    asked = replace(kind, gpus=tuple(gpus), caps=tuple(caps), may_spread=spread)
    found = TWO_NODES.options(asked)
    assert found.shapes() == sorted(found.shapes())
    assert np.all(np.isfinite(found.sample_s) & (found.sample_s > 0) & (found.power_w > 0))
    assert np.allclose(found.step_s, found.sample_s * found.batch * found.gpus)
    allowed = [each for each in gpus if each <= 16]
    assert set(found.gpus.tolist()) == set(allowed)
    rows = zip(found.shapes(), found.batch, found.cap_w, found.step_s, found.power_w, strict=True)
    last = None
    for shape, batch, cap_w, step_s, power_w in rows:
        if last is not None and last[:2] == (shape, batch):
            assert cap_w < last[2]
            assert step_s >= last[3] * (1 - 1e-6)
            assert power_w <= last[4] * (1 + 1e-6)
        last = (shape, batch, cap_w, step_s, power_w)
        gpu = TWO_NODES.cluster.types[shape[0]].gpu
        assert gpu.cap_min_w <= cap_w <= gpu.tdp_w
        # the lowest clock may still draw more than a very low cap
        assert power_w / shape[1] <= max(cap_w, 0.5 * gpu.tdp_w) * (1 + 1e-3)


def test_spreading_over_nodes_costs_time() -> None:
    """The same GPUs on more nodes than needed exchange gradients over the network: slower."""
    found = TWO_NODES.options(replace(VIT, batches=(64,), caps=(1.0,), may_spread=True))
    step_s = _by_placement(found, "step_s")
    pairs = [(key, (*key[:2], False, *key[3:])) for key in step_s if key[2]]
    assert pairs
    for spread, packed in pairs:
        assert step_s[spread] > step_s[packed]
    assert not any(key[2] for key in step_s if key[1] == 1)


def test_one_node_has_nowhere_to_spread() -> None:
    """A type with a single node offers packed placements only."""
    assert not ORACLE.options(replace(VIT, may_spread=True)).spread.any()


def test_what_does_not_fit_into_memory_is_left_out() -> None:
    """`predict` decides for each type and batch."""
    small = thesis_cluster()
    tiny = replace(small.types[0].gpu, name="tiny", memory_bytes=20 * 2**30)
    cluster = replace(small, types=(replace(small.types[0], gpu=tiny), small.types[1]))
    found = AnalyticOracle(cluster).options(VIT)
    for type_index, gpu in ((0, tiny), (1, small.types[1].gpu)):
        left = set(found.batch[found.type_index == type_index].tolist())
        fitting = {b for b in VIT.batches if memory_fit(kind_workload(VIT, b), gpu, 8).fits}
        assert left == fitting
    assert 256 not in found.batch[found.type_index == 0]


def test_bf16_needs_its_units() -> None:
    """A V100 emulates bfloat16 at an unknown speed; TF32 jobs run there in fp32."""
    small = thesis_cluster()
    v100 = replace(small.types[0], gpu=gpu_named("v100-sxm-32"))
    oracle = AnalyticOracle(replace(small, types=(v100, small.types[1])))
    assert set(oracle.options(ALBERT).type_index.tolist()) == {1}
    assert set(oracle.options(RESNET).type_index.tolist()) == {0, 1}


def test_a_kind_that_fits_nowhere_has_no_options() -> None:
    """For other types, or more GPUs than exist, the table is empty, and the engine reports it."""
    assert len(ORACLE.options(replace(VIT, types=("v100",)))) == 0
    assert len(ORACLE.options(replace(VIT, gpus=(64,)))) == 0


def test_links_and_limits_of_the_operator_count() -> None:
    """A slow link costs time; a limit of 250 W is the highest cap."""
    cluster = thesis_cluster()
    kind = replace(VIT, gpus=(8,), batches=(64,), caps=(1.0,))
    plain = ORACLE.options(kind)
    for changes in ({"link_bytes_s": 10e9}, {"limit_w": 250.0}):
        types = tuple(replace(each, **changes) for each in cluster.types)
        found = AnalyticOracle(replace(cluster, types=types)).options(kind)
        assert np.all(found.step_s > plain.step_s)
        assert np.all(found.cap_w <= changes.get("limit_w", 700.0))


def test_caps_below_the_lowest_are_one() -> None:
    """10% and 20% of 700 W both become the 200 W minimum of an H100."""
    found = ORACLE.options(replace(VIT, caps=(0.1, 0.2), types=("h100",), gpus=(1,), batches=(64,)))
    assert found.cap_w.tolist() == [200.0]


def test_the_same_object_every_time() -> None:
    """Queues and caches compare by identity."""
    assert ORACLE.options(VIT) is ORACLE.options(replace(VIT))


def test_an_untraced_model_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without torch and a saved workload the error says what to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"gpt2 bf16, batch 8.*pip install 'wattloop\[hf\]'"):
        ORACLE.options(JobKind("hf:gpt2", "bf16", batches=(8,)))


def test_an_unknown_model_is_named() -> None:
    """A row of a table is not a model that can be predicted."""
    with pytest.raises(ConfigError, match=r"job kind ResNet-50, batch 1.*ResNet-50"):
        ORACLE.options(JobKind("ResNet-50"))


def test_adept_wants_constants_of_the_gpu() -> None:
    """The thesis's own model is shipped for the H200 only."""
    with pytest.raises(ConfigError, match="adept"):
        AnalyticOracle(thesis_cluster(), estimator="adept").options(VIT)


def test_sources_are_told() -> None:
    """The model that answered, the GPU, and the constants."""
    assert ORACLE.options(VIT).source == (
        "kernels (a100-sxm-40, spec-only); kernels (h100-sxm, spec-only)"
    )


LLAMA = JobKind("hf:llama-3.1-8b", "bf16", gpus=(8, 16), caps=(1.0, 0.6), types=("h100",))


def test_a_layout_has_the_figures_of_predict() -> None:
    """Time and power of every placement are those of `--parallel` with the cluster's links."""
    kind = replace(LLAMA, parallel="tp=2,fsdp", checkpointing="full", sequence=4096, batches=(1, 2))
    cluster = thesis_cluster(nodes=2, network_bytes_s=100e9)
    found = AnalyticOracle(cluster).options(replace(kind, global_batch=32))
    assert len(found) == 2 * 2 * 2
    gpu = cluster.types[1].gpu
    for row in range(len(found)):
        alone = ParallelModel(gpu).forecast(
            ParallelQuestion(
                model="hf:llama-3.1-8b",
                gpu=gpu.name,
                layout=f"tp=2,fsdp={found.gpus[row] // 2}",
                seq=4096,
                micro_batch=int(found.batch[row]),
                global_batch=32,
                checkpointing="full",
                cap_w=float(found.cap_w[row]),
                links=Links.of(gpu, gpus_per_node=8, network_bytes_s=100e9),
            )
        )
        assert found.step_s[row] == pytest.approx(alone.step_s)
        assert found.sample_s[row] == pytest.approx(alone.step_s / 32)
        assert found.samples[row] == 32
        assert found.power_w[row] == pytest.approx(alone.power_w * found.gpus[row])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": "tp=3"}, "tp x pp x cp = 3 does not divide 8 GPUs"),
        ({"parallel": "pp=5,fsdp", "gpus": (10,), "may_spread": True}, "does not divide the 32"),
        ({"parallel": "dp", "sequence": 8192}, r"needs \d+ of 79 GiB per GPU; more GPUs, sharding"),
        ({"service": ServiceLoad(1e5)}, r"8 x .*|1 x .* answer at most"),
        ({"service": ServiceLoad(1.0, tp=16)}, "cannot be divided into copies of 16"),
        ({"service": ServiceLoad(8.0, most_token_s=1e-3)}, "not within 1; use more GPUs"),
    ],
)
def test_a_layout_that_does_not_work_says_why(changes: dict[str, object], message: str) -> None:
    """The table is empty, and the reason that jobs can never run names a working layout."""
    cluster = thesis_cluster(nodes=2, network_bytes_s=100e9)
    kind = replace(LLAMA, **{"gpus": (8,), **changes})
    found = AnalyticOracle(cluster).options(kind)
    assert len(found) == 0
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(why_never(kind, found, cluster))


def test_a_service_takes_its_time_everywhere_and_power_by_its_load() -> None:
    """A second of it takes a second anywhere; more copies and lower limits change power only."""
    load = ServiceLoad(8.0, prompt=512, output=256)
    kind = replace(LLAMA, gpus=(1, 2, 4), service=load)
    found = ORACLE.options(kind)
    assert np.all(found.sample_s == 1.0)
    by_place = {
        (int(gpus), float(cap_w)): float(power_w)
        for gpus, cap_w, power_w in zip(found.gpus, found.cap_w, found.power_w, strict=True)
    }
    assert by_place[2, 420.0] < by_place[2, 700.0] < by_place[4, 700.0]
    half = ORACLE.options(replace(kind, gpus=(1,), service=load._replace(requests_per_s=4.0)))
    assert by_place[2, 700.0] == pytest.approx(2 * half.power_w[0])
    idle = ORACLE.options(replace(kind, gpus=(1,), service=load._replace(requests_per_s=1e-9)))
    assert idle.power_w[0] == pytest.approx(thesis_cluster().types[1].idle_w, rel=1e-3)


def test_a_service_is_told_apart_by_what_its_cache_depends_on() -> None:
    """Stored options depend on load, idle power and configuration."""
    kind = replace(LLAMA, service=ServiceLoad(8.0))
    other = replace(LLAMA, service=ServiceLoad(9.0))
    assert ORACLE.fingerprint(kind) not in (None, ORACLE.fingerprint(other))


def test_a_sharded_job_needs_less_memory_and_exchanges_more() -> None:
    """An FSDP job of a trace runs where copies do not fit, and its steps take longer."""
    plain = replace(VIT, gpus=(1, 8), batches=(256,), caps=(1.0,))
    copies, sharded = (ORACLE.options(replace(plain, zero=zero)) for zero in (0, 3))
    ours, theirs = (_by_placement(each, "sample_s") for each in (sharded, copies))
    for where, sample_s in theirs.items():
        gpus = where[1]
        assert ours[where] == sample_s if gpus == 1 else ours[where] > sample_s
    workload = replace(kind_workload(VIT, 256), optimizer_bytes=60e9, peak_bytes=70e9)
    a100 = gpu_named("a100-sxm-40")
    assert not memory_fit(workload, a100, 8).fits
    assert memory_fit(workload, a100, 8, 3).fits
