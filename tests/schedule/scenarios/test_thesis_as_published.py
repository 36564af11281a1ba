"""Promise of the fitted scenario: the published saving comes only from the cost of a hop."""

import statistics

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.files import load_workload
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.engine import Simulation
from wattloop.schedule.estimates.analytic import SHIPPED
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario


def metrics(scenario: str, policy: str, seed: int) -> Metrics:
    world = load_scenario(scenario, {"jobs.generate.rate_per_s": 0.003}).world(seed)
    simulation = Simulation(
        world.cluster, world.jobs, policy_from(policy), truth=world.truth, oracle=world.oracle,
        settings=world.settings,
    )  # fmt: skip
    return metrics_of(simulation.run())


def saving(scenario: str) -> float:
    """Return the energy that Zeus saves over Pollux, for three seeds outside the fit."""
    pollux, zeus = (
        statistics.fmean(metrics(scenario, policy, seed).energy_kwh for seed in (100, 101, 102))
        for policy in ("pollux", "zeus")
    )
    return 1 - zeus / pollux


def test_zeus_saves_with_the_hop_cost_and_not_without() -> None:
    assert saving("thesis-as-published") > 0.08
    assert abs(saving("thesis")) < 0.02


def test_charon_stays_within_its_budget() -> None:
    found = metrics("charon-as-printed", "charon", 100)
    assert found.over_budget_s == 0
    assert found.peak_power_w <= 4_500


def test_a_hop_adds_its_time_and_power_to_every_exchange() -> None:
    """2 (n - 1) hops, at the stated share of TDP, independent of the rest of the step."""
    gpu = gpu_named("a100-sxm-40")
    workload = load_workload(sorted(SHIPPED.glob("*.json.gz"))[0])
    from wattloop.predict.forecaster import estimator_for

    model = estimator_for(gpu, "kernels", None)
    assert isinstance(model, KernelModel)
    plain = model.predict(workload, Placement(gpu, gpus=4))
    slow = model.predict(workload, Placement(gpu, gpus=4, exchange_hop_s=0.01))
    assert slow.step_s - plain.step_s == pytest.approx(6 * 0.01, rel=1e-6)
    hot = model.predict(
        workload, Placement(gpu, gpus=4, exchange_hop_s=0.01, exchange_w=0.8 * gpu.tdp_w)
    )
    assert hot.step_s == pytest.approx(slow.step_s)
    assert hot.power_w > slow.power_w
    added_j = hot.step_s * hot.power_w - plain.step_s * plain.power_w
    assert added_j >= 6 * 0.01 * 0.8 * gpu.tdp_w * 0.99
    alone = model.predict(workload, Placement(gpu, gpus=1, exchange_hop_s=0.01))
    assert alone.step_s == model.predict(workload, Placement(gpu, gpus=1)).step_s


@pytest.mark.parametrize("text", ["exchange_w: 170%", "exchange_hop: -3 ms", "exchange_hop: 1 h"])
def test_values_that_cannot_be_are_refused(tmp_path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"groups:\n  - {{gpu: a100-sxm-40, nodes: 1, gpus_per_node: 8, host_w: 0, {text}}}\n"
    )
    with pytest.raises(ConfigError, match=text.partition(":")[0]):
        load_cluster(str(path))
