"""Verification of meters: compare two sources of one domain (thesis, tables 3.3-3.6)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

from wattloop.core.clock import Clock
from wattloop.core.records import Domain
from wattloop.measure.meter_stream import MeterStream
from wattloop.meters.base import Meter

COVERAGE_FACTOR = 2.0
"""Two standard deviations: about 95%, as in every stated uncertainty."""
INTERVAL_S = 0.05
DURATION_S = 5.0


class Verdict(StrEnum):
    """Verdict of a comparison."""

    AGREE = "agree"
    DIFFER = "differ"
    UNKNOWN = "unknown"
    """One of the two gave no reading, or did not change."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Energy of one domain from one source; None when it could not be read."""

    meter: str
    source: str
    energy_j: float | None
    uncertainty_j: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MeterComparison:
    """Comparison of two sources of one domain over the same seconds."""

    domain: str
    first: Observed
    second: Observed
    verdict: Verdict
    difference: float | None
    """Second relative to first: 0.02 means that the second saw 2% more."""
    allowed: float | None
    """Tolerance from the uncertainties and known errors of both."""
    text: str

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return {"sources": [data.pop("first"), data.pop("second")], **data}


def verify(
    meters: Sequence[Meter],
    clock: Clock,
    duration_s: float = DURATION_S,
    on_progress: Callable[[float], None] | None = None,
) -> list[MeterComparison]:
    """Read every domain that two meters offer for `duration_s`; compare them in pairs."""
    feeds = [MeterStream(meter, clock, index) for index, meter in enumerate(meters)]
    offered: dict[str, list[tuple[MeterStream, int]]] = {}
    for feed in feeds:
        for index, domain in enumerate(feed.domains):
            offered.setdefault(domain.name, []).append((feed, index))
    shared = {name: sources for name, sources in offered.items() if len(sources) > 1}
    if not shared:
        return []
    used = list({id(f): f for sources in shared.values() for f, _ in sources}.values())
    begin_s, end_s = _read(used, clock, duration_s, on_progress)
    checks = []
    for name, sources in shared.items():
        for (one, i), (two, j) in combinations(sources, 2):
            first = _observed(one, i, begin_s, end_s)
            second = _observed(two, j, begin_s, end_s)
            checks.append(compare(name, first, second))
    return checks


def compare(domain: str, first: Observed, second: Observed) -> MeterComparison:
    """Compare two observations of the same seconds."""
    for observed in (first, second):
        if observed.energy_j is None or observed.energy_j <= 0:
            reason = observed.reason or "it did not move"
            text = f"cannot tell: {observed.meter} gave no energy ({reason})"
            return MeterComparison(domain, first, second, Verdict.UNKNOWN, None, None, text)
    assert first.energy_j is not None
    assert second.energy_j is not None
    difference = (second.energy_j - first.energy_j) / first.energy_j
    allowed = math.hypot(first.uncertainty_j, second.uncertainty_j) / first.energy_j
    if abs(difference) <= allowed:
        text = f"agree: {difference:+.2%} apart, {allowed:.2%} allowed by their uncertainties"
        return MeterComparison(domain, first, second, Verdict.AGREE, difference, allowed, text)
    text = (
        f"differ by {difference:+.1%}, more than the {allowed:.1%} their uncertainties allow; "
        f"{first.meter} is the one used"
    )
    return MeterComparison(domain, first, second, Verdict.DIFFER, difference, allowed, text)


def _read(
    feeds: Sequence[MeterStream],
    clock: Clock,
    duration_s: float,
    on_progress: Callable[[float], None] | None,
) -> tuple[float, float]:
    """Read for `duration_s`; return the times between which every stream has readings."""
    for feed in feeds:
        feed.find_ticks(4 * _period_s(feed), clock.sleep)
    first_s = [feed.read() for feed in feeds]
    begin_s = max(first_s)
    while (passed_s := clock.now_s() - begin_s) < duration_s:
        clock.sleep(INTERVAL_S)
        for feed in feeds:
            feed.read()
        if on_progress is not None:
            on_progress(min(1.0, passed_s / duration_s))
    end_s = clock.now_s()
    # A sensor that updates ten times a second shows the time before `end_s` only after it.
    clock.sleep(min(0.5, max(_period_s(feed) for feed in feeds)))
    for feed in feeds:
        feed.read()
    return begin_s, end_s


def _observed(feed: MeterStream, index: int, begin_s: float, end_s: float) -> Observed:
    domain = feed.domains[index]
    span = feed.between(index, begin_s, end_s)
    if span is None or span.covered <= 0:
        why = feed.tracks[index].lost or feed.tracks[index].last_gap
        reason = why[1] if why is not None else "no reading was taken"
        return Observed(feed.meter.name, domain.source, None, 0.0, reason)
    systematic_j = _systematic_j(domain, span.energy_j, end_s - begin_s)
    uncertainty_j = COVERAGE_FACTOR * span.sigma_j + systematic_j
    return Observed(feed.meter.name, domain.source, span.energy_j, uncertainty_j)


def _systematic_j(domain: Domain, energy_j: float, duration_s: float) -> float:
    return domain.known_error * abs(energy_j) + domain.known_error_w * duration_s


def _period_s(feed: MeterStream) -> float:
    return max((d.update_period_s for d in feed.domains), default=0.0)
