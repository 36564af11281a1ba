"""Promises of a campaign's table: the best is marked, chance is named, and missing is not zero."""

from typing import Any

import pytest

from wattloop.report.campaign import (
    CampaignColumn,
    change_text,
    difference_table,
    policy_table,
)
from wattloop.schedule.campaigns.summary import Summary, summary_of
from wattloop.schedule.metrics.metrics import compare


def summary(**figures: dict[str, list[float | None]]) -> Summary:
    """Build a summary: metric -> policy -> a value per seed."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for name, policies in figures.items():
        for label, values in policies.items():
            for seed, value in enumerate(values):
                cells.setdefault((label, seed), {})[name] = value
    return summary_of(cells)


def column(found: Any, header: str) -> list[str]:
    """Return the cells below a header."""
    at = found.headers.index(header)
    return [row[at] for row in found.rows]


def test_the_best_is_marked_as_far_as_it_is_printed() -> None:
    """Values that print alike share the mark, and if all do there is none."""
    found = policy_table(
        summary(
            throughput_per_h={"a": [10.0], "b": [12.0], "c": [11.0]},
            energy_kwh={"a": [5.0001], "b": [5.0002], "c": [9.0]},
            jct_mean_s={"a": [60.0001], "b": [60.0002], "c": [60.0003]},
        ),
        "title",
    )
    assert column(found, "jobs/h") == ["10.0", "12.0 *", "11.0"]
    assert column(found, "energy kWh") == ["5.00 *", "5.00 *", "9.00"]
    assert column(found, "JCT min") == ["1.00", "1.00", "1.00"]


def test_deviations_have_the_decimals_of_their_mean() -> None:
    """A figure without any value is a dash."""
    found = policy_table(
        summary(
            energy_kwh={"a": [58.0, 62.0], "b": [58.0, 58.0]},
            miss_rate={"a": [None, None], "b": [0.25, 0.35]},
        ),
        "title",
    )
    assert column(found, "energy kWh") == ["60.0 ± 2.8", "58.0 ± 0.0 *"]
    assert column(found, "misses %") == ["-", "30.0 ± 7.1"]


def test_a_budget_that_is_kept_is_shown() -> None:
    """Without a budget the column is left out; with one it is shown, also when no run exceeds
    it.
    """
    kept = summary(over_budget_s={"a": [0.0]}, energy_kwh={"a": [1.0]})
    assert "over budget s" not in policy_table(kept, "title").headers
    assert column(policy_table(kept, "title", budget=True), "over budget s") == ["0"]


def test_a_difference_within_chance_is_marked() -> None:
    """An interval that includes zero has a question mark; shares differ by points."""
    found = difference_table(
        summary(
            energy_kwh={"a": [10.0, 10.0, 10.0], "b": [9.0, 9.1, 8.9], "c": [8.0, 12.0, 10.3]},
            miss_rate={"a": [0.2, 0.2, 0.2], "b": [0.1, 0.1, 0.1], "c": [0.2, 0.2, 0.2]},
        )
    )
    assert found is not None
    assert found.title == "against a, 95% interval over 3 paired seeds; ? may be chance"
    assert column(found, "energy") == ["-10.0 ± 2.5%", "+1.0 ± 49.9% ?"]
    assert column(found, "misses") == ["-10.0 ± 0.0 points", "0.0 ± 0.0 points"]
    assert difference_table(summary(energy_kwh={"a": [1.0]})) is None


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ([-0.573], "-0.003"),
        ([-0.573, -0.575, -0.571], "-0.003 ± 0.00497 ?"),
        ([-0.677, -0.678, -0.679], "-0.108 ± 0.00248"),
        ([-3.57], "-3.0"),
    ],
)
def test_small_differences_of_a_negative_cost_are_shown_in_the_table(
    now: list[float], shown: str
) -> None:
    """Cents are amounts, not percent: a decimal is not enough."""
    found = compare([-0.570] * len(now), now)
    assert change_text(found, CampaignColumn("cost", "cost", better=-1)) == shown
