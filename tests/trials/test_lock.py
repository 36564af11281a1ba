"""Promises of `claim`: one process per experiment, however they meet."""

import fcntl
from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import DeviceBusy
from wattloop.store.database import Store, open_store
from wattloop.trials.lock import lock_experiment


def test_claim_of_a_lock_that_its_owner_removes_is_a_claim(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner ends while we open its lock: a third one still finds the experiment taken."""
    owner = lock_experiment(store, "e")
    owner.__enter__()
    lock = fcntl.flock

    def owner_ends_first(file: int, how: int) -> Any:
        monkeypatch.setattr(fcntl, "flock", lock)
        owner.__exit__(None, None, None)
        return lock(file, how)

    monkeypatch.setattr(fcntl, "flock", owner_ends_first)
    with lock_experiment(store, "e"), pytest.raises(DeviceBusy), lock_experiment(store, "e"):
        pass


def test_claim_in_memory_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that nobody else can see needs no lock in the working directory."""
    monkeypatch.chdir(tmp_path)
    with open_store(":memory:") as store, lock_experiment(store, "e"):
        assert list(tmp_path.iterdir()) == []
