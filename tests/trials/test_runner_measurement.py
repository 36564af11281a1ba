"""Promises of `inner_window`: a program marks the part of it that counts."""

import sys
from pathlib import Path

import pytest

from tests.support.powercap_driver import Driver
from tests.support.synthetic_energy import about_j
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial, TrialOutcome, TrialStatus

SLOW_START = """
import time, wattloop
time.sleep(0.3)
with wattloop.measure("whole"):
    time.sleep(0.1)
    for epoch in range(2):
        with wattloop.measure("epoch"):
            time.sleep(0.2)
time.sleep(0.3)
"""


def test_only_the_window_counts(store: Store, settings: Settings, driver: Driver) -> None:
    """Time, energy and peak are those of the window, read from outside; the program lasted
    longer.
    """
    outcome = _run(store, settings, "whole", [sys.executable, "-c", SLOW_START])
    assert outcome.ok
    assert outcome.time_s is not None
    assert outcome.lasted_s is not None
    assert outcome.time_s >= 0.5
    assert outcome.lasted_s >= outcome.time_s + 0.6
    assert outcome.scopes["cpu"].energy_j == about_j(50.0, outcome.time_s, driver, rel=0.2)
    assert outcome.scopes["cpu"].peak_w is not None


def test_windows_of_one_name_count_from_the_first_to_the_last(
    store: Store, settings: Settings
) -> None:
    """Epochs of two processes, one of them within a run of its own, make one window."""
    nested = '"$0" -m wattloop run -- "$0" -c "$1"; "$0" -c "$1"'
    outcome = _run(store, settings, "epoch", ["sh", "-c", nested, sys.executable, SLOW_START])
    assert outcome.ok, outcome.message
    assert outcome.time_s is not None
    assert outcome.lasted_s is not None
    assert 0.4 + 0.7 + 0.4 <= outcome.time_s <= outcome.lasted_s - 0.7


def test_a_program_of_any_language_marks_its_part_with_a_run(
    store: Store, settings: Settings
) -> None:
    """`wattloop run --name` inside a script makes a window, too."""
    inner = f"{sys.executable} -m wattloop run --name part -- sleep 0.3"
    outcome = _run(store, settings, "part", ["sh", "-c", f"sleep 0.2; {inner}; sleep 0.2"])
    assert outcome.time_s is not None
    assert outcome.lasted_s is not None
    assert outcome.ok, outcome.message
    assert 0.3 <= outcome.time_s <= outcome.lasted_s - 0.4


def test_a_missing_window_fails_the_trial(store: Store, settings: Settings) -> None:
    """A typing error gets the existing names; a program without windows gets the instructions."""
    typo = _run(store, settings, "epoc", [sys.executable, "-c", SLOW_START])
    assert typo.status is TrialStatus.FAILED
    assert typo.message == "it measured no window 'epoc', but 'epoch', 'whole'"
    nothing = _run(store, settings, "train", ["true"])
    assert nothing.status is TrialStatus.FAILED
    assert 'with wattloop.measure("train"):' in nothing.message


def test_the_window_of_the_program_is_in_the_runners_store(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds for a store named by an option, and for a program in another folder."""
    monkeypatch.delenv("WATTLOOP_STORE", raising=False)
    program = f"import os; os.chdir({str(tmp_path)!r})\n" + SLOW_START
    assert _run(store, settings, "whole", [sys.executable, "-c", program]).ok


def _run(store: Store, settings: Settings, window: str, command: list[str]) -> TrialOutcome:
    with TrialRunner(store, "e", settings) as runner:
        return runner.run(Trial(key=f"{window} {command}", command=command, window=window))
