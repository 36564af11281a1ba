"""Promises of goals: understood as written, and met only beyond chance."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.study.goals import Goal, judge


@pytest.mark.parametrize(
    ("text", "kind", "sign", "amount"),
    [
        ("-10%", "change", -1, -0.10),
        ("+5 %", "change", 1, 0.05),
        ("<= 1%", "limit", -1, 0.01),
        (">= 10", "limit", 1, 10.0),
        ("no worse", "change", -1, 0.0),
        ("No worse than 5%", "change", -1, 0.05),
        ("no worse than 1 sd", "spread", -1, 1.0),
    ],
)
def test_goals_are_read_in_all_notations(text: str, kind: str, sign: int, amount: float) -> None:
    """For a figure of which less is better."""
    goal = Goal.parse(text, less_is_better=True)
    assert (goal.kind, goal.sign, goal.amount) == (kind, sign, pytest.approx(amount))


def test_no_worse_turns_with_the_figure() -> None:
    """For throughput more is better."""
    goal = Goal.parse("no worse than 5%", less_is_better=False)
    assert (goal.sign, goal.amount) == (1, pytest.approx(-0.05))


@pytest.mark.parametrize("text", ["", "better", "10%", "-x%", "no worse than ever"])
def test_other_text_is_not_a_goal(text: str) -> None:
    """The message shows the valid forms."""
    with pytest.raises(ConfigError, match="-10%"):
        Goal.parse(text, less_is_better=True)


def minus(before: dict[int | str, float], amounts: list[float]) -> dict[int | str, float]:
    """Return the same seeds with values lower by this amount."""
    return {key: value - a for (key, value), a in zip(before.items(), amounts, strict=True)}


BEFORE: dict[int | str, float] = {0: 100.0, 1: 120.0, 2: 80.0, 3: 110.0}


def test_pairs_show_what_the_spread_of_seeds_would_hide() -> None:
    """Seeds differ by 40, all of them lose 12 +- 0.2: -10% is met."""
    after = minus(BEFORE, [12.0, 12.2, 11.8, 12.0])
    found = judge("energy_kwh", Goal.parse("-10%", less_is_better=True), BEFORE, after)
    assert (found.met, found.word) == (True, "SUCCESS")
    assert found.change == pytest.approx(-12 / 102.5)


def test_met_in_the_mean_alone_is_not_met() -> None:
    """A mean of -11% that may as well be -5% does not meet the goal."""
    after = minus(BEFORE, [30.0, 0.0, 10.0, 5.0])
    found = judge("energy_kwh", Goal.parse("-10%", less_is_better=True), BEFORE, after)
    assert not found.met
    assert "not beyond chance" in found.why


def test_no_worse_than_a_deviation_of_the_baseline() -> None:
    """The sd of the baseline is 17: a drop of 5 is not worse, a drop of 30 is."""
    goal = Goal.parse("no worse than 1 sd", less_is_better=False)
    assert judge("jobs_done", goal, BEFORE, minus(BEFORE, [5.0, 5.1, 4.9, 5.0])).met
    assert not judge("jobs_done", goal, BEFORE, minus(BEFORE, [30.0, 30.1, 29.9, 30.0])).met


def test_limits_are_absolute() -> None:
    """At most 1% of deadlines, whatever the baseline."""
    goal = Goal.parse("<= 1%", less_is_better=True)
    before: dict[int | str, float] = {0: 0.2, 1: 0.3}
    assert judge("miss_rate", goal, before, {0: 0.0, 1: 0.0}).met
    assert not judge("miss_rate", goal, before, {0: 0.02, 1: 0.02}).met


def test_different_runs_are_compared_as_groups() -> None:
    """Measured runs have no pairs, so Welch's interval applies."""
    goal = Goal.parse("-10%", less_is_better=True)
    before: dict[int | str, float] = {"a": 100.0, "b": 101.0, "c": 99.0}
    after: dict[int | str, float] = {"d": 80.0, "e": 81.0, "f": 79.0}
    assert judge("energy_j", goal, before, after).met
    noisy: dict[int | str, float] = {"d": 60.0, "e": 110.0, "f": 85.0}
    assert not judge("energy_j", goal, before, noisy).met


def test_an_unmeasured_kpi_is_reported() -> None:
    """A KPI without values does not count as reached."""
    with pytest.raises(ConfigError, match="not measured"):
        judge("cost", Goal.parse("-10%", less_is_better=True), {}, {0: 1.0})
