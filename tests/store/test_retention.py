"""Promises of retention: old samples are removed, joules stay, and an interruption does no harm."""

import math
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.places import WHERE, empty_place
from wattloop.core.errors import ConfigError
from wattloop.measure.job_energy import job_energy
from wattloop.store.database import Store, open_store
from wattloop.store.job_queries import find_job_members, job_totals, stored_journal
from wattloop.store.journal import JournalWriter
from wattloop.store.journal_import import import_orphaned
from wattloop.store.retention import Dropped, Retention, apply_retention, parse_age
from wattloop.store.run_record import read_windows
from wattloop.store.runs import (
    delete_run,
    delete_run_in,
    find_run,
    insert_run_in,
    list_runs,
    stored_totals,
)
from wattloop.store.sample_queries import read_curve, read_samples
from wattloop.store.samples import find_series
from wattloop.testing.journals import close_journal, ended, header, write_journal

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0 + 400 * DAY_S
AGES_D = {"a-old": 390, "b-older": 100, "c-month": 40, "d-new": 5}


@pytest.fixture(params=WHERE)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """A store with four runs of a minute each, 5 to 390 days old."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place(request.param, tmp_path) as location, open_store(location) as found:
        for run_id, days in AGES_D.items():
            head = header(run_id, started_wall_s=NOW_S - days * DAY_S)
            write_journal(found.journals, run_id, seconds=60, head=head, end=ended())
        import_orphaned(found, close_journal)
        yield found


def points(store: Store, run_id: str) -> tuple[int, int]:
    """Return the number of samples and of curve points."""
    series = find_series(find_run(store, run_id).feeds, "gpu:0")
    return len(read_samples(store, run_id, series)[0]), len(read_curve(store, run_id, series))


def test_samples_go_and_curves_and_joules_stay(store: Store) -> None:
    """For runs older than the age; the run itself says so."""
    before = {r.run_id: r.energy_j for r in list_runs(store)}
    total_j = job_totals(store).energy_j
    windows = read_windows(store, "a-old")
    policy = Retention(samples_s=30 * DAY_S)
    planned = apply_retention(store, policy, dry_run=True, now_wall_s=NOW_S)
    assert points(store, "a-old") == (600, 600)
    done = apply_retention(store, policy, now_wall_s=NOW_S)
    assert done == planned
    assert (done.samples, done.levels, done.runs) == (3, 0, 0)
    assert done.payload_b > 0
    for run_id in ("a-old", "b-older", "c-month"):
        samples, drawn = points(store, run_id)
        assert samples == 0
        assert drawn >= 6
    assert points(store, "d-new") == (600, 600)
    assert {r.run_id: r.energy_j for r in list_runs(store)} == before
    assert job_totals(store).energy_j == total_j
    assert read_windows(store, "a-old") == windows
    assert any("dropped" in note for note in find_run(store, "a-old").notes)
    assert apply_retention(store, policy, now_wall_s=NOW_S) == Dropped()


def test_a_job_of_old_runs_still_has_its_energy(store: Store) -> None:
    """`runs job` adds up samples; where they are removed, it uses each run's result."""
    job = {"id": "7", "kind": "slurm", "rank": None, "local_rank": None, "world_size": None}
    for run_id, host in (("j1", "n1"), ("j2", "n2")):
        head = header(run_id, host=host, job=job, started_wall_s=NOW_S - 50 * DAY_S)
        write_journal(store.journals, run_id, seconds=60, head=head, end=ended())
    import_orphaned(store, close_journal)
    apply_retention(store, Retention(samples_s=30 * DAY_S), now_wall_s=NOW_S)
    members = find_job_members(store, "7")
    found = job_energy("7", members.records, lambda r: stored_journal(store, r))
    assert found.energy_j == 7_000.0


def test_a_curve_without_its_samples_has_the_same_height(store: Store) -> None:
    """Means over some seconds of 300 W are 300 W."""
    apply_retention(store, Retention(samples_s=DAY_S), now_wall_s=NOW_S)
    series = find_series(find_run(store, "d-new").feeds, "gpu:0")
    curve = read_curve(store, "d-new", series)
    assert [round(value) for value in curve.mean] == [300] * len(curve)


def test_samples_that_nothing_coarser_stands_for_stay(store: Store) -> None:
    """A run of one reading has no means, so its samples are the curve."""
    head = header("short", started_wall_s=NOW_S - 50 * DAY_S)
    writer = JournalWriter(store.journals / "short.journal", head)
    writer.samples(1, 1, array("d", [1_000.5]), array("d", [300.0]))
    writer.end(ended())
    writer.close()
    import_orphaned(store, close_journal)
    apply_retention(store, Retention(samples_s=30 * DAY_S), now_wall_s=NOW_S)
    assert points(store, "short") == (1, 1)


def test_curves_and_whole_runs_go_at_their_own_ages(store: Store) -> None:
    """A run without curves still has its energy; a removed run is in no list."""
    policy = Retention(samples_s=30 * DAY_S, levels_s=90 * DAY_S, runs_s=365 * DAY_S)
    planned = apply_retention(store, policy, dry_run=True, now_wall_s=NOW_S)
    done = apply_retention(store, policy, now_wall_s=NOW_S)
    assert done == planned
    assert (done.samples, done.levels, done.runs) == (1, 1, 1)
    assert sorted(r.run_id for r in list_runs(store)) == ["b-older", "c-month", "d-new"]
    assert points(store, "b-older") == (0, 0)
    assert find_run(store, "b-older").energy_j == 3_500.0
    assert job_totals(store).runs == 3


def test_totals_of_deleted_runs_are_kept(store: Store) -> None:
    """Promise: totals of all that ever was have what was deleted, and what was replaced, once."""
    _, (before,) = stored_totals(store)
    assert before["runs"] == 4
    assert before["energy_j"] == pytest.approx(4 * 3_500.0)
    year = 365 * DAY_S
    policy = Retention(samples_s=year, levels_s=year, runs_s=year)
    apply_retention(store, policy, now_wall_s=NOW_S)
    found = threading.Barrier(4)

    def remove() -> None:
        found.wait()
        delete_run(store, "b-older")

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.writing() as connection:
        record = find_run(store, "c-month")
        delete_run_in(connection, "c-month")
        insert_run_in(connection, record)
    now, ever = stored_totals(store)
    assert ever == [before]
    assert [row["runs"] for row in now] == [2]


def test_it_can_be_stopped_and_goes_on_where_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works in batches of runs, each of them whole."""
    monkeypatch.setattr("wattloop.store.retention.AT_ONCE", 1)
    stop = threading.Event()
    policy = Retention(samples_s=30 * DAY_S)
    first = apply_retention(store, policy, now_wall_s=NOW_S, stop=stop, report=lambda _: stop.set())
    assert first.samples == 1
    assert apply_retention(store, policy, now_wall_s=NOW_S).samples == 2


def test_ages_are_written_as_people_do() -> None:
    """An invalid age is refused before any sample is removed."""
    assert parse_age("12h") == 43_200
    assert parse_age("30d") == 30 * DAY_S
    assert parse_age("forever") == math.inf
    assert Retention.parse("samples=30d,levels=1y") == Retention(
        samples_s=30 * DAY_S, levels_s=365.25 * DAY_S
    )
    for wrong in ("samples", "samples=soon", "all=1d", "samples=2y,levels=1y", "runs=1d"):
        with pytest.raises(ConfigError):
            Retention.parse(wrong)
