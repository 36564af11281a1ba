"""Promises of window energy: totals count each joule once, and a missing domain is never 0 J."""

import pytest

from tests.support.scripted_meter import Script, ScriptedMeter, counter, gauge
from wattloop.core.clock import VirtualClock
from wattloop.core.records import Domain, Gap, Provenance
from wattloop.core.results import Missing, WindowResult
from wattloop.measure.meter_stream import MeterStream, domain_sources
from wattloop.measure.window_energy import window_energy

SECONDS = 10


def resolved(
    *scripts: tuple[Domain, Script], end_s: float = 9.0, missing: tuple[Missing, ...] = ()
) -> WindowResult:
    """Return a window from 1 s on, over ten seconds of readings at 10 Hz."""
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, scripts), clock, 0)
    for _ in range(SECONDS * 10):
        feed.read()
        clock.advance(0.1)
    return window_energy(
        domain_sources([feed]),
        missing,
        name="w",
        window_id=1,
        parent_id=0,
        begin_s=1.0,
        end_s=end_s,
    )


def watts(power_w: float) -> Script:
    return lambda t: power_w * t


def test_total_leaves_out_nested_domains() -> None:
    """Package and DRAM are added; cores are already in the package."""
    result = resolved(
        (counter("cpu:0/package"), watts(50)),
        (counter("cpu:0/core", inside="cpu:0/package"), watts(30)),
        (counter("dram:0"), watts(5)),
    )
    assert result.energy_j == pytest.approx(55 * 8, rel=1e-3)
    assert {d.name: d.in_total for d in result.domains} == {
        "cpu:0/package": True,
        "cpu:0/core": False,
        "dram:0": True,
    }


def test_psys_counts_only_where_no_package_can_be_read() -> None:
    """Makers disagree on what psys covers, so it never joins packages in a total."""
    both = resolved((counter("psys"), watts(90)), (counter("cpu:0/package"), watts(50)))
    alone = resolved((counter("psys"), watts(90)))
    assert both.energy_j == pytest.approx(50 * 8, rel=1e-3)
    assert alone.energy_j == pytest.approx(90 * 8, rel=1e-3)


def test_meter_of_the_whole_node_is_the_total() -> None:
    """A wall meter includes CPU and GPU: they are shown, not added."""
    result = resolved(
        (counter("node"), watts(200)),
        (counter("cpu:0/package"), watts(50)),
        (counter("gpu:0"), watts(100)),
    )
    assert result.energy_j == pytest.approx(200 * 8, rel=1e-3)
    assert result.gpu_energy_j == pytest.approx(100 * 8, rel=1e-3)


def test_part_takes_the_place_of_a_container_that_was_not_read() -> None:
    """Cores count where their package gave no reading."""
    result = resolved(
        (counter("cpu:0/package"), lambda _: Gap("permission denied")),
        (counter("cpu:0/core", inside="cpu:0/package"), watts(30)),
    )
    assert result.energy_j == pytest.approx(30 * 8, rel=1e-3)
    assert not result.complete


def test_domain_without_a_reading_is_missing_with_its_reason() -> None:
    """The energy is None with a reason, and the total is marked incomplete."""
    result = resolved(
        (counter("cpu:0/package"), watts(50)),
        (counter("gpu:0"), lambda _: Gap("permission denied")),
    )
    by_name = {d.name: d.energy_j for d in result.domains}
    assert by_name["gpu:0"] is None
    assert result.missing == (Missing("gpu:0", "permission denied"),)
    assert not result.complete
    assert result.energy_j == pytest.approx(50 * 8, rel=1e-3)


def test_nothing_readable_is_none_not_zero() -> None:
    """Without a domain there is neither energy nor provenance."""
    result = resolved(missing=(Missing("cpu", "no sensor"),))
    assert result.energy_j is None
    assert result.power_w is None
    assert result.provenance is None
    assert not result.complete


def test_stuck_counter_of_a_device_is_missing() -> None:
    """A package that used nothing for 8 s has a broken counter."""
    result = resolved((counter("cpu:0/package"), lambda _: 77.0))
    assert result.energy_j is None
    assert "did not move" in result.missing[0].reason


def test_idle_part_inside_a_device_may_be_zero() -> None:
    """An integrated graphics unit that sleeps really uses 0 J."""
    result = resolved(
        (counter("cpu:0/package"), watts(50)),
        (counter("cpu:0/uncore", inside="cpu:0/package"), lambda _: 3.0),
    )
    assert {d.name: d.energy_j for d in result.domains}["cpu:0/uncore"] == 0.0
    assert result.complete


def test_device_lost_half_way_is_counted_until_then_and_reported_missing() -> None:
    """The energy before the loss stays, and the rest is named with its length."""
    result = resolved(
        (counter("gpu:0"), lambda t: 10.0 * t if t < 5.0 else Gap("off the bus", lost=True))
    )
    (energy,) = result.domains
    assert energy.energy_j == pytest.approx(40.0, rel=0.05)
    assert energy.covered == pytest.approx(0.5, abs=0.02)
    assert "off the bus" in result.missing[0].reason
    assert "of 8.00 s" in result.missing[0].reason


def test_short_window_warns_and_names_the_sensor() -> None:
    """A window of 0.3 s on a sensor that changes every 0.1 s says so."""
    result = resolved((gauge("gpu:0"), lambda _: 100.0), end_s=1.3)
    (warning,) = result.warnings
    assert "gpu:0" in warning
    assert "short" in warning


def test_long_window_does_not_warn() -> None:
    """8 s are enough for any of these sensors."""
    assert resolved((gauge("gpu:0"), lambda _: 100.0)).warnings == ()


def test_known_error_widens_estimates_but_not_measurements() -> None:
    """An estimate's interval holds the error of its model; a sensor's own error stands apart."""
    guess = resolved(
        (gauge("cpu:0/package", provenance=Provenance.ESTIMATED, known_error=0.3), lambda _: 50.0)
    )
    sensor = resolved((gauge("cpu:0/package", known_error=0.3), lambda _: 50.0))
    assert guess.uncertainty_j >= 0.3 * 400
    assert sensor.uncertainty_j < 0.1 * 400
    assert sensor.domains[0].known_error == 0.3


def test_total_has_the_provenance_of_its_weakest_part() -> None:
    """One estimate makes the sum an estimate."""
    result = resolved(
        (counter("gpu:0"), watts(100)),
        (gauge("cpu:0/package", provenance=Provenance.ESTIMATED), lambda _: 50.0),
    )
    assert result.provenance is Provenance.ESTIMATED


def test_window_of_no_length_is_harmless() -> None:
    """A window of zero length has no power and causes no division by zero."""
    result = resolved((counter("cpu:0/package"), watts(50)), end_s=1.0)
    assert result.duration_s == 0.0
    assert result.power_w is None
