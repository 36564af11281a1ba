"""Promises of the lock: one process per experiment, and programs of a killed one are ended."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import DeviceBusy
from wattloop.store.database import Store, open_store
from wattloop.trials.experiment_lock import end_leftovers, lock_experiment, program_variables


def test_lock_of_a_file_that_its_owner_removes_is_a_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner ends while its lock is being opened: a third process still finds it locked."""
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


def test_lock_of_a_store_in_memory_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that no other process can see needs no lock in the working directory."""
    monkeypatch.chdir(tmp_path)
    with open_store(":memory:") as store, lock_experiment(store, "e"):
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def programs() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _program(programs: ExitStack, store: Store, experiment_id: str) -> subprocess.Popen[bytes]:
    """Start a program as a trial of this experiment, in the store of this process or of another."""
    program = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, **program_variables(store, experiment_id)}
    )
    programs.callback(program.wait)
    programs.callback(program.kill)
    return program


def test_leftovers_are_those_of_the_same_store(
    store: Store, tmp_path: Path, programs: ExitStack
) -> None:
    """Another store's experiment of the same name runs undisturbed; this store's is ended, also by
    a link to the same store.
    """
    (tmp_path / "link").symlink_to(tmp_path)
    link = programs.enter_context(open_store(str(tmp_path / "link" / "runs.db")))
    other = programs.enter_context(open_store(str(tmp_path / "other.db")))
    ours = _program(programs, store, "e")
    theirs = [_program(programs, other, "e"), _program(programs, store, "e2")]
    assert end_leftovers(link, "e") == [ours.pid]
    assert ours.wait(600) == -9
    assert [program.poll() for program in theirs] == [None, None]


def test_store_in_memory_ends_no_program(programs: ExitStack, tmp_path: Path) -> None:
    """A killed process takes such a store with it, so no later runner finds leftovers."""
    memory, other = (programs.enter_context(open_store(":memory:")) for _ in range(2))
    theirs = _program(programs, other, "e")
    assert end_leftovers(memory, "e") == []
    assert theirs.poll() is None
