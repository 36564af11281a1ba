"""Promises of experiments in stores of earlier versions; the contract covers every store."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import update

from wattloop.core.errors import StoreError
from wattloop.store import location
from wattloop.store.database import open_store
from wattloop.store.experiments import (
    Experiment,
    begin_trial,
    create_experiment,
    list_experiments,
    new_experiment_id,
    read_trials,
)
from wattloop.store.runs import RunRecord, insert_run, list_runs
from wattloop.store.schema import trials


def old_store(path: Path) -> Path:
    """Write a store of the first release: version 1, without the tables of experiments."""
    with open_store(path) as store:
        insert_run(store, RunRecord(run_id="r1"))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE trials")
        connection.execute("DROP TABLE experiments")
    connection.close()
    return path


def test_a_store_of_the_first_release_gets_the_tables(tmp_path: Path) -> None:
    """Opening it adds them and keeps its runs."""
    with open_store(old_store(tmp_path / "runs.db")) as store:
        create_experiment(store, Experiment(experiment_id="e", kind="sweep"))
        assert [e.experiment_id for e in list_experiments(store)] == ["e"]
        assert [r.run_id for r in list_runs(store)] == ["r1"]


def test_an_old_store_that_cannot_be_written_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are read though tables of later versions are missing."""
    path = old_store(tmp_path / "runs.db")
    monkeypatch.setattr(location.StoreLocation, "is_read_only", property(lambda self: True))
    with open_store(path) as store:
        assert [r.run_id for r in list_runs(store)] == ["r1"]
        assert list_experiments(store) == []


def test_trials_survive_the_death_of_their_process(tmp_path: Path) -> None:
    """A process that kills itself right after `begin_trial` leaves the trial readable."""
    script = (
        "import os, sys\n"
        "from wattloop.store.database import open_store\n"
        "from wattloop.store.experiments import *\n"
        "from wattloop.store.experiments import *\n"
        "store = open_store(sys.argv[1])\n"
        "create_experiment(store, Experiment(experiment_id='e', kind='sweep'))\n"
        "begin_trial(store, 'e', 'k', {'cap': 100})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "runs.db"
    died = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert died.returncode == -9
    with open_store(path) as store:
        (trial,) = read_trials(store, "e")
        assert (trial.key, trial.status, trial.settings) == ("k", "running", {"cap": 100})
        assert begin_trial(store, "e", "k", {}).number == 0


def test_identifiers_sort_by_time_and_differ() -> None:
    """Two identifiers of the same second differ."""
    first, second = (new_experiment_id("sweep", 1_794_700_000.0) for _ in range(2))
    assert first != second
    assert first[:-5] == second[:-5] == "sweep-20261114-234640"


@pytest.mark.parametrize("value", ["half a pair: \ud800", float("inf"), 2**70, 0.1 + 0.2])
def test_what_json_writes_is_read_as_it_was(tmp_path: Path, value: object) -> None:
    """The fast parser refuses some valid trials; none of them is lost or changed."""
    body = json.dumps({"key": "k", "number": 0, "settings": {"value": value}})
    with open_store(tmp_path / "runs.db") as store:
        create_experiment(store, Experiment(experiment_id="e", kind="sweep"))
        begin_trial(store, "e", "k", {})
        with store.writing() as connection:
            connection.execute(update(trials).values(body=body))
        (trial,) = read_trials(store, "e")
    assert trial.settings == {"value": value}


def test_a_trial_that_is_no_object_is_named(tmp_path: Path) -> None:
    """A body that another program wrote is an error with the trial's key, not a traceback."""
    with open_store(tmp_path / "runs.db") as store:
        create_experiment(store, Experiment(experiment_id="e", kind="sweep"))
        begin_trial(store, "e", "k", {})
        with store.writing() as connection:
            connection.execute(update(trials).values(body="[1, 2]"))
        with pytest.raises(StoreError, match=r"trial 'k' of e cannot be read"):
            read_trials(store, "e")
