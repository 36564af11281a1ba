"""Promise: estimates of many pairs at once are those of `predict` for each."""

from dataclasses import replace

import pytest

from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement
from wattloop.schedule.estimates.analytic import kind_workload
from wattloop.schedule.estimates.workload_estimates import GpuWorkload, predict_pairs
from wattloop.schedule.jobs import JobKind


@pytest.mark.parametrize("name", ["h200", "a100-sxm-40"])
@pytest.mark.parametrize(
    ("model", "precision", "sequence"),
    [("hf:resnet-50", "tf32", None), ("hf:albert-base-v2", "bf16", 256)],
)
def test_figures_and_intervals_are_those_of_predict(
    name: str, model: str, precision: str, sequence: int | None
) -> None:
    """Time, power and the wider side of all three intervals, for a host of unknown speed."""
    gpu = gpu_named(name)
    estimator = KernelModel.for_gpu(gpu)
    workload = kind_workload(JobKind(model, precision, sequence=sequence), 64)
    placements = [
        Placement(gpu, gpus, cap_w, gpus_per_node=4, network_bytes_s=25e9)
        for gpus in (1, 4, 8)
        for cap_w in (None, 0.5 * gpu.tdp_w, gpu.tdp_w)
    ]
    placements.append(Placement(gpu, host_speed=0.02))  # the host is the bottleneck
    found = GpuWorkload(estimator, workload, gpu).figures(placements)
    for number, placement in enumerate(placements):
        one = estimator.predict(workload, replace(placement, is_host_known=False))
        assert found.step_s[number] == pytest.approx(one.step_s)
        assert found.power_w[number] == pytest.approx(one.power_w)
        for quantity, value, interval in (
            ("time", one.step_s, one.step_interval),
            ("power", one.power_w, one.power_interval),
            ("energy", one.energy_j, one.energy_interval),
        ):
            assert interval is not None
            wider = max(value / interval.low, interval.high / value)
            assert found.factors[quantity][number] == pytest.approx(wider)


def test_workloads_together_are_as_each_alone() -> None:
    """They may share placements or not, and come in any order."""
    gpu = gpu_named("h200")
    model = KernelModel.for_gpu(gpu)
    kind = JobKind("hf:resnet-50", "tf32")
    several = [GpuWorkload(model, kind_workload(kind, batch), gpu) for batch in (64, 128, 256)]
    shared = [Placement(gpu, gpus, cap_w) for gpus in (1, 2) for cap_w in (400.0, 700.0)]
    own = [Placement(gpu, 8, 300.0)]
    together = predict_pairs(several, [shared, own, shared])
    for each, places, found in zip(several, (shared, own, shared), together, strict=True):
        alone = each.figures(places)
        assert found.step_s.tolist() == pytest.approx(alone.step_s.tolist(), rel=1e-12)
        assert found.power_w.tolist() == pytest.approx(alone.power_w.tolist(), rel=1e-12)
        assert found.factors["energy"].tolist() == pytest.approx(alone.factors["energy"].tolist())
