"""Promises of series: the power of a domain is drawn from the source that was used."""

from typing import Any

from wattloop.store.samples import power_series


def _feed(meter: str, kind: str, period_s: float, provenance: str = "measured") -> dict[str, Any]:
    domain = {"name": "cpu:0/package", "kind": kind, "update_period_s": period_s}
    return {"meter": meter, "domains": [{**domain, "provenance": provenance}], "signals": []}


def test_an_estimate_next_to_rapl_is_not_drawn() -> None:
    """The first meter was used, and the estimate of the same package was not read."""
    rapl, estimate = _feed("rapl", "counter", 0.001), _feed("cpu", "gauge", 0.1, "estimated")
    (found,) = power_series([rapl, estimate]).values()
    assert (found.meter, found.feed) == ("rapl", 0)
    (found,) = power_series([_feed("slow", "counter", 0.1), estimate]).values()
    assert found.meter == "slow"
    (found,) = power_series([estimate, rapl]).values()
    assert found.meter == "cpu"


def test_a_gauge_is_drawn_for_the_slow_counter_that_it_shapes() -> None:
    """A GPU's power is drawn instead of the differences of its energy counter."""
    counter, gauge = _feed("energy", "counter", 0.1), _feed("power", "gauge", 0.025)
    for feeds in ([counter, gauge], [gauge, counter]):
        (found,) = power_series(feeds).values()
        assert found.meter == "power"
