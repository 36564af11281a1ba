"""Promises of job keys: a reused number means two jobs, in any order of arrival."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.places import WHERE, empty_place
from tests.store.test_job_rows import FACTS, KEY, member
from wattloop.core.results import RunStatus
from wattloop.store.database import Store, open_store
from wattloop.store.job_queries import job_page, job_with_runs
from wattloop.store.runs import RunRecord, insert_run

DAY_S = 86_400.0
FIRST_S = 1_700_000_000.0


@pytest.fixture(params=WHERE)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with empty_place(request.param, tmp_path) as location, open_store(location) as found:
        yield found


def of_node(number: int, node: int, after_s: float = 0.0, **changes: Any) -> RunRecord:
    """Return run `number` of job 42 on a node, some seconds long."""
    facts = {**FACTS, "restart": changes.pop("restart", "0")}
    job = {"id": "42", "kind": "slurm", "scheduler": facts}
    usual = {"host": f"n{node}", "job": job, "started_wall_s": FIRST_S + after_s, "user": "ada"}
    found: RunRecord = member(number, **{**usual, **changes})
    return found


def energies_j(store: Store) -> dict[str, float]:
    return {row["job_key"]: row["energy_j"] for row in job_page(store)}


@pytest.mark.parametrize(
    ("after_s", "changes"),
    [
        (100.0, {}),  # the same node and the same start of the job: it has already ended
        (100.0, {"user": "bob"}),
        (40 * DAY_S, {"restart": "1"}),  # a requeued job within no patience
    ],
)
def test_a_number_given_out_again_is_another_job(
    store: Store, after_s: float, changes: dict[str, Any]
) -> None:
    """The newest job has the plain key, which Slurm's users know; their joules are separate."""
    insert_run(store, of_node(1, 1))
    insert_run(store, of_node(2, 1, after_s, **changes))
    assert energies_j(store) == {KEY: 200.0, f"{KEY}@2023-11-14T22:13:20Z": 100.0}


@pytest.mark.parametrize(
    "changes",
    [{"restart": "1"}, {"host": "n2"}, {"kind": "command", "user": "root"}, {"user": ""}],
)
def test_what_belongs_to_a_job_stays_with_it(store: Store, changes: dict[str, Any]) -> None:
    """A requeue, another node, a measurement in a container, or a silent Slurm."""
    insert_run(store, of_node(1, 1))
    after_s = 0.0 if changes == {"user": ""} else 100.0
    insert_run(store, of_node(2, 2 if after_s == 0.0 else 1, after_s, **changes))
    assert list(energies_j(store)) == [KEY]


def test_a_run_that_went_on_after_its_agent_was_away_is_the_same_job(store: Store) -> None:
    """The first part crashed without an agent; the second has the same start of the job."""
    insert_run(store, of_node(1, 1, status=RunStatus.DIED))
    insert_run(store, of_node(2, 1, 1_000.0))
    assert energies_j(store) == {KEY: 300.0}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_nodes_of_two_jobs_of_one_number_come_in_any_order(
    store: Store, order: tuple[int, ...]
) -> None:
    """Each job has its own two nodes, even when a node of the first arrives last."""
    made = [
        *(of_node(1, 1), of_node(2, 2)),
        *(of_node(3, 1, 50 * DAY_S, user="bob"), of_node(4, 2, 50 * DAY_S, user="bob")),
    ]
    for number in order:
        insert_run(store, made[number])
    found = {row["user_name"]: row for row in job_page(store)}
    assert {user: row["energy_j"] for user, row in found.items()} == {"ada": 300.0, "bob": 700.0}
    assert found["bob"]["job_key"] == KEY
    _, runs = job_with_runs(store, found["ada"]["job_key"])
    assert [run["host"] for run in runs] == ["n1", "n2"]
