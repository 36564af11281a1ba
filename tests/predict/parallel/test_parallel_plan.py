"""Promises of the search for a layout: fitting ones, the best first, and remedies where none
fits.
"""

from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.parallel.plan import Plan, PlanQuestion, objective_value, plan

QUESTION = PlanQuestion(model="hf:llama-3.1-8b", gpu="h100-sxm", gpus=8, seq=4096, global_batch=64)


@pytest.fixture(scope="module")
def quickest() -> Plan:
    return plan(QUESTION)


def test_layouts_fit_and_the_quickest_is_first(quickest: Plan) -> None:
    assert quickest.best is not None
    speeds = [each.tokens_s for each in quickest.forecasts]
    assert speeds == sorted(speeds, reverse=True)
    assert all(each.fits and each.layout.gpus == 8 for each in quickest.forecasts)
    assert len({str(each.layout) for each in quickest.forecasts}) == len(speeds)
    assert 0 < quickest.fitting < quickest.evaluated
    # 8B parameters: 128 GB of weights, gradients and optimizer on each GPU do not fit as copies.
    assert all(
        each.layout.zero or each.layout.tp * each.layout.pp > 1 for each in quickest.forecasts
    )


def test_least_energy_takes_a_lower_cap_and_longer(quickest: Plan) -> None:
    coolest = plan(replace(QUESTION, objective="energy"))
    assert coolest.best is not None and quickest.best is not None
    assert coolest.best.question.cap_w is not None
    assert coolest.best.token_j < 0.9 * quickest.best.token_j
    assert coolest.best.tokens_s < quickest.best.tokens_s
    assert coolest.best.token_j == min(each.token_j for each in coolest.forecasts)
    assert quickest.least_energy is not None
    assert quickest.least_energy.token_j == pytest.approx(coolest.best.token_j, rel=0.02)


def test_a_price_of_hours_prefers_speed_and_one_of_energy_the_cap() -> None:
    dear = plan(replace(QUESTION, objective="cost", gpu_hour=3.0))
    green = plan(replace(QUESTION, objective="cost", gpu_hour=1e-6, kwh=1.0))
    assert dear.best is not None and green.best is not None
    assert dear.best.tokens_s > green.best.tokens_s
    assert green.best.token_j < dear.best.token_j
    values = [objective_value(dear.question, each) for each in dear.forecasts]
    assert values[0] == min(values)


def test_where_nothing_fits_it_says_by_how_much_and_what_would() -> None:
    found = plan(replace(QUESTION, model="hf:llama-3.1-70b", gpu="a100-sxm-40", global_batch=None))
    assert found.best is None and found.closest is not None
    assert found.closest.memory_bytes > found.closest.available_bytes
    assert found.fewest_gpus == 32
    assert "does not fit" in found.answer and "32 GPUs would do" in found.answer
    assert found.to_dict()["fits"] is False


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"objective": "speed"}, "choose one of time, energy, cost"),
        ({"objective": "cost"}, "add --gpu-hour"),
        ({"gpus": 0}, "must be at least 1"),
        ({"precision": "fp8", "gpu": "a100"}, "no such arithmetic"),
        ({"seq": 1_000_000}, "more than the 131072 positions"),
        ({"model": "hf:bert"}, "does not generate"),
    ],
)
def test_wrong_questions_are_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan(replace(QUESTION, **fields))  # type: ignore[arg-type]  # values of several types
