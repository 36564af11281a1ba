"""Promises of docs/metrics.md: counters of the server agree with the store, and never fall."""

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.fleet.agent.test_live_metrics import promtool_agrees, values
from tests.store.test_job_queries import record
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import Store, open_store
from wattloop.store.retention import Retention, apply_retention
from wattloop.store.runs import delete_run, delete_run_in, insert_run

NAME = "wattloop_stored_energy_joules_total"
NOW_S = 1_800_000_000.0
YEAR_S = 31_557_600.0


def insert(store: Store, number: int, energy_j: float, **changes: Any) -> None:
    whole = record(number).result
    domain = whole.domains[0]._replace(energy_j=energy_j)
    result = whole._replace(domains=(domain,))
    usual = {"started_wall_s": NOW_S, "run_id": f"run-{number}", "result": result}
    insert_run(store, record(number, **{**usual, **changes}))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_joules_of_an_hour_agree_with_the_store(tmp_path: Path) -> None:
    """Bar: `increase()` over an hour within 0.5% of the joules that were stored in it, while
    retention and users delete much larger runs, the server restarts, and an old run is imported.
    """
    place, scraped, dice = tmp_path / "runs.db", [], random.Random(3)
    with open_store(place) as store:
        for number in range(4):
            insert(store, number, 1e9, started_wall_s=NOW_S - 2 * YEAR_S)
        stored_j = {"p": 0.0, "new": 0.0}
        client = TestClient(create_app(ServeOptions(store=str(place))))
        for scrape in range(240):
            project = "new" if scrape > 100 and scrape % 2 else "p"
            energy_j = dice.uniform(0.9e5, 1.1e5)
            when = {"started_wall_s": NOW_S - YEAR_S} if scrape == 200 else {}
            job = {"id": "1", "scheduler": {"cluster": "c1", "project": project}}
            insert(store, 1_000 + scrape, energy_j, job=job, **when)
            stored_j[project] += energy_j
            if scrape == 50:
                assert delete_run(store, "run-0")
            if scrape == 120:
                client = TestClient(create_app(ServeOptions(store=str(place))))
            if scrape == 150:
                policy = Retention(samples_s=YEAR_S, levels_s=YEAR_S, runs_s=1.5 * YEAR_S)
                assert apply_retention(store, policy, now_wall_s=NOW_S + 1e6).runs == 3
            scraped.append(client.get("/metrics").text)
    shown = [sum(values(text, NAME)) for text in scraped]
    assert shown == sorted(shown)
    checks = [
        (
            f'abs(sum by (project) (increase({NAME}{{project="{project}"}}[1h])) / {joules} - 1) '
            "< bool 0.005",
            f'{{project="{project}"}}',
        )
        for project, joules in stored_j.items()
    ]
    promtool_agrees(tmp_path / "stored.yml", scraped, checks)
    check = ["promtool", "check", "metrics"]
    done = subprocess.run(check, input=scraped[-1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_is_not_believed_is_in_no_total(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with open_store(place) as store:
        insert(store, 1, 100.0)
        insert(store, 2, 1e15, quarantine="impossible power")
    text = TestClient(create_app(ServeOptions(store=str(place)))).get("/metrics").text
    assert values(text, "wattloop_energy_joules") == values(text, NAME) == [100.0]
    assert values(text, "wattloop_stored_runs_total") == [1.0]


def test_counters_do_not_fall_when_a_run_is_removed_without_a_note(tmp_path: Path) -> None:
    """As an earlier release, or a copy of the store that is put back, would do."""
    place = tmp_path / "runs.db"
    with open_store(place) as store:
        insert(store, 1, 100.0)
        insert(store, 2, 50.0)
        client = TestClient(create_app(ServeOptions(store=str(place))))
        assert values(client.get("/metrics").text, NAME) == [150.0]
        with store.writing() as connection:
            delete_run_in(connection, "run-1")
        assert values(client.get("/metrics").text, NAME) == [150.0]
        insert(store, 3, 300.0)
        assert values(client.get("/metrics").text, NAME) == [350.0]


def test_counters_do_not_fall_when_a_run_is_deleted_before_a_restart(tmp_path: Path) -> None:
    """Promise: not by a rounding either, since a fall would add all joules of the store again."""
    place, dice, seen = tmp_path / "runs.db", random.Random(1), []
    with open_store(place) as store:
        for number in range(20):
            insert(store, number, dice.uniform(1e3, 1e6))
        for number in range(20):
            client = TestClient(create_app(ServeOptions(store=str(place))))
            seen += values(client.get("/metrics").text, NAME)
            assert delete_run(store, f"run-{number}")
    assert len(seen) == 20
    assert seen == sorted(seen)
