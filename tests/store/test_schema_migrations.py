"""Promises of migrations: nothing of an old store is lost, under any opener and any failure."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from tests.store.places import WHERE, empty_place
from tests.store.test_job_rows import FACTS, member
from tests.store.version1 import DATA, RUNS, make_version1
from wattloop.core.errors import StoreError
from wattloop.store import location, schema
from wattloop.store.database import open_store
from wattloop.store.job_queries import fill_jobs, job_page, job_totals
from wattloop.store.runs import find_run, insert_run, list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series


@pytest.fixture(params=WHERE)
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Write a store of version 1."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place(request.param, tmp_path) as location:
        make_version1(location)
        yield location


def test_a_store_of_version_1_opens_with_all_it_holds(old: str) -> None:
    """Runs, joules and samples are unchanged, and two nodes of one Slurm job become one job."""
    with open_store(old) as store:
        assert sorted(r.run_id for r in list_runs(store)) == RUNS
        for row in DATA["rows"]["runs"]:
            assert find_run(store, row["run_id"]).energy_j == row["energy_j"]
        record = find_run(store, RUNS[0])
        times_s, values = read_samples(store, RUNS[0], find_series(record.feeds, "gpu:0"))
        assert (len(times_s), set(values)) == (200, {300.0})
        assert fill_jobs(store) == 3
        assert fill_jobs(store) == 0
        jobs, totals = job_page(store), job_totals(store)
    energies_j = {row["run_id"]: row["energy_j"] for row in DATA["rows"]["runs"]}
    assert [(j["name"], j["nodes"], j["job_key"]) for j in jobs] == [
        ("alone", 1, RUNS[2]),
        ("train", 2, "slurm:lab:4711"),
    ]
    assert jobs[1]["energy_j"] == energies_j[RUNS[0]] + energies_j[RUNS[1]]
    assert totals.energy_j == pytest.approx(sum(energies_j.values()))


@pytest.mark.parametrize("where", WHERE)
def test_a_store_of_version_2_goes_on_with_its_jobs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that arrives after the migration is added to the earlier ones."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place(where, tmp_path) as location:
        with open_store(location) as store:
            insert_run(store, member(1))
            insert_run(store, member(2))
            with store.writing() as connection:
                connection.execute(text("ALTER TABLE run_facts DROP COLUMN job_nodes"))
                connection.execute(text("ALTER TABLE jobs DROP COLUMN nodes_expected"))
                connection.execute(text("UPDATE meta SET value = '2' WHERE key = 'schema_version'"))
        with open_store(location) as store:
            (before,) = job_page(store)
            job = {"id": "42", "kind": "slurm", "scheduler": {**FACTS, "nodes": "4"}}
            insert_run(store, member(3, job=job))
            (after,) = job_page(store)
    assert (before["energy_j"], before["nodes_expected"]) == (300.0, None)
    assert (after["energy_j"], after["nodes"], after["nodes_expected"]) == (600.0, 3, 4)
    assert not after["complete"]


def test_many_may_open_an_old_store_at_once(old: str) -> None:
    """One process migrates it; the others wait and find it new."""
    faults: list[Exception] = []

    def work() -> None:
        try:
            with open_store(old, timeout_s=60) as store:
                assert len(list_runs(store)) == 3
                fill_jobs(store)
        except (StoreError, AssertionError) as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with open_store(old) as store:
        assert len(job_page(store)) == 2


def test_a_migration_that_fails_leaves_the_old_store_whole(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial step is rolled back, and the next attempt finds version 1."""

    def fails(connection: Connection) -> None:
        schema._from_1(connection)
        connection.execute(text("ALTER TABLE no_such_table ADD COLUMN x INTEGER"))

    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", {1: fails})
        with pytest.raises(StoreError):
            open_store(old)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "VERSION", 1)
        patched.setattr(schema, "is_current", lambda *_: True)
        with open_store(old) as store, store.reading() as connection:
            found = inspect(connection)
            assert "jobs" not in found.get_table_names()
            assert "job_key" not in {column["name"] for column in found.get_columns("runs")}
            version = "SELECT value FROM meta WHERE key = 'schema_version'"
            assert connection.execute(text(version)).scalar() == "1"
    with open_store(old) as store:
        assert len(list_runs(store)) == 3


def test_an_old_store_on_a_read_only_disk_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be migrated there, but its runs can be listed."""
    path = tmp_path / "runs.db"
    make_version1(str(path))
    monkeypatch.setattr(location.StoreLocation, "is_read_only", property(lambda self: True))
    with open_store(path) as store:
        assert len(list_runs(store)) == 3
