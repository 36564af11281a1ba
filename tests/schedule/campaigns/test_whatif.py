"""Promises of what-if planning: the same jobs in both variants, and an answer with its
confidence.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedule.campaigns.worlds import campaign, tiny
from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.runner import run_campaign
from wattloop.schedule.campaigns.summary import summary_of
from wattloop.schedule.campaigns.whatif import (
    AS_IT_IS,
    CHANGED,
    Changes,
    answer,
    changed_scenario,
    compare_whatif,
)
from wattloop.store.database import open_store


def both(**figures: tuple[list[float], list[float]]) -> Any:
    """Return results of both variants with these figures, seed by seed."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for name, (before, after) in figures.items():
        for world, values in ((AS_IT_IS, before), (CHANGED, after)):
            for seed, value in enumerate(values):
                cells.setdefault((world, seed), {})[name] = value
    return summary_of(cells)


def test_the_changed_world_has_the_very_same_jobs(tmp_path: Path) -> None:
    """Arrivals, work and deadlines are those of the old machines, though new ones are faster."""
    base = tiny(tmp_path, {"jobs.models.0.types": ["a100"]})
    changed = changed_scenario(base, Changes(("a100=h100-sxm",)))
    before, after = base.world(3), changed.world(3)
    for column in ("arrival_s", "work", "deadline_s", "user"):
        assert np.array_equal(getattr(before.jobs, column), getattr(after.jobs, column))
    assert [kind.types for kind in after.jobs.kinds] == [("h100-sxm",)]
    slow, quick = (
        world.truth.options(world.jobs.kinds[0]).sample_s.min() for world in (before, after)
    )
    assert quick < slow
    assert len({base.digest(), changed.digest()}) == 2


def test_a_budget_alone_leaves_the_machines_as_they_were(tmp_path: Path) -> None:
    """Their figures are not computed again, and the new budget applies."""
    base = tiny(tmp_path, {"budget": "600 W"})
    changed = changed_scenario(base, Changes(budget="-10%"))
    assert changed.truth is base.truth
    assert changed.world(0).settings.budget_w.at(0.0) == pytest.approx(540.0)
    with pytest.raises(ConfigError, match="below the 100 W"):
        changed_scenario(base, Changes(budget="-95%"))


def test_gpus_that_no_job_could_use_are_refused(tmp_path: Path) -> None:
    """A batch that fits an A100 but not a P4: the comparison would cover idle GPUs only."""
    changed = changed_scenario(tiny(tmp_path), Changes(("a100=p4",)))
    with pytest.raises(ConfigError, match="no job of tiny/whatif could use p4"):
        changed.world(0)


def test_more_machines_are_worth_what_both_worlds_differ_by(tmp_path: Path) -> None:
    """The difference of each figure is that of its seeds, and JSON has both variants."""
    base = tiny(tmp_path)
    planned = campaign(base, "zeus")
    changes = Changes(nodes=("+1",))
    later = campaign(changed_scenario(base, changes), "zeus")
    with open_store(tmp_path / "runs.db") as store:
        (_, before), (_, after) = (run_campaign(each, store) for each in (planned, later))
    found = compare_whatif(planned, changes, before, after)
    waits = [
        [outcomes["", "zeus", seed]["jct_mean_s"] for seed in (0, 1)]
        for outcomes in (before, after)
    ]
    assert waits[1] < waits[0]
    difference = found.summary.differences[CHANGED]["jct_mean_s"]
    assert difference is not None and difference.pairs == 2
    assert difference.mean == pytest.approx(sum(waits[1]) / 2 - sum(waits[0]) / 2)
    rows = found.to_dict()["results"]
    assert [(row["world"], row["seed"]) for row in rows] == [
        (world, seed) for world in (AS_IT_IS, CHANGED) for seed in (0, 1)
    ]
    assert found.sentence.startswith("With 1 more node: ")


def test_the_answer_says_how_much_and_how_sure() -> None:
    """Means and intervals are in percent of the present; a possible chance result is marked."""
    summary = both(
        throughput_per_h=([10.0, 10.0, 10.0], [11.0, 11.2, 11.4]),
        energy_kwh=([5.0, 5.0, 5.0], [5.5, 4.5, 5.1]),
        jct_mean_s=([60.0, 60.0, 60.0], [60.0, 60.0, 60.0]),
        miss_rate=([0.10, 0.10, 0.12], [0.05, 0.05, 0.07]),
    )
    assert answer(summary, "With more") == (
        "With more: +12.0% throughput (95%: +7.0 to +17.0), "
        "no clear change of energy (95%: -24.3 to +25.7%), the same mean completion time, "
        "-5.0 points missed deadlines (95%: -5.0 to -5.0)."
    )


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([-3.0, -4.0, -5.0], "no clear change of cost (95%: -3.48 to +1.48)"),
        ([-9.0, -9.1, -9.2], "-6.1 cost (95%: -6.35 to -5.85)"),
        ([-9.0], "-6 cost"),
    ],
)
def test_amounts_below_0_are_compared_as_such(now: list[float], said: str) -> None:
    """A share of a negative cost has no meaning."""
    summary = both(cost=([-3.0] * len(now), now))
    assert answer(summary, "With more") == f"With more: {said}."


def test_one_seed_answers_without_an_interval() -> None:
    """Its spread is unknown."""
    summary = both(throughput_per_h=([10.0], [11.0]))
    assert answer(summary, "With more") == "With more: +10.0% throughput."


@pytest.mark.parametrize(
    ("fields", "changes", "said"),
    [
        ({}, Changes(), "no change given"),
        ({"variants": {"a": {}, "b": {}}}, Changes(nodes=("+1",)), "--variant"),
        ({}, Changes(budget="+1kW"), "no power budget to change"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(
    tmp_path: Path, fields: dict[str, Any], changes: Changes, said: str
) -> None:
    """The error suggests a possible question."""
    with pytest.raises(ConfigError, match=said):
        changed_scenario(tiny(tmp_path, fields), changes)
