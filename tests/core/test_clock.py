"""Promises of `clock`: time is injected, and the virtual clock moves only on request."""

import threading

from wattloop.core.clock import RealClock, VirtualClock


def test_virtual_clock_moves_only_on_request() -> None:
    """Sleeping on it returns at once and takes virtual time; it never goes backwards."""
    clock = VirtualClock(start_s=5.0, wall_start_s=1_000.0)
    clock.sleep(2.0)
    clock.advance(-10.0)
    assert (clock.now_s(), clock.wall_s()) == (7.0, 1_002.0)


def test_setting_the_wall_clock_leaves_monotonic_time_alone() -> None:
    """An administrator sets the time of day back."""
    clock = VirtualClock(start_s=5.0, wall_start_s=1_000.0)
    clock.set_wall(10.0)
    assert (clock.now_s(), clock.wall_s()) == (5.0, 10.0)


def test_suspend_passes_in_wall_time_only() -> None:
    """The machine slept for an hour."""
    clock = VirtualClock()
    clock.suspend(3_600.0)
    assert (clock.now_s(), clock.wall_s(), clock.suspended_s()) == (0.0, 3_600.0, 3_600.0)


def test_advancing_from_many_threads_loses_nothing() -> None:
    """Every advance counts."""
    clock = VirtualClock()

    def move() -> None:
        for _ in range(1_000):
            clock.advance(1.0)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_s() == 4_000.0


def test_real_clock_is_monotonic_and_knows_suspension() -> None:
    """Time goes forward; suspended time is never negative beyond clock noise."""
    clock = RealClock()
    assert clock.now_s() <= clock.now_s()
    assert clock.suspended_s() > -0.01
