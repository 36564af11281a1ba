"""Promises of the meter contract: it detects meters that break it, one promise at a time."""

import math
import time

import pytest

from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.meters.base import Meter
from wattloop.testing.meter_contract import check_meter

COUNTER = Domain(name="gpu:0", kind=DomainKind.COUNTER, scope=Scope.GPU, source="test")
GAUGE = Domain(name="node", kind=DomainKind.GAUGE, scope=Scope.NODE, source="test")


class Good(Meter):
    """A meter that keeps every promise; the broken ones below change one thing each."""

    name = "good"
    offered = (COUNTER, GAUGE)
    offered_signals = (Signal("gpu:0/utilisation", "fraction"),)
    bad_parts: tuple[Missing, ...] = ()
    gauge_w = 10.0
    signal = 0.5

    def __init__(self):
        self.reads = 0
        self.closed = False

    @property
    def domains(self):
        return self.offered

    @property
    def signals(self):
        return self.offered_signals

    @property
    def refused(self):
        return self.bad_parts

    def read(self):
        self.reads += 1
        if self.closed:
            return [Gap("closed")] * 2
        return [self.counter(self.reads), self.gauge_w]

    def counter(self, reads):
        return float(reads)

    def read_signals(self):
        return [Gap("closed") if self.closed else self.signal]

    def close(self):
        self.closed = True


def check(meter):
    check_meter(meter, pause_s=0)


def test_a_good_meter_passes():
    """The contract can be kept."""
    check(Good)


class Wraps(Good):
    offered = (COUNTER._replace(wrap_j=5.0), GAUGE)

    def counter(self, reads):
        return float(reads % 5)


def test_a_counter_may_wrap_where_it_says_so():
    """A fall is allowed within the declared range."""
    check(Wraps)


BROKEN = {
    "offered twice": {"offered": (COUNTER, COUNTER)},
    "without domains": {"offered": ()},
    "names look like": {"offered": (COUNTER._replace(name="GPU 0"), GAUGE)},
    "update_period_s": {"offered": (COUNTER._replace(update_period_s=0.0), GAUGE)},
    "resolution": {"offered": (COUNTER._replace(resolution=math.nan), GAUGE)},
    "tdp_note": {"offered": (COUNTER._replace(tdp_w=300.0), GAUGE)},
    "says where": {"offered": (COUNTER._replace(source=""), GAUGE)},
    "does not wrap": {"offered": (COUNTER, GAUGE._replace(wrap_j=5.0))},
    "negative watts": {"gauge_w": -1.0},
    "neither a float": {"gauge_w": 10},
    "node: inf": {"gauge_w": math.inf},
    "no read gave a value": {"gauge_w": Gap("always")},
    "without a reason": {"gauge_w": Gap("")},
    "not a fraction": {"signal": 50.0},
    "unit": {"offered_signals": (Signal("gpu:0/utilisation", "%"),)},
    "one value per signal": {"offered_signals": ()},
    "went back": {"counter": lambda self, reads: 10.0 - reads},
    "both offered and refused": {"bad_parts": (Missing("gpu:0", "why"),)},
    "refused without": {"bad_parts": (Missing("gpu:1", ""),)},
    "one value per domain": {"read": lambda self: [1.0]},
    "reads after close": {"read": lambda self: [1.0, 10.0]},
    "read took": {"read": lambda self: _burn() or [1.0, 10.0]},
    "domains are fixed": {
        "domains": property(lambda self: (COUNTER._replace(source=f"test {self.reads}"), GAUGE))
    },
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_named(promise):
    """Each violation fails, and the message says which."""
    broken = type("Broken", (Good,), BROKEN[promise])
    with pytest.raises(AssertionError, match=promise):
        check(broken)


def _burn():
    end_s = time.thread_time() + 0.03
    while time.thread_time() < end_s:
        pass
