"""Promises of history: time and power of earlier jobs of the same user and name."""

from pathlib import Path
from typing import Any

import pytest

from tests.schedule.estimates.stored_runs import job_run
from wattloop.core.results import RunStatus
from wattloop.schedule.estimates.history import History
from wattloop.store.database import Store, open_store
from wattloop.store.runs import insert_run


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path / "runs.db") as place:
        yield place


def test_median_time_and_mean_power_with_their_spread(store: Store) -> None:
    """It uses jobs on as many GPUs, and states how many they were."""
    for number, (seconds, watts) in enumerate([(100, 200), (110, 220), (400, 240)], start=1):
        insert_run(store, job_run(number, seconds, watts))
    insert_run(store, job_run(9, 7.0, 100.0, gpus=1))
    past = History(store).of("ada", "train", 2)
    assert past is not None
    assert (past.jobs, past.gpus, past.time_s, past.provenance) == (3, 2, 110.0, "simulated")
    assert past.gpu_w == pytest.approx(220.0)
    assert past.time_low_s == pytest.approx(102.0) and past.time_high_s == pytest.approx(342.0)
    assert past.gpu_low_w == pytest.approx(204.0) and past.gpu_high_w == pytest.approx(236.0)


def test_two_runs_are_an_anecdote(store: Store) -> None:
    """Runs of other users, failed ones, and those on other GPU counts do not count either."""
    insert_run(store, job_run(1, 100, 200))
    insert_run(store, job_run(2, 100, 200))
    insert_run(store, job_run(3, 100, 200, user="bob"))
    insert_run(store, job_run(4, 100, 200, name="train%"))
    insert_run(store, job_run(5, 100, 200, status=RunStatus.FAILED))
    insert_run(store, job_run(6, 100, 200, counted=False))
    insert_run(store, job_run(7, 100, 200, gpus=4))
    assert History(store).of("ada", "train", 2) is None


def test_the_nodes_of_a_job_are_one_job(store: Store) -> None:
    """Two runs with one GPU each and the same job are a job on two GPUs."""
    for number in range(1, 4):
        job = {"id": str(number)}
        insert_run(store, job_run(2 * number, 50.0, 100.0, gpus=1, job=job, host="n1"))
        insert_run(store, job_run(2 * number + 1, 60.0, 100.0, gpus=1, job=job, host="n2"))
    past = History(store).of("ada", "train", 2)
    assert past is not None and past.jobs == 3 and past.time_s == 60.0


def test_a_job_that_ran_again_counts_as_it_ran_last(store: Store) -> None:
    """A requeued job has two runs on a node, but not twice as many GPUs."""
    for number in range(1, 4):
        job = {"id": str(number)}
        insert_run(store, job_run(2 * number, 9.0, 100.0, job=job, host="n1"))
        insert_run(store, job_run(2 * number + 1, 60.0, 100.0, job=job, host="n1"))
    past = History(store).of("ada", "train", 2)
    assert past is not None and past.jobs == 3 and past.time_s == 60.0


def test_asked_again_within_a_minute_the_store_is_left_alone(store: Store) -> None:
    """After a minute the store is read again."""
    now = [0.0]
    history = History(store, now_s=lambda: now[0])
    assert history.of("ada", "train", 2) is None
    for number in range(1, 4):
        insert_run(store, job_run(number, 100, 200))
    assert history.of("ada", "train", 2) is None
    now[0] = 61.0
    assert history.of("ada", "train", 2) is not None
