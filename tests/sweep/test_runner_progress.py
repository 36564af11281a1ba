"""Promises of progress: the remaining time is that of the points' remaining runs."""

import pytest

from wattloop.sweep.result import repeated_trials
from wattloop.sweep.runner import estimate_progress
from wattloop.sweep.spec import Repeats
from wattloop.trials.trial import TrialOutcome, TrialStatus

RULE = Repeats.model_validate({"min": 3, "max": 3})


def test_the_remaining_time_is_whole_programs_and_pauses() -> None:
    """Two runs of 10 s of one point, three of a similar point, and 3 s between runs."""
    known = TrialOutcome(status=TrialStatus.OK, time_s=1.0, lasted_s=10.0)
    found = estimate_progress(
        [repeated_trials([known], None), repeated_trials([], None)], RULE, None, [2.0, 4.0]
    )
    assert (found.done, found.left) == (1, 5)
    assert found.time_left_s == pytest.approx(5 * 10.0 + 5 * 3.0)


def test_there_is_no_estimate_before_the_first_run() -> None:
    """An unknown time is not zero."""
    found = estimate_progress([repeated_trials([], None)], RULE, None, [])
    assert (found.left, found.time_left_s, found.energy_left_j) == (3, None, None)
