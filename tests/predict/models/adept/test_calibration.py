"""Promises of the fit: its objective, its free parameters, and its result."""

import numpy as np
import pytest

from tests.predict.models.made import PLACE, addition, conv, gemm, workload
from wattloop.predict.models.adept import Adept
from wattloop.predict.models.adept.equations import ALBERT, BF16, PARAMETERS, STAGES, step_of
from wattloop.predict.models.adept.features import AdeptFeatures
from wattloop.predict.models.adept.model import AdeptObjective, AdeptSearch, free_parameters
from wattloop.predict.models.model import MeasuredStep
from wattloop.predict.workload.workload import Workload

START = {name: each.start for name, each in PARAMETERS.items()}
TRUE = {**START, "launch_s": 9e-6, "albert_memory": 3.0, "bf16_gemm": 2.0}


def steps() -> list[Workload]:
    """Return a few shapes in two precisions, of two architectures."""
    return [
        workload(
            gemm(size, size, 512, dtype=precision, count=many),
            conv(64, size // 32, 8, dtype=precision),
            addition(size * size, count=2 * many),
            name=name,
            precision=precision,
            parameters=size * size,
        )
        for precision in ("tf32", "bf16")
        for name in ("albert", "plain")
        for size in (256, 1024, 4096)
        for many in (10, 200)
    ]


def features() -> AdeptFeatures:
    """Return the features of all steps."""
    return AdeptFeatures.of((step, PLACE) for step in steps())


def test_the_objective_weighs_time_and_power() -> None:
    """4.16 to 4.18: times off by 10%, powers by 20% give 0.6 x 10 + 0.4 x 20."""
    rows = features()
    made = step_of(rows, START)
    objective = AdeptObjective(
        rows, made.step_s / 1.1, made.power_w / 0.8, list(PARAMETERS), "sigmoid"
    )
    assert objective(objective.scaled(START)) == pytest.approx([0.6 * 10 + 0.4 * 20])


def test_rows_without_power_count_for_time() -> None:
    """Unknown powers leave the mean of the others; none at all leaves time."""
    rows = features()
    made = step_of(rows, START)
    half = [None if i % 2 else watts / 0.8 for i, watts in enumerate(made.power_w)]
    objective = AdeptObjective(rows, made.step_s, half, list(PARAMETERS), "sigmoid")
    assert objective(objective.scaled(START)) == pytest.approx([0.4 * 20])
    timed = AdeptObjective(rows, made.step_s / 1.1, [None] * len(half), list(PARAMETERS), "sigmoid")
    assert timed(timed.scaled(START)) == pytest.approx([10])


def test_parameters_come_back_from_the_search_scale() -> None:
    """Scaling to the search's coordinates and back changes nothing within the bounds."""
    rows = features()
    objective = AdeptObjective(rows, [1.0] * 24, [1.0] * 24, list(PARAMETERS), "sigmoid")
    assert objective.parameters(objective.scaled(TRUE)) == pytest.approx(TRUE)


def test_bounds_survive_the_search_scale() -> None:
    """A parameter that ends at its bound is a valid constant, whatever rounding does."""
    objective = AdeptObjective(features(), [1.0] * 24, [1.0] * 24, list(PARAMETERS), "sigmoid")
    for bound in ("low", "high"):
        ends = {name: getattr(each, bound) for name, each in PARAMETERS.items()}
        found = objective.parameters(objective.scaled(ends))
        Adept.from_constants(Adept(found).constants())


def test_what_no_row_tells_is_not_searched() -> None:
    """One GPU gives no information on links, and rows without ALBERT none on its scalars."""
    plain = [i for i, step in enumerate(steps()) if step.name == "plain"]
    free = free_parameters(features().take(plain), ALBERT + BF16)
    assert not {"hop_s", "link_share", *ALBERT} & set(free)
    assert set(BF16) <= set(free)
    assert not set(BF16) & set(free_parameters(features(), STAGES["S4"]))


def test_stages_are_those_of_table_4_2() -> None:
    """Each stage frees one more scalar, up to all 28 parameters."""
    assert len(PARAMETERS) == 28
    assert [len(scalars) for scalars in STAGES.values()] == list(range(7))
    assert set(STAGES["S7"]) == set(ALBERT + BF16)


def test_bounds_hold_the_start() -> None:
    """Every start lies within its bounds."""
    assert all(each.low <= each.start <= each.high for each in PARAMETERS.values())


def test_the_fit_finds_what_made_the_data() -> None:
    """The fit is close to data from known parameters, and the identified ones are found."""
    made = step_of(features(), TRUE)
    points = [
        MeasuredStep(step, PLACE, float(made.step_s[i]), float(made.power_w[i]), step.name)
        for i, step in enumerate(steps())
    ]
    fitted = Adept(search=AdeptSearch(iterations=120, seed=1, population=6)).fit(points)
    errors = [abs(fitted.predict(p.workload, p.placement).step_s / p.step_s - 1) for p in points]
    assert np.mean(errors) < 0.05
    found = fitted.constants()["parameters"]
    assert isinstance(found, dict)
    assert found["launch_s"] == pytest.approx(9e-6, rel=0.2)
    assert found["hop_s"] == START["hop_s"]


def test_the_same_seed_finds_the_same() -> None:
    """A fit can be repeated exactly."""
    made = step_of(features(), TRUE)
    points = [
        MeasuredStep(step, PLACE, float(made.step_s[i]), float(made.power_w[i]), step.name)
        for i, step in enumerate(steps())
    ]
    search = AdeptSearch(iterations=3, seed=5, population=3)
    assert (
        Adept(search=search).fit(points).constants() == Adept(search=search).fit(points).constants()
    )
