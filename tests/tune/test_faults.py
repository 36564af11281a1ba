"""A search that is killed, interrupted or disturbed at any moment loses nothing it has paid for."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.tune.fault_search import (
    best_written,
    exit_code,
    held,
    in_child,
    is_over,
    paid_twice,
    search,
    status,
    trials,
    wait_for,
    winner,
)
from tests.tune.small import Halving, small_problem
from wattloop.core.errors import DeviceBusy
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import read_trials
from wattloop.tune.executors.command import CommandExecutor
from wattloop.tune.search_loop import Search
from wattloop.tune.search_store import SearchRecord, open_search


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same search, undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    search(folder)
    return folder


@pytest.mark.parametrize(("slots", "searches"), [(1, 2), (2, 1)])
def test_killed_at_any_moment(tmp_path: Path, whole: Path, slots: int, searches: int) -> None:
    """Killed again and again until it is done: each segment once, none paid twice, same winner."""
    rng = random.Random(slots)
    kills = 0
    number = 0
    # A quick machine finishes a search after few kills: then there is one more search.
    while number < searches or kills <= 4 * searches:
        broken = tmp_path / f"broken{number}"
        number += 1
        while True:
            pid = in_child(lambda: search(broken, slots))  # noqa: B023 - it ends before the next
            wait_for(broken, rng.randrange(4), pid)
            time.sleep(rng.uniform(0.0, 0.02))
            os.kill(pid, signal.SIGKILL)
            if exit_code(pid) == 0 or is_over(broken):  # or killed between its end and its exit
                break
            kills += 1
        assert paid_twice(broken) == []
        assert best_written(broken) == best_written(whole)
        assert _outcomes(broken) == _outcomes(whole)
        assert status(broken) == "finished"
        assert number < 20 * searches, "it was too fast to be killed often"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("slots", [1, 2])
def test_interrupted(tmp_path: Path, whole: Path, number: int, slots: int) -> None:
    """Ctrl-C and `kill` end it in order: it says so, and continues on request."""
    pid = in_child(lambda: search(tmp_path, slots, during=held(tmp_path, 3)))
    wait_for(tmp_path, 4, pid)
    os.kill(pid, number)
    (tmp_path / "go").touch()
    assert exit_code(pid) == 128 + number
    assert status(tmp_path) == "interrupted"
    assert best_written(tmp_path) is not None
    (tmp_path / "go").unlink()
    pid = in_child(lambda: search(tmp_path, slots, during=held(tmp_path, 0)))
    wait_for(tmp_path, 1, pid)
    os.kill(pid, signal.SIGKILL)
    exit_code(pid)
    assert best_written(tmp_path) is None, "of before it went on"
    search(tmp_path, slots)
    assert paid_twice(tmp_path) == []
    assert winner(tmp_path) == winner(whole)
    assert _outcomes(tmp_path) == _outcomes(whole)


def test_two_processes_on_one_search(tmp_path: Path) -> None:
    """The second is refused with the number of the first, which continues undisturbed."""
    pid = in_child(lambda: search(tmp_path, during=held(tmp_path, 1)))
    wait_for(tmp_path, 2, pid)
    with pytest.raises(DeviceBusy, match=f"is being run by process {pid}; wait for it"):
        search(tmp_path)
    (tmp_path / "go").touch()
    assert exit_code(pid) == 0
    assert len(trials(tmp_path)) == 15
    assert status(tmp_path) == "finished"


SUICIDAL = """
import os, signal, sys, time
width = float(sys.argv[1])
for epoch in range(1, 9):
    time.sleep(0.01)
    if width == 4 and epoch == 2:
        os.kill(os.getpid(), 9)
    print(f"accuracy={1 - 1 / (1 + epoch * width):.4f}", flush=True)
signal.pause()  # it never ends by itself, however late the search reads what it printed
"""


def test_the_process_of_a_trial_is_killed(store: Store, settings: Settings, tmp_path: Path) -> None:
    """Its trial is `killed`, with the signal; the search continues without it."""
    script = tmp_path / "train.py"
    script.write_text(SUICIDAL)
    problem = small_problem()
    strategy = Halving(problem)
    record = SearchRecord(store, open_search(store, {}, "suicidal")[0])
    command = [sys.executable, str(script), "{width}"]
    bench = CommandExecutor(command, problem, settings, folder=record.folder, tags=record.tags)
    Search(record, problem, strategy, bench).run()
    found = {t.key: t.outcome for t in read_trials(store, record.search_id)}
    assert found["w4/2"]["status"] == "killed"
    assert "signal 9" in found["w4/2"]["message"]
    assert found["w4/2"]["energy_j"] > 0
    assert strategy.best().candidate == "w2"
    assert {t: o["status"] for t, o in found.items() if t != "w4/2"} == {
        "w1/2": "paused",
        "w2/2": "paused",
        "w2/4": "paused",
        "w2/6": "paused",
    }


def _outcomes(folder: Path) -> dict[str, object]:
    own = ("told", "elapsed_s", "repeated_s", "repeated_j")
    return {t.key: {k: v for k, v in t.outcome.items() if k not in own} for t in trials(folder)}
