"""Verification of meters: compare two sources of one domain (thesis, tables 3.3-3.6)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, NamedTuple

from wattloop.core.clock import Clock
from wattloop.core.records import Domain
from wattloop.core.table import UNKNOWN
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


class PublishedPair(NamedTuple):
    """Two tools on one workload, as a table of the thesis has them; time is of each tool's run."""

    table: str
    machine: str
    load: str
    domain: str
    first_wh: float
    first_s: float
    second_wh: float
    second_s: float


PERF, CODECARBON = "perf, EA2P", "CodeCarbon, EA2P"
PUBLISHED = (
    PublishedPair("3.3", "Intel-2", "sleep", "package", 2.254, 183.508, 2.181, 180.272),
    PublishedPair("3.3", "Intel-2", "sleep", "dram", 1.290, 183.508, 1.270, 180.272),
    PublishedPair("3.3", "Intel-2", "CPU training", "package", 28.592, 445.236, 28.252, 438.333),
    PublishedPair("3.3", "Intel-2", "CPU training", "dram", 4.899, 445.236, 4.825, 438.333),
    PublishedPair("3.3", "Intel-2", "GPU training", "package", 1.627, 68.40, 1.229, 52.50),
    PublishedPair("3.3", "AMD-1", "sleep", "package", 4.781, 185.105, 4.650, 180.503),
    PublishedPair("3.3", "AMD-1", "CPU training", "package", 45.580, 574.215, 45.293, 557.021),
    PublishedPair("3.4", "Intel-1", "sleep", "gpu", 0.987, 181.931, 0.824, 180.706),
    PublishedPair("3.4", "Intel-1", "GPU training", "gpu", 2.077, 67.993, 2.047, 67.757),
    PublishedPair("3.5", "Intel-1", "sleep", "package", 0.149, 180.029, 0.149, 180.192),
    PublishedPair("3.5", "Intel-1", "sleep", "psys", 0.520, 180.029, 0.520, 180.192),
    PublishedPair("3.5", "Intel-1", "CPU training", "cores", 3.715, 1476.905, 3.696, 1478.121),
    PublishedPair("3.5", "Intel-1", "CPU training", "package", 5.949, 1476.905, 5.952, 1478.121),
    PublishedPair("3.5", "Intel-1", "CPU training", "psys", 12.001, 1476.905, 13.488, 1478.121),
)
"""Tables 3.3 to 3.5 of the thesis. Powers are compared: the two tools ran for different times."""
STEADY = "over five runs they spread by up to 1.4% in energy and 1.6% in time (table 3.6)"


def verification_report(rounds: Sequence[Sequence[MeterComparison]], seconds: float) -> str:
    """Return Markdown: sources of this machine over all rounds, next to what the thesis found."""
    here = []
    for checks in zip(*rounds, strict=True):
        found = [c.difference for c in checks if c.difference is not None]
        powers = [
            [o.energy_j / seconds for o in (getattr(c, side) for c in checks) if o.energy_j]
            for side in ("first", "second")
        ]
        allowed = [c.allowed for c in checks if c.allowed is not None]
        last = checks[-1]
        here.append(
            (
                last.domain,
                f"{last.first.source}, {last.second.source}",
                *(_mean(p, "{:.2f}") for p in powers),
                _mean(found, "{:+.2%}"),
                f"{fmean(allowed):.2%}" if allowed else UNKNOWN,
                ", ".join(sorted({c.verdict.value for c in checks})),
            )
        )
    thesis = []
    for one in PUBLISHED:
        first_w, second_w = (
            3_600 * wh / lasted_s
            for wh, lasted_s in ((one.first_wh, one.first_s), (one.second_wh, one.second_s))
        )
        tools = CODECARBON if one.table == "3.4" else PERF
        where = (f"{one.table}, {one.machine}", one.load, one.domain, tools)
        thesis.append(
            (*where, f"{first_w:.2f}", f"{second_w:.2f}", f"{second_w / first_w - 1:+.1%}")
        )
    headers = ("domain", "sources", "first (W)", "second (W)", "apart", "allowed", "verdict")
    expected = ("table", "load", "domain", "tools", "first (W)", "second (W)", "apart")
    none = "No domain is offered by two meters here, so there is nothing to compare."
    return "\n\n".join(
        (
            "# Two sources of one domain",
            f"{len(rounds)} rounds of {seconds:g} s at the load of the moment: mean ± standard "
            "deviation. Make one report of the idle machine and one while it trains.",
            _markdown(headers, here) if here else none,
            f"What the thesis found on its machines; {STEADY}:",
            _markdown(expected, thesis) + "\n",
        )
    )


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(values: Sequence[float], form: str) -> str:
    if not values:
        return UNKNOWN
    spread = f" ± {form.replace('+', '').format(stdev(values))}" if len(values) > 1 else ""
    return form.format(fmean(values)) + spread
