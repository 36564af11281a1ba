"""Promises of repeats: no more than needed, outliers are replaced, failures end a point."""

import pytest

from wattloop.sweep.result import repeated_trials
from wattloop.sweep.spec import Repeats
from wattloop.trials.trial import ScopeEnergy, TrialOutcome, TrialStatus


def ran(*times_s: float, power_w: float = 100.0) -> list[TrialOutcome]:
    return [
        TrialOutcome(
            status=TrialStatus.OK,
            time_s=t,
            scopes={
                "gpu": ScopeEnergy(energy_j=power_w * t, uncertainty_j=0.0, provenance="simulated")
            },
        )
        for t in times_s
    ]


def rule(least: int, most: int, target: float | None = None) -> Repeats:
    return Repeats.model_validate({"min": least, "max": most, "target": target})


def test_without_a_target_every_repeat_is_run() -> None:
    """As many as requested, and no more."""
    assert repeated_trials([], "gpu").missing(rule(3, 3)) == 3
    assert repeated_trials(ran(1.0, 1.1), "gpu").missing(rule(3, 3)) == 1
    assert repeated_trials(ran(1.0, 1.1, 1.2), "gpu").missing(rule(3, 3)) == 0


def test_with_a_target_repeats_stop_when_the_interval_is_tight() -> None:
    """Both time and energy are within the target, after the least number of runs."""
    tight, wide = ran(1.0, 1.0001, 0.9999), ran(1.0, 1.1, 0.9)
    assert repeated_trials(tight, "gpu").missing(rule(3, 10, 1.0)) == 0
    assert repeated_trials(tight[:2], "gpu").missing(rule(3, 10, 1.0)) == 1
    assert repeated_trials(wide, "gpu").missing(rule(3, 10, 1.0)) == 7


def test_the_remaining_repeats_are_estimated() -> None:
    """The estimate uses the scatter so far: a target twice as wide needs fewer runs."""
    some = ran(1.0, 1.01, 0.99, 1.0)
    assert 0 < repeated_trials(some, "gpu").missing(rule(3, 30, 0.8)) < 10
    assert repeated_trials(some, "gpu").missing(rule(3, 30, 0.4)) > 10


def test_an_outlier_is_left_out_and_replaced() -> None:
    """It is marked, not deleted, and a point does not repeat for ever because of outliers."""
    state = repeated_trials(ran(1.0, 1.01, 0.99, 1.0, 3.0), "gpu")
    assert state.outlying == (False, False, False, False, True)
    assert len(state.outcomes) == 5
    assert state.time_s is not None
    assert state.time_s.mean == pytest.approx(1.0)
    assert state.missing(rule(5, 5)) == 1
    assert repeated_trials(ran(1.0, 1.01, 0.99, 1.0, 3.0, 4.0, 5.0), "gpu").missing(rule(5, 5)) == 0


def test_an_outlier_in_energy_alone_counts_too() -> None:
    """The load of another program shows in joules first."""
    odd = [*ran(1.0, 1.0, 1.0, 1.0), *ran(1.0, power_w=170.0)]
    assert repeated_trials(odd, "gpu").outlying == (False, False, False, False, True)
    assert repeated_trials(odd, None).outlying == (False,) * 5


def test_a_point_that_fails_twice_is_given_up() -> None:
    """Some settings hang on some machines; the other points continue."""
    failed = TrialOutcome(status=TrialStatus.TIMEOUT)
    assert repeated_trials([failed], "gpu").missing(rule(3, 3)) == 3
    assert repeated_trials([failed, failed], "gpu").missing(rule(3, 3)) == 0


def test_a_point_that_works_as_often_as_it_fails_is_repeated() -> None:
    """Two failures end a point only if it fails more often than it works."""
    fault = TrialOutcome(status=TrialStatus.FAILED)
    assert repeated_trials([fault, fault], "gpu").missing(rule(4, 4)) == 0
    assert repeated_trials([*ran(1.0), fault, fault], "gpu").missing(rule(4, 4)) == 0
    assert repeated_trials([*ran(1.0, 1.1), fault, fault], "gpu").missing(rule(4, 4)) == 2
