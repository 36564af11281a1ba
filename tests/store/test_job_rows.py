"""Promises of jobs: one row for any number of nodes, right at every moment, and quick."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.store.places import WHERE, empty_place
from tests.store.test_job_queries import record
from wattloop.core.errors import RunNotFound
from wattloop.store.database import Store, open_store
from wattloop.store.export import copy_runs
from wattloop.store.job_queries import JobFilter, job_page, job_totals, job_with_runs
from wattloop.store.runs import delete_run, insert_run

FACTS = {"scheduler": "slurm", "job": "42", "cluster": "lab", "partition": "gpu"}
KEY = "slurm:lab:42"


@pytest.fixture(params=WHERE)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place(request.param, tmp_path) as location, open_store(location) as found:
        yield found


def member(number: int, **changes: Any) -> Any:
    """Return the record of node `number` of job 42: 100 J a second."""
    accounting = {
        "labels": {"node": "low"},
        "efficiencies": [{"name": "node", "value": changes.pop("efficiency", 0.5)}],
        "insights": [{"code": "low_efficiency", "severity": "warning", "text": ""}],
    }
    usual = {
        **{"host": f"n{number}", "kind": "slurm", "name": "train", "accounting": accounting},
        **{"job": {"id": "42", "kind": "slurm", "scheduler": FACTS}, "started_wall_s": 1_000.0},
    }
    return record(number, **{**usual, **changes})


def test_a_shared_run_has_a_badge_and_the_uncertainty_of_what_it_adds(store: Store) -> None:
    """A run of which another counts three quarters adds a quarter, with a quarter of the error."""
    alone, shared = record(4), record(4, run_id="2026-005")
    assert shared.energy_j
    shared.shared = {"overlap_s": 1.0, "left_out_j": 0.75 * shared.energy_j}
    insert_run(store, alone)
    insert_run(store, shared)
    rows = {row["job_key"]: row for row in job_page(store)}
    assert rows["2026-005"]["insights"] == "shared"
    assert rows["2026-004"]["insights"] == ""
    for name in ("energy_j", "uncertainty_j"):
        assert rows["2026-005"][name] == pytest.approx(rows["2026-004"][name] / 4)


def test_nodes_of_a_job_are_one_row_with_their_sum(store: Store) -> None:
    """Energies add up, times span from first to last, and the worst status counts."""
    insert_run(store, member(3))
    insert_run(store, member(2, started_wall_s=990.0))
    insert_run(store, record(9, host="n9"))
    rows = {row["job_key"]: row for row in job_page(store)}
    assert set(rows) == {KEY, "2026-009"}
    job = rows[KEY]
    assert (job["nodes"], job["runs"], job["energy_j"]) == (2, 2, 500.0)
    assert (job["started_wall_s"], job["duration_s"]) == (990.0, 13.0)
    assert (job["label"], job["insights"]) == ("medium", "")
    assert job_totals(store).energy_j == pytest.approx(1_400.0)
    found, runs = job_with_runs(store, KEY)
    assert (found["name"], [run["host"] for run in runs]) == ("train", ["n2", "n3"])
    with pytest.raises(RunNotFound):
        job_with_runs(store, "slurm:lab:43")


def test_a_node_that_did_less_than_the_others_is_an_insight(store: Store) -> None:
    """It is an insight on the job, since no single run shows it."""
    for number, efficiency in ((4, 0.8), (5, 0.8), (6, 0.1)):
        insert_run(store, member(number, efficiency=efficiency))
    assert "node_imbalance" in job_page(store)[0]["insights"]


def test_a_job_is_found_by_any_of_its_nodes_and_filters(store: Store) -> None:
    """By host, number and partition; unallocated energy only on request."""
    insert_run(store, member(2))
    insert_run(store, member(3))
    insert_run(store, record(7, kind="unallocated", name="unallocated", job=None, host="n2"))
    for wanted in (JobFilter(host="n3"), JobFilter(text=":42"), JobFilter(partition="gpu")):
        assert [row["job_key"] for row in job_page(store, wanted)] == [KEY]
    assert [r["name"] for r in job_page(store, JobFilter(kind="unallocated"))] == ["unallocated"]
    assert job_totals(store).energy_j == 500.0


def test_a_job_shrinks_and_goes_with_its_runs(store: Store, tmp_path: Path) -> None:
    """Deleting a run is as if it had never existed; a copy of a store has the same jobs."""
    insert_run(store, member(2))
    insert_run(store, member(3))
    with open_store(tmp_path / "copy.db") as other:
        copy_runs(store, other)
        assert job_page(other) == job_page(store)
    delete_run(store, "2026-003")
    assert [(r["nodes"], r["energy_j"]) for r in job_page(store)] == [(1, 200.0)]
    delete_run(store, "2026-002")
    assert job_page(store) == []


def test_what_is_in_quarantine_or_counted_elsewhere_is_not_added(store: Store) -> None:
    """A job with such a part is marked incomplete."""
    insert_run(store, member(2))
    insert_run(store, member(3, quarantine="negative", counted=False))
    insert_run(store, member(4, kind="command", host="n2"))
    job = job_page(store)[0]
    assert (job["energy_j"], job["runs"], job["quarantined"]) == (200.0, 3, 1)
    assert not job["complete"]


def test_a_job_of_which_a_node_said_nothing_is_not_complete(store: Store) -> None:
    """Slurm reports three nodes: the sum of two is incomplete until the third arrives."""
    facts = {**FACTS, "nodes": "3"}
    job = {"id": "42", "kind": "slurm", "scheduler": facts}
    for number in (1, 2):
        insert_run(store, member(number, job=job))
    row = job_page(store)[0]
    assert (row["nodes"], row["nodes_expected"], row["complete"]) == (2, 3, False)
    insert_run(store, member(3, job=job))
    row = job_page(store)[0]
    assert (row["nodes"], row["nodes_expected"], row["complete"]) == (3, 3, True)


def test_nodes_that_arrive_at_the_same_time_are_all_added(store: Store) -> None:
    """No transaction overwrites another's addition."""
    numbers = range(1, 13)
    threads = [
        threading.Thread(target=insert_run, args=(store, member(number))) for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job = job_page(store)[0]
    assert (job["nodes"], job["energy_j"]) == (12, 100.0 * sum(numbers))


def test_a_page_of_the_newest_jobs_does_not_sort_them_all(store: Store) -> None:
    """The database reads them in the order of an index."""
    how = "EXPLAIN QUERY PLAN" if store.place.path else "SET enable_seqscan = off; EXPLAIN"
    query = "SELECT * FROM jobs WHERE kind != 'x' ORDER BY started_wall_s DESC, first_run_id DESC"
    with store.reading() as connection:
        for statement in f"{how} {query} LIMIT 25".split("; "):
            found = connection.execute(text(statement))
        plan = " ".join(str(row) for row in found)
    assert "jobs_by_start" in plan
