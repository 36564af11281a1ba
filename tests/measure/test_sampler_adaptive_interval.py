"""Promises of the adaptive interval: how often meters are read."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.sampler import SLOWEST, AdaptiveInterval
from wattloop.meters.base import Meter, Reading


class Scripted(Meter):
    name: ClassVar[str] = "scripted"

    def __init__(self, kind: DomainKind, clock: VirtualClock) -> None:
        self.power_w = 100.0
        self.energy_j = 0.0
        self.kind = kind
        self.clock = clock
        self.last_s = clock.now_s()

    @property
    def domains(self) -> tuple[Domain, ...]:
        return (Domain(name="cpu:0/package", kind=self.kind, scope=Scope.CPU, source="script"),)

    def read(self) -> Sequence[Reading]:
        now_s = self.clock.now_s()
        self.energy_j += self.power_w * (now_s - self.last_s)
        self.last_s = now_s
        return [self.energy_j if self.kind is DomainKind.COUNTER else self.power_w]


def run(feed: MeterStream, pace: AdaptiveInterval, clock: VirtualClock, reads: int) -> int:
    factor = 1
    for _ in range(reads):
        clock.advance(0.1 * factor)
        feed.read()
        factor = pace.after_read()
    return factor


def test_a_steady_counter_is_read_less_often_until_a_change() -> None:
    """Steady power slows reading down to the limit; a step restores the requested interval."""
    clock = VirtualClock()
    meter = Scripted(DomainKind.COUNTER, clock)
    feed = MeterStream(meter, clock, 0)
    pace = AdaptiveInterval(feed)
    assert run(feed, pace, clock, 200) == SLOWEST
    meter.power_w = 200.0
    assert run(feed, pace, clock, 1) == 1


def test_a_gauge_is_never_slowed_down() -> None:
    """Changes between two readings of a gauge are lost, so it keeps its interval."""
    clock = VirtualClock()
    feed = MeterStream(Scripted(DomainKind.GAUGE, clock), clock, 0)
    assert run(feed, AdaptiveInterval(feed), clock, 200) == 1


@pytest.mark.parametrize("step_w", [20.0, -40.0])
def test_energy_is_the_same_at_every_pace(step_w: float) -> None:
    """A lower rate of readings of a counter changes no joule."""
    clock = VirtualClock()
    meter = Scripted(DomainKind.COUNTER, clock)
    feed = MeterStream(meter, clock, 0)
    feed.read()
    pace = AdaptiveInterval(feed)
    run(feed, pace, clock, 150)
    meter.power_w += step_w
    run(feed, pace, clock, 150)
    assert feed.tracks[0].last_total_j == pytest.approx(meter.energy_j)
