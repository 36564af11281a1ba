"""Joules of consecutive steps from one domain's energy curve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from wattloop.core.provenance import Provenance
from wattloop.measure.domain_source import DomainSource, FusedCurve
from wattloop.measure.energy_curve import EnergySpan
from wattloop.measure.windows import COVERAGE_FACTOR

__all__ = ["Stretch", "settled_s", "step_energies"]

MIN_GROUP_S = 0.005

Stretch = tuple[float, float, float]
"""Begin, end, and half-width of both: a shift of the whole step."""
Joules = tuple[float, float]
"""Energy and its uncertainty."""


def step_energies(channel: DomainSource, stretches: Sequence[Stretch]) -> list[Joules | None]:
    """Energy of each stretch; the energies of adjoining ones add up to that of their union.

    A sensor tells nothing about times much shorter than its own period, so adjoining steps are
    looked up together until they span half of it, and share the energy in proportion to time.
    Each then has its share of the group's uncertainty, and what the power may have changed inside
    the group, judged by the groups beside it. This also bounds the cost of tiny steps.
    """
    groups = _groups(stretches, max(channel.track.period_s / 2, MIN_GROUP_S))
    spans = [_span(channel, stretches[a][0], stretches[b - 1][1]) for a, b in groups]
    powers_w = [
        span.energy_j / (stretches[b - 1][1] - stretches[a][0]) if span is not None else math.nan
        for span, (a, b) in zip(spans, groups, strict=True)
    ]
    energies: list[Joules | None] = []
    for number, ((a, b), span) in enumerate(zip(groups, spans, strict=True)):
        if span is None:
            energies.extend([None] * (b - a))
            continue
        near_w = [p for p in powers_w[max(0, number - 1) : number + 2] if not math.isnan(p)]
        swing_w = max(near_w) - min(near_w)
        for begin_s, end_s, blur_s in stretches[a:b]:
            length_s = end_s - begin_s
            share = length_s / (stretches[b - 1][1] - stretches[a][0])
            energy_j = powers_w[number] * length_s
            own_j = _uncertainty_j(channel, span, share, length_s)
            hidden_j = swing_w * (length_s * (1 - share) + blur_s)
            energies.append((energy_j, math.hypot(own_j, hidden_j)))
    return energies


def settled_s(channel: DomainSource) -> float:
    """Up to when the curve will not change any more; infinite for one that has no reading."""
    with channel.feed.lock:
        channel.feed.settle()
        track = channel.track
        if not isinstance(track, FusedCurve):
            return track.times_s[-1] if track.times_s else math.inf
        counter_s, gauge_s = track.counter.times_s, track.gauge.times_s
        if not counter_s or not gauge_s:
            return math.inf
        # Between its points the counter follows the gauge, which must have got as far.
        i = bisect_right(counter_s, gauge_s[-1])
        return counter_s[i - 1] if i else -math.inf


def _groups(stretches: Sequence[Stretch], at_least_s: float) -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(stretches) + 1):
        ended = i == len(stretches) or stretches[i][0] != stretches[i - 1][1]
        if ended or stretches[i - 1][1] - stretches[first][0] >= at_least_s:
            groups.append((first, i))
            first = i
    return groups


def _span(channel: DomainSource, begin_s: float, end_s: float) -> EnergySpan | None:
    """None where nothing was read: missing is not zero."""
    if end_s <= begin_s:
        return None
    span = channel.between(begin_s, end_s)
    if span is None or span.covered <= 0:
        return None
    return span if span.moved or channel.domain.inside is not None else None


def _uncertainty_j(
    channel: DomainSource, span: EnergySpan, share: float, duration_s: float
) -> float:
    domain = channel.domain
    uncertainty_j = COVERAGE_FACTOR * span.sigma_j * share
    if domain.provenance in (Provenance.MODELLED, Provenance.ESTIMATED):
        uncertainty_j += domain.known_error * abs(span.energy_j) * share
        uncertainty_j += domain.known_error_w * duration_s
    return uncertainty_j
