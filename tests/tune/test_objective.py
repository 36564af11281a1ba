"""Promises of `objective` and `sm2_score`: smaller is better, and the equations are as printed."""

import math

import pytest

from wattloop.accounting.energy_delay import Point
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.tune.objective import OBJECTIVES, Objective, TrainingCost, rescale, sm2_scores
from wattloop.tune.spec import cap_metric, spec_from

RUN = TrainingCost(time_s=100.0, energy_j=7.2e6, quality=0.9, epochs=10)
SETTINGS = Settings(tariff_per_kwh=0.25, carbon_g_per_kwh=50.0)


def objective_named(written: object, settings: Settings | None = None, goal: str = "maximize"):
    """The objective of a search whose specification says this."""
    metric = {"name": "accuracy", "goal": goal}
    spec = spec_from({"parameters": {"x": [1, 2]}, "metric": metric, "objective": written})
    return spec.problem(settings).objective


@pytest.mark.parametrize(
    ("written", "score"),
    [
        ("energy", 7.2e6),
        ("time", 100.0),
        ("edp", 7.2e8),
        ("ed2p", 7.2e10),
        ("cost", 0.5),
        ({"name": "cost", "price_per_kwh": 1.0, "price_per_hour": 36.0}, 3.0),
        ("carbon", 100.0),
        ("quality", -0.9),
        ("quotient", -0.9 / 7.2e5),
        ({"name": "eds", "k": 2.0}, 0.5 * 7.2e6 / 3.6e6 + 0.5 * 100 / 50),
    ],
)
def test_scores_are_the_formulas(written: object, score: float) -> None:
    """Joules, seconds, their products, money, grams, and quality per joule of an epoch."""
    objective = objective_named(written, SETTINGS)
    assert objective.score(RUN, Point(50.0, 3.6e6)) == pytest.approx(score)
    again = Objective.from_dict(objective.to_dict())
    assert again == objective


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"sm2"}))
def test_better_is_smaller(name: str) -> None:
    """Less time and energy with more quality is never scored worse."""
    objective = objective_named(name, SETTINGS)
    reference = Point(100.0, 7.2e6)
    better = TrainingCost(time_s=90.0, energy_j=7.0e6, quality=0.91, epochs=10)
    assert objective.score(better, reference) < objective.score(RUN, reference)


def test_losses_are_minimized() -> None:
    """Where less of the metric is better, a lower loss and a lower loss times joules are better."""
    low = TrainingCost(time_s=1.0, energy_j=10.0, quality=0.2)
    high = TrainingCost(time_s=1.0, energy_j=10.0, quality=0.3)
    for name in ("quality", "quotient"):
        objective = objective_named(name, goal="minimize")
        assert objective.score(low) < objective.score(high)
    (one,), (other,) = objective_named("sm2", goal="minimize").compared([low, high])
    assert one < other


def test_missing_is_not_zero() -> None:
    """Without a reading or a metric a training has no score: infinity, never 0 J."""
    unread = TrainingCost(time_s=5.0, energy_j=None, quality=0.9)
    assert objective_named("energy").score(unread) == math.inf
    assert objective_named("time").score(unread) == 5.0
    mute = TrainingCost(time_s=5.0, energy_j=3.0)
    for name in ("quality", "quotient"):
        assert objective_named(name).score(mute) == math.inf
    assert objective_named("sm2").compared([mute, RUN])[0] == (math.inf,)


def test_several_objectives_are_a_front() -> None:
    """All scores, in order; the first one where a single one is wanted."""
    objective = objective_named(["energy", "time"])
    assert objective.several and objective.name == "energy+time"
    assert objective.scores(RUN) == (7.2e6, 100.0) and objective.score(RUN) == 7.2e6


def test_equation_2_of_document_003() -> None:
    """f = alpha P + (1 - alpha) (beta E + (1 - beta) LR), each rescaled, energy turned round."""
    quality, energy_j, rate = [0.5, 0.7, 0.9], [100.0, 300.0, 200.0], [0.1, 0.3, 0.2]
    scores = sm2_scores(quality, energy_j, rate, alpha=0.75, beta=0.5)
    p, e, lr = [0.0, 0.5, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.5]
    for i in range(3):
        assert scores[i] == pytest.approx(0.75 * p[i] + 0.25 * (0.5 * e[i] + 0.5 * lr[i]))
    assert sm2_scores(quality, energy_j, rate, alpha=1.0, beta=0.5) == pytest.approx(p)
    assert sm2_scores(quality, energy_j, rate, alpha=0.0, beta=1.0) == pytest.approx(e)
    assert sm2_scores(quality, energy_j, rate, alpha=0.0, beta=0.0) == pytest.approx(lr)
    perplexity = sm2_scores(quality, energy_j, rate, alpha=1.0, beta=0.5, maximize=False)
    assert perplexity == pytest.approx([1.0, 0.5, 0.0])


def test_with_two_left_energy_decides_nothing_above_alpha_a_half() -> None:
    """Why race does not use it: min-max makes the better quality 1 and the other 0."""
    for alpha in (0.51, 0.75, 1.0):
        good, cheap = sm2_scores([0.801, 0.8], [1e9, 1.0], [0.1, 0.1], alpha=alpha, beta=1.0)
        assert good > cheap


def test_what_is_missing_does_not_change_the_others() -> None:
    """A diverged configuration is last, and is not in the rescaling."""
    alone = sm2_scores([0.5, 0.9], [1.0, 2.0], [0.1, 0.2])
    more = sm2_scores([0.5, math.nan, 0.9, None], [1.0, 99.0, 2.0, 5.0], [0.1, 9.0, 0.2, 0.1])
    assert more == [alone[0], -math.inf, alone[1], -math.inf]
    assert rescale([3.0, 3.0]) == [1.0, 1.0] and rescale([None, 2.0]) == [0.0, 1.0]
    assert sm2_scores([], [], []) == []


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("enrgy", "unknown objective 'enrgy'; did you mean 'energy'"),
        ({"name": "eds", "k": 1.0}, r"objective\.k: .*greater than 1"),
        ({"name": "sm2", "alpha": 2}, r"objective\.alpha"),
        ({"name": "energy", "price": 2}, r"objective\.price"),
        ([], "no objective"),
        ("cost", "give price_per_kwh"),
        ("carbon", "give carbon_g_per_kwh"),
    ],
)
def test_a_wrong_objective_is_refused(written: object, said: str) -> None:
    """With what would be right."""
    with pytest.raises(ConfigError, match=said):
        objective_named(written)


@pytest.mark.parametrize(
    ("written", "metric"),
    [
        ("energy", ("energy", 2.0)),
        ({"name": "eds", "k": 1.5}, ("eds", 1.5)),
        ("carbon", ("energy", 2.0)),
        ("quotient", ("energy", 2.0)),
        (["time", "edp"], ("edp", 2.0)),
        ({"name": "cost", "price_per_kwh": 0.3, "price_per_hour": 2.0}, ("eds", 2.0)),
    ],
)
def test_a_cap_is_searched_for_what_the_search_wants(
    written: object, metric: tuple[str, float]
) -> None:
    """The metric of the cap follows the objective."""
    assert cap_metric(objective_named(written, SETTINGS)) == metric
