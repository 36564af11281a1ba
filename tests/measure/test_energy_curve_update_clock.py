"""Promises of the update clock: the period of a slow sensor, and its uncertainty."""

import pytest

from wattloop.measure.energy_curve import UpdateClock


def test_age_is_unknown_before_a_change_was_seen() -> None:
    """The age needs a phase."""
    assert UpdateClock(0.1).age(5.0) == (None, 0.0)


def test_age_counts_from_the_last_update() -> None:
    """A sensor that changed at 1.00 s with a period of 0.1 s is 30 ms old at 1.13 s."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    age_s, blur_s = clock.age(1.13)
    assert age_s == pytest.approx(0.03, abs=1e-9)
    assert 0.001 <= blur_s < 0.01


def test_age_before_the_seen_change_is_known_too() -> None:
    """Readings just before the search get an age between 0 and a period."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    age_s, _ = clock.age(0.97)
    assert age_s == pytest.approx(0.07, abs=1e-9)


def test_certainty_is_lost_with_time() -> None:
    """A declared period may be 1% off: after some seconds the phase is unknown again."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    assert clock.age(2.04)[0] is not None
    assert clock.age(60.04)[0] is None


def test_true_period_is_learned_and_holds_for_long() -> None:
    """A sensor at 0.1004 s that says 0.1 s is followed for a minute after a few searches."""
    period_s = 0.1004
    clock = UpdateClock(0.1)
    for n in (1, 2, 8, 9, 30, 31, 120, 121):
        clock.saw_change(n * period_s - 0.001, n * period_s + 0.001)
    assert clock.period_s == pytest.approx(period_s, rel=1e-3)
    at_s = 700 * period_s + 0.04
    age_s, blur_s = clock.age(at_s)
    assert age_s is not None
    assert abs(age_s - 0.04) <= blur_s


def test_change_at_an_odd_moment_does_not_spoil_the_period() -> None:
    """A sensor that was reset and updates at other times changes the phase only."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    clock.saw_change(1.149, 1.151)
    assert clock.period_s == 0.1
    assert clock.age(1.18)[0] == pytest.approx(0.03, abs=1e-9)


def test_age_too_close_to_a_tick_is_not_guessed() -> None:
    """Where it is uncertain which of two updates was read, no age is given."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    assert clock.age(1.1)[0] is None


def test_quiet_time_lies_between_two_updates() -> None:
    """Readings move away from the updates, by less than a period."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    for hundredths in range(10):
        wished_s = 1.205 + hundredths / 100
        quiet_s = clock.quiet_time_s(wished_s)
        assert wished_s <= quiet_s < wished_s + 0.1
    assert clock.quiet_time_s(1.21) == pytest.approx(1.235, abs=1e-6)


def test_two_consecutive_updates_do_not_make_the_period_less_certain() -> None:
    """A base line of one period is worse than the declared value, so the declared value stays."""
    clock = UpdateClock(0.1)
    clock.saw_change(0.999, 1.001)
    clock.saw_change(1.1, 1.102)
    assert clock.period_s == 0.1
    assert clock.age(2.04)[0] is not None


def test_a_reading_that_falls_on_a_tick_is_moved_away_from_it() -> None:
    """Readings at the same period would otherwise meet every update, and no age would be known."""
    clock = UpdateClock(0.1)
    for n in (10, 11, 30, 31, 100, 101):
        clock.saw_change(n * 0.1 - 0.001, n * 0.1 + 0.001)
    on_a_tick_s = 11.0
    assert clock.age(on_a_tick_s)[0] is None
    quiet_s = clock.quiet_time_s(on_a_tick_s)
    assert 0.0 < quiet_s - on_a_tick_s < 0.05
    assert clock.age(quiet_s)[0] == pytest.approx(0.035, abs=0.005)
