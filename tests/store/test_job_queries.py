"""Promises of the list of jobs: the database filters, sorts, pages and sums."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.store.database import Store, open_store
from wattloop.store.job_queries import JobFilter, fill_run_facts, job_page, job_totals, known_values
from wattloop.store.runs import RunRecord, insert_run
from wattloop.store.schema import run_facts


def record(number: int, **changes: Any) -> RunRecord:
    """Return a run of `number` seconds and 100 J a second on an H200."""
    domain = DomainEnergy(
        name="gpu:0",
        scope=Scope.GPU,
        energy_j=100.0 * number,
        uncertainty_j=1.0,
        provenance=Provenance.MEASURED,
        source="NVML",
        device="H200",
    )
    result = WindowResult(
        name="run", window_id=0, parent_id=None, begin_s=0.0, end_s=float(number), domains=(domain,)
    )
    usual: dict[str, Any] = {
        "run_id": f"2026-{number:03}",
        "name": f"train {number}",
        "started_wall_s": 1_000.0 * number,
        "started_s": 0.0,
        "ended_s": float(number),
        "result": result,
        "job": {
            "id": str(number),
            "scheduler": {"cluster": "c1", "project": "p", "exclusive": "1"},
        },
        "accounting": {"carbon_g": 2.0, "labels": {"node": "low"}, "facility": {"energy_j": 7.0}},
    }
    return RunRecord(**{**usual, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with four runs; one is counted by another, one has no accounting."""
    with open_store(tmp_path / "runs.db") as place:
        insert_run(place, record(1))
        insert_run(place, record(2, name="other_50%", job=None))
        insert_run(place, record(3, counted=False))
        insert_run(place, record(4, accounting=None, tags={"cluster": "mine"}))
        yield place


def names(store: Store, wanted: JobFilter | None = None, **how: Any) -> list[str]:
    """Return the identifiers of a page."""
    return [row["run_id"] for row in job_page(store, wanted, **how)]


def test_newest_come_first_and_pages_do_not_overlap(store: Store) -> None:
    """Two pages of two are all four."""
    assert names(store, limit=2) == ["2026-004", "2026-003"]
    assert names(store, limit=2, offset=2) == ["2026-002", "2026-001"]
    assert names(store, sort="energy", descending=False)[0] == "2026-001"


def test_each_filter_keeps_what_it_says(store: Store) -> None:
    """By text, cluster, project, exclusivity, duration and date."""
    assert names(store, JobFilter(text="OTHER_5")) == ["2026-002"]
    assert names(store, JobFilter(text="%")) == ["2026-002"]
    assert names(store, JobFilter(cluster="mine")) == ["2026-004"]
    assert names(store, JobFilter(project="p")) == ["2026-004", "2026-003", "2026-001"]
    assert names(store, JobFilter(exclusive=True)) == ["2026-004", "2026-003", "2026-001"]
    assert names(store, JobFilter(exclusive=False)) == []
    assert names(store, JobFilter(shortest_s=2, longest_s=3)) == ["2026-003", "2026-002"]
    assert names(store, JobFilter(since_wall_s=2_000, until_wall_s=3_000)) == ["2026-002"]
    assert names(store, JobFilter(label="low")) == ["2026-003", "2026-002", "2026-001"]


def test_totals_are_of_all_that_match_and_count_no_device_twice(store: Store) -> None:
    """The third run's devices are in another run's figures."""
    totals = job_totals(store)
    assert (totals.runs, totals.counted) == (4, 3)
    assert totals.energy_j == pytest.approx(700.0)
    assert (totals.carbon_g, totals.with_carbon) == (pytest.approx(4.0), 2)


def test_totals_tell_what_was_measured_from_what_was_not(store: Store) -> None:
    """A partly estimated job has an energy, and does not count as measured."""
    assert (job_totals(store).with_energy, job_totals(store).measured) == (3, 3)
    weak = record(5)
    assert weak.result is not None
    (domain,) = weak.result.domains
    guessed = domain._replace(name="cpu:0", provenance=Provenance.ESTIMATED)
    insert_run(store, replace(weak, result=weak.result._replace(domains=(domain, guessed))))
    assert (job_totals(store).with_energy, job_totals(store).measured) == (4, 3)


def test_nothing_known_is_not_zero(store: Store) -> None:
    """Runs without accounting have no carbon."""
    totals = job_totals(store, JobFilter(cluster="mine"))
    assert (totals.carbon_g, totals.with_carbon) == (None, 0)


def test_choices_are_what_is_there(store: Store) -> None:
    """The choices feed the filters of a page."""
    assert known_values(store, "cluster") == ["c1", "mine"]
    assert known_values(store, "device") == ["H200"]


def test_runs_of_earlier_releases_are_listed_alike(store: Store) -> None:
    """Their columns are filled in once."""
    before = job_page(store)
    with store.writing() as connection:
        connection.execute(delete(run_facts))
    assert fill_run_facts(store) == 4
    assert job_page(store) == before
    assert fill_run_facts(store) == 0
