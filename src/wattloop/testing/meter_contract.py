"""Contract test of meters, also of third parties.

def test_my_meter_keeps_the_contract():
    check_meter(lambda: MyMeter(...))
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence

from wattloop.core.records import Domain, DomainKind, Gap, Signal
from wattloop.core.results import Missing
from wattloop.meters.base import Meter, Reading

DOMAIN_NAME = re.compile(r"[a-z][a-z0-9_-]*(:\d+)?(/[a-z][a-z0-9_-]*(:\d+)?)*")
SIGNAL_UNITS = {"fraction", "MHz", "degC", "B", "W"}


def check_meter(
    make: Callable[[], Meter],
    *,
    reads: int = 10,
    pause_s: float = 0.005,
    cost_factor: float = 100.0,
    faulty: bool = False,
) -> None:
    """Raise AssertionError with the promise that the meter breaks.

    Args:
        make: returns a working meter; called more than once.
        reads: how often it is read.
        pause_s: time between reads, so that counters move.
        cost_factor: how far above its declared cost a read may be; generous, since machines that
            run tests are busy. At least 20 ms are always allowed.
        faulty: expect gaps; otherwise at least one read of each domain must give a value.
    """
    meter = make()
    try:
        _check_declaration(meter)
        domains, signals = meter.domains, meter.signals
        rounds = [_timed_read(meter, cost_factor) for _ in _paced(reads, pause_s)]
        assert meter.domains == domains, "domains are fixed for the life of a meter"
        assert meter.signals == signals, "signals are fixed for the life of a meter"
        for index, domain in enumerate(domains):
            _check_series(domain, [values[index] for values in rounds], faulty)
        _check_signals(signals, meter.read_signals())
    finally:
        meter.close()
    _check_closed(meter)
    _check_unread(make())


def _check_declaration(meter: Meter) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*", meter.name), f"name {meter.name!r}: lower case"
    assert meter.domains, f"{meter.name}: a meter without domains must not be detected"
    names = [domain.name for domain in meter.domains]
    assert len(set(names)) == len(names), f"{meter.name}: a domain is offered twice: {names}"
    for domain in meter.domains:
        _check_domain(meter.name, domain)
    signal_names = [signal.name for signal in meter.signals]
    assert len(set(signal_names)) == len(signal_names), f"signals twice: {signal_names}"
    for missing in getattr(meter, "refused", ()):
        assert isinstance(missing, Missing), "`refused` holds Missing records"
        assert missing.reason, f"{missing.name} is refused without a reason"
        assert missing.name not in names, f"{missing.name} is both offered and refused"


def _check_domain(meter: str, domain: Domain) -> None:
    where = f"{meter}, {domain.name}"
    assert DOMAIN_NAME.fullmatch(domain.name), f"{where}: names look like cpu:0/package, gpu:3"
    assert domain.source, f"{where}: a domain says where its readings come from"
    for what in ("resolution", "known_error", "known_error_w", "averaging_s"):
        value = getattr(domain, what)
        assert math.isfinite(value) and value >= 0, f"{where}: {what} is {value}"
    for what in ("update_period_s", "read_cost_s"):
        value = getattr(domain, what)
        assert math.isfinite(value) and value > 0, f"{where}: {what} is {value}"
    for what in ("wrap_j", "max_power_w", "tdp_w"):
        value = getattr(domain, what)
        assert value is None or value > 0, f"{where}: {what} is {value}; None means unknown"
    assert domain.inside != domain.name, f"{where}: lies inside itself"
    if domain.kind is DomainKind.GAUGE:
        assert domain.wrap_j is None, f"{where}: a gauge does not wrap"
    if domain.tdp_w is not None:
        assert domain.tdp_note, f"{where}: tdp_note says what tdp_w is"


def _timed_read(meter: Meter, cost_factor: float) -> Sequence[Reading]:
    # CPU time: a read that waits for a busy machine is not an expensive one.
    begin_s = time.thread_time()
    values = meter.read()
    took_s = time.thread_time() - begin_s
    assert len(values) == len(meter.domains), f"{meter.name}: one value per domain"
    declared_s = sum(domain.read_cost_s for domain in meter.domains)
    allowed_s = max(0.02, cost_factor * declared_s)
    assert took_s <= allowed_s, f"{meter.name}: read took {took_s:g} s, declared {declared_s:g} s"
    return list(values)


def _check_series(domain: Domain, values: Sequence[Reading], faulty: bool) -> None:
    numbers = [_checked(domain.name, value) for value in values]
    known = [number for number in numbers if number is not None]
    assert known or faulty, f"{domain.name}: no read gave a value: {values[0]}"
    if domain.kind is DomainKind.GAUGE:
        assert all(number >= 0 for number in known), f"{domain.name}: negative watts"
        return
    drops = [(a, b) for a, b in itertools.pairwise(known) if b < a]
    if domain.wrap_j is None:
        assert not drops, f"{domain.name}: a counter that never wraps went back: {drops[0]}"
    else:
        assert all(0 <= number <= domain.wrap_j for number in known), f"{domain.name}: beyond wrap"
        assert len(drops) <= 1 + len(known) // 2, f"{domain.name}: went back {len(drops)} times"


def _check_signals(signals: Sequence[Signal], values: Sequence[Reading]) -> None:
    assert len(values) == len(signals), "one value per signal"
    for signal, value in zip(signals, values, strict=True):
        assert signal.unit in SIGNAL_UNITS, f"{signal.name}: unit {signal.unit!r}"
        number = _checked(signal.name, value)
        if number is not None and signal.unit == "fraction":
            assert 0 <= number <= 1, f"{signal.name} is {number}, not a fraction"


def _check_closed(meter: Meter) -> None:
    meter.close()  # twice is allowed
    values = [*meter.read(), *meter.read_signals()]
    assert all(isinstance(value, Gap) for value in values), f"{meter.name}: reads after close"


def _check_unread(meter: Meter) -> None:
    """A meter that was never read, and one whose process forked, can be closed."""
    meter.after_fork_in_child()
    meter.close()


def _checked(name: str, value: Reading) -> float | None:
    """The number, or None for a gap that says why."""
    if isinstance(value, Gap):
        assert value.reason, f"{name}: a gap without a reason"
        return None
    assert isinstance(value, float), f"{name}: {value!r} is neither a float nor a Gap"
    assert math.isfinite(value), f"{name}: {value}"
    return value


def _paced(count: int, pause_s: float) -> Iterator[int]:
    for index in range(count):
        if index:
            time.sleep(pause_s)
        yield index
