"""Promises of cooling: wait for devices to cool, but never longer than allowed."""

from wattloop.core.clock import VirtualClock
from wattloop.sweep.runner import cool_down
from wattloop.sweep.spec import CoolDown


def rule(**fields: float) -> CoolDown:
    return CoolDown.model_validate(fields)


def test_it_waits_until_every_device_is_near_its_idle_temperature() -> None:
    """A card that cools by one degree a second from 60 to 45 takes fifteen."""
    clock = VirtualClock()
    waited_s = cool_down(
        rule(within=5.0), {"gpu:0": 40.0}, lambda: {"gpu:0": 60 - clock.now_s()}, clock
    )
    assert 15 <= waited_s <= 16


def test_it_gives_up_after_the_limit() -> None:
    """A room that warmed up must not stop the sweep."""
    clock = VirtualClock()
    waited_s = cool_down(rule(within=5.0, limit=30), {"g": 40.0}, lambda: {"g": 80.0}, clock)
    assert 30 <= waited_s <= 30.5


def test_without_a_thermometer_or_a_rule_it_does_not_wait() -> None:
    """A requested pause still takes place."""
    clock = VirtualClock()
    assert cool_down(rule(within=5.0), {}, dict, clock) == 0
    assert cool_down(rule(), {"g": 40.0}, lambda: {"g": 90.0}, clock) == 0
    assert cool_down(rule(pause=3.0), {}, dict, clock) == 3.0


def test_a_device_that_falls_silent_is_not_waited_for() -> None:
    """A device without readings has no temperature to wait for."""
    clock = VirtualClock()
    assert cool_down(rule(within=1.0), {"g": 40.0}, dict, clock) == 0
