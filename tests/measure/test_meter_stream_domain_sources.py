"""Promises of domain sources: one source per domain, the best first."""

import pytest

from tests.support.scripted_meter import ScriptedMeter, counter, gauge
from wattloop.core.clock import VirtualClock
from wattloop.core.records import Provenance
from wattloop.measure.meter_stream import FusedCurve, MeterStream, domain_sources


def test_first_source_of_a_domain_wins() -> None:
    """Two meters of one package give one domain, from the better meter."""
    clock = VirtualClock()
    feeds = [
        MeterStream(ScriptedMeter(clock, [(counter("a", source=s), lambda t: t)]), clock, i)
        for i, s in enumerate(["best", "second"])
    ]
    (channel,) = domain_sources(feeds)
    assert channel.domain.source == "best"


def test_gauge_shapes_a_slow_counter_of_the_same_device() -> None:
    """A GPU with energy counter and power gauge is one domain made of both."""
    clock = VirtualClock()
    slow = ScriptedMeter(clock, [(counter("gpu:0", update_period_s=0.1), lambda t: t)])
    quick = ScriptedMeter(clock, [(gauge("gpu:0"), lambda _: 1.0)])
    (channel,) = domain_sources([MeterStream(slow, clock, 0), MeterStream(quick, clock, 1)])
    assert isinstance(channel.track, FusedCurve)


def test_estimate_never_shapes_a_measured_counter() -> None:
    """Sources of different provenance are not mixed into one number."""
    clock = VirtualClock()
    slow = ScriptedMeter(clock, [(counter("gpu:0", update_period_s=0.1), lambda t: t)])
    guess = gauge("gpu:0", provenance=Provenance.ESTIMATED)
    quick = ScriptedMeter(clock, [(guess, lambda _: 1.0)])
    (channel,) = domain_sources([MeterStream(slow, clock, 0), MeterStream(quick, clock, 1)])
    assert channel.shape_feed is None


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ((), ["cpu:0/package", "cpu:1/package", "gpu:0", "gpu:10", "dram"]),
        (("cpu",), ["cpu:0/package", "cpu:1/package"]),
        (("cpu:1",), ["cpu:1/package"]),
        (("gpu:1",), []),
        (("gpu:10", "dram"), ["gpu:10", "dram"]),
    ],
)
def test_devices_choose_domains_by_whole_names(devices: tuple[str, ...], names: list[str]) -> None:
    """`gpu:1` is not `gpu:10`; `cpu` is every socket."""
    clock = VirtualClock()
    all_names = ["cpu:0/package", "cpu:1/package", "gpu:0", "gpu:10", "dram"]
    meter = ScriptedMeter(clock, [(counter(n), lambda t: t) for n in all_names])
    channels = domain_sources([MeterStream(meter, clock, 0)], devices)
    assert [c.domain.name for c in channels] == names
