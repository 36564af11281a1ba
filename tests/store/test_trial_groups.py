"""Promises of grouped lists: one row per experiment, no run lost, no joule counted twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_job_queries import record
from wattloop.core.records import Provenance
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import Experiment, create_experiment, delete_experiment
from wattloop.store.job_queries import (
    JobFilter,
    count_trials,
    folded_job_page,
    job_page,
    job_totals,
    matching_groups,
)
from wattloop.store.runs import RunFilter, insert_run, list_runs, list_trial_groups
from wattloop.store.trial_groups import TrialGroup, group_of

SWEEP, SEARCH = "sweep-1", "search-1"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with runs 1 to 9: a sweep of three, a search of two with a run inside, and four
    others.
    """
    with open_store(tmp_path / "runs.db") as place:
        create_experiment(place, Experiment(experiment_id=SWEEP, kind="sweep", name="caps"))
        create_experiment(place, Experiment(experiment_id=SEARCH, kind="search", name="lr"))
        alone: dict[str, Any] = {"job": None}
        for number in (1, 2, 3):
            insert_run(place, record(number, tags={"experiment": SWEEP}, **alone))
        for number in (5, 7):
            insert_run(place, record(number, tags={"search": SEARCH}, **alone))
        insert_run(place, record(6, parent_run_id="2026-005", **alone))
        insert_run(place, record(4, tags={"experiment": "of mine"}, **alone))
        insert_run(place, record(8, **alone))
        insert_run(place, record(9, accounting=None, **alone))
        yield place


def shown(rows: list[dict[str, Any] | TrialGroup]) -> list[str]:
    return [r.experiment_id if isinstance(r, TrialGroup) else r["run_id"][-1] for r in rows]


def test_trials_are_one_row_with_their_sums(store: Store) -> None:
    """A user's own tag groups nothing."""
    assert shown(folded_job_page(store, None, matching_groups(store))) == [
        *("9", "8", SEARCH, "4", SWEEP)
    ]
    search, sweep = list_trial_groups(store)
    assert (search.name, search.kind, search.runs) == ("lr", "search", 2)
    assert (sweep.runs, sweep.energy_j, sweep.carbon_g) == (3, 600.0, 6.0)
    assert (sweep.started_wall_s, sweep.duration_s) == (1_000.0, 2_003.0)
    assert (sweep.provenance, sweep.complete) == ("measured", True)
    assert [r.run_id[-1] for r in list_runs(store, RunFilter(trials=False))] == ["9", "8", "4"]
    assert len(list_runs(store)) == 9
    assert count_trials(store) == 6


def test_totals_are_those_of_all_runs(store: Store) -> None:
    """A run inside of a trial is in the trial's energy."""
    groups = matching_groups(store)
    alone = [row for row in folded_job_page(store, None, groups) if isinstance(row, dict)]
    folded_j = sum(row["energy_j"] for row in alone) + sum(g.energy_j or 0.0 for g in groups)
    assert folded_j == job_totals(store).energy_j == 3_900.0


@pytest.mark.parametrize("sort", ["started", "energy", "name", "duration", "carbon", "label"])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_hold_every_row_once_in_one_order(
    store: Store, sort: str, descending: bool, size: int
) -> None:
    """For any page size and any position of a group; unknown values come last."""
    groups = matching_groups(store)
    how: dict[str, Any] = {"sort": sort, "descending": descending}
    whole = shown(folded_job_page(store, None, groups, **how))
    assert len(whole) == 5
    paged = [
        name
        for offset in range(0, 6, size)
        for name in shown(folded_job_page(store, None, groups, **how, offset=offset, limit=size))
    ]
    assert paged == whole
    if sort == "carbon":
        assert whole[-1] == "9"


def test_filters_reach_into_groups(store: Store) -> None:
    """By a trial's own name, the experiment's name, or a date; with the sums of the matches."""
    assert [g.name for g in matching_groups(store, JobFilter(text="CAPS"))] == ["caps"]
    (found,) = matching_groups(store, JobFilter(text="train 3"))
    assert (found.runs, found.energy_j) == (1, 300.0)
    late = JobFilter(since_wall_s=4_500.0)
    assert shown(folded_job_page(store, late, matching_groups(store, late))) == ["9", "8", SEARCH]
    (found,) = list_trial_groups(store, RunFilter(name="train 7"))
    assert found.runs == 1
    assert [r["run_id"][-1] for r in job_page(store, JobFilter(experiment=SWEEP))] == list("321")


def test_runs_of_a_deleted_experiment_are_runs_again(store: Store) -> None:
    """No run is hidden behind a deleted experiment."""
    delete_experiment(store, SWEEP)
    rows = shown(folded_job_page(store, None, matching_groups(store)))
    assert rows == ["9", "8", SEARCH, "4", "3", "2", "1"]


def test_the_weakest_provenance_of_a_trial_is_said(store: Store) -> None:
    """One simulated trial makes the sum simulated."""
    weak = record(10, tags={"experiment": SWEEP}, job=None)
    assert weak.result is not None
    domain = weak.result.domains[0]._replace(provenance=Provenance.SIMULATED)
    insert_run(store, replace(weak, result=weak.result._replace(domains=(domain,))))
    sweep = next(g for g in matching_groups(store) if g.experiment_id == SWEEP)
    assert (sweep.provenance, sweep.runs, sweep.energy_j) == ("simulated", 4, 1_600.0)


def test_a_live_trial_is_known_by_its_tags() -> None:
    """The tags exist before its run is in the database."""
    assert group_of({"search": SEARCH}, [SWEEP, SEARCH]) == SEARCH
    assert group_of({"experiment": "of mine"}, [SWEEP, SEARCH]) is None
