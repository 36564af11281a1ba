"""Promises of `run_total`: steps of a run, their cost, and its uncertainty."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.carbon import annual_intensity
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.node import node_prediction, typical_node
from wattloop.predict.prediction import Interval, Prediction
from wattloop.predict.run_total import RunLength, run_total

STEP = Prediction(
    step_s=0.5,
    power_w=720.0,
    gpus=4,
    step_interval=Interval(0.45, 0.55),
    energy_interval=Interval(1_300.0, 1_600.0),
)
PRICED = Settings(tariff_per_kwh=0.25, zone="FRA", pue=1.2, sources={"pue": "flag"})


def test_steps_are_given_or_follow_from_epochs() -> None:
    """The last batch of an epoch counts, however small."""
    assert RunLength(steps=1_000).run_steps(100) == 1_000
    assert RunLength(epochs=3, samples=1_001).run_steps(100) == 33
    assert RunLength(epochs=0.5, samples=1_000).run_steps(100) == 5
    assert RunLength(epochs=0.07, samples=10_000).run_steps(100) == 7
    assert RunLength(epochs=1e-9, samples=1_000).run_steps(100) == 1
    assert RunLength().run_steps(100) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 3}, "give samples as well"),
        ({"samples": 3}, "give epochs as well"),
        ({"steps": 3, "epochs": 1}, "not both"),
        ({"steps": 0}, "steps 0: must be above 0"),
        ({"epochs": -1, "samples": 5}, "epochs -1: must be above 0"),
    ],
)
def test_wrong_amounts_say_what_to_give(given: dict[str, int], message: str) -> None:
    """Errors name the amount and the remedy."""
    with pytest.raises(ConfigError, match=message):
        RunLength(**given)


def test_a_run_is_its_steps_and_intervals_grow_with_it() -> None:
    """The error of a prediction is the same in every step, so nothing averages out."""
    total = run_total(STEP, 1_000, PRICED)
    assert total.time_s.value == pytest.approx(500.0)
    assert total.time_s.interval == Interval(450.0, 550.0)
    assert total.energy_j.value == pytest.approx(1_440_000.0)
    assert total.energy_j.interval == Interval(1_300_000.0, 1_600_000.0)
    assert total.scope == "gpu"
    assert any("GPUs alone" in note for note in total.notes)


def test_cost_and_carbon_are_those_of_the_room() -> None:
    """PUE, tariff and the zone's intensity apply to the energy, intervals too."""
    total = run_total(STEP, 1_000, PRICED)
    kwh = 1.44e6 * 1.2 / 3.6e6
    assert total.cost is not None and total.carbon_g is not None
    assert total.cost.value == pytest.approx(kwh * 0.25)
    assert total.carbon_g.value == pytest.approx(kwh * annual_intensity("FRA").g_co2e_per_kwh)
    assert total.carbon_g.interval is not None
    assert total.carbon_g.interval.high / total.carbon_g.value == pytest.approx(1_600 / 1_440)


def test_without_tariff_or_zone_there_is_no_number_but_a_reason() -> None:
    """A missing value is not zero."""
    total = run_total(STEP, 10, Settings())
    assert total.cost is None and total.carbon_g is None
    assert "tariff" in total.cost_reason
    assert "zone" in total.carbon_reason
    assert any("PUE 1" in note for note in total.notes)


def test_a_node_is_counted_as_a_whole() -> None:
    """Scope `node`: energy at the socket, with an interval wider than the GPUs' alone."""
    node = node_prediction(STEP, typical_node(gpu_named("h200")))
    total = run_total(STEP, 100, PRICED, node=node)
    assert total.scope == "node"
    assert total.energy_j.value == pytest.approx(100 * node.energy_j)
    assert total.energy_j.interval is not None
    width = total.energy_j.interval.high - total.energy_j.value
    assert width / total.energy_j.value > 0.1
    assert not any("GPUs alone" in note for note in total.notes)


def test_without_residuals_there_are_no_intervals() -> None:
    """A model without errors has no interval."""
    total = run_total(Prediction(step_s=1.0, power_w=100.0), 10, PRICED)
    assert total.time_s.interval is None
    assert total.cost is not None and total.cost.interval is None
