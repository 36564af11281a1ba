"""From energy curves to what a person is told about a window."""

from collections.abc import Mapping, Sequence

from wattloop.core.provenance import Provenance
from wattloop.core.records import Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult, non_overlapping
from wattloop.core.units import format_duration
from wattloop.measure.channels import Channel
from wattloop.measure.counter_track import CounterTrack
from wattloop.measure.fusion import ShapedCounter
from wattloop.measure.gauge_track import GaugeTrack
from wattloop.measure.spans import Span

__all__ = ["resolve_window", "unseen_wraps_reason"]

COVERAGE_FACTOR = 2.0
"""Stated uncertainties are two standard deviations: about 95%."""
TOO_SHORT_PERIODS = 10
STUCK_PERIODS = 20
STUCK_AFTER_S = 0.5
WHOLE = 0.999


def resolve_window(
    channels: Sequence[Channel],
    missing: Sequence[Missing],
    *,
    name: str,
    window_id: int,
    parent_id: int | None,
    begin_s: float,
    end_s: float,
    warnings: Sequence[str] = (),
) -> WindowResult:
    """Energy of every channel between two instants, what is missing, and what to beware of."""
    energies: list[DomainEnergy] = []
    absent = list(missing)
    notes = list(warnings)
    for channel in channels:
        span = channel.between(begin_s, end_s)
        if channel.domain.name == "psys" and (span is None or not span.moved):
            continue  # no part of any total, and many machines only pretend to have it
        reason = _reason_missing(channel, span, begin_s, end_s)
        if reason is not None:
            absent.append(Missing(channel.domain.name, reason))
        if span is None or (reason is not None and span.covered <= 0) or _stuck(channel, span):
            energies.append(_energy(channel, None, end_s - begin_s))
            continue
        energies.append(_energy(channel, span, end_s - begin_s))
    short = _too_short(channels, end_s - begin_s)
    if short is not None:
        notes.append(short)
    return WindowResult(
        name=name,
        window_id=window_id,
        parent_id=parent_id,
        begin_s=begin_s,
        end_s=end_s,
        domains=_with_totals(channels, energies),
        missing=tuple(absent),
        warnings=tuple(notes),
    )


def _energy(channel: Channel, span: Span | None, duration_s: float) -> DomainEnergy:
    domain = channel.domain
    uncertainty_j = 0.0
    if span is not None:
        uncertainty_j = COVERAGE_FACTOR * span.sigma_j
        if domain.provenance in (Provenance.MODELLED, Provenance.ESTIMATED):
            uncertainty_j += domain.known_error * abs(span.energy_j)
            uncertainty_j += domain.known_error_w * duration_s
    return DomainEnergy(
        name=domain.name,
        scope=domain.scope,
        energy_j=None if span is None else span.energy_j,
        uncertainty_j=uncertainty_j,
        provenance=domain.provenance,
        source=domain.source,
        covered=0.0 if span is None else span.covered,
        known_error=domain.known_error,
        tdp_w=domain.tdp_w,
        tdp_note=domain.tdp_note,
        device=domain.device,
        host_share=domain.host_share,
        known_error_w=domain.known_error_w,
    )


def _with_totals(
    channels: Sequence[Channel], energies: Sequence[DomainEnergy]
) -> tuple[DomainEnergy, ...]:
    """Mark the domains whose sum counts no joule twice."""
    read = {e.name for e in energies if e.energy_j is not None}
    inside = {c.domain.name: c.domain.inside for c in channels if c.domain.name in read}
    counted = _whole_node(channels, inside) or non_overlapping(inside.items())
    return tuple(_replaced(e, e.name in counted) for e in energies)


def _whole_node(channels: Sequence[Channel], inside: Mapping[str, str | None]) -> set[str]:
    """Domains that see the whole node and with it everything else: one family of them, best first.

    `psys` is not among them: makers disagree on what it covers.
    """
    families: dict[str, set[str]] = {}
    for channel in channels:
        name = channel.domain.name
        if channel.domain.scope is Scope.NODE and name in inside and name != "psys":
            families.setdefault(name.partition(":")[0], set()).add(name)
    for family in ("node", *families):
        if family in families:
            return non_overlapping((n, inside[n]) for n in families[family])
    return set()


def _replaced(energy: DomainEnergy, in_total: bool) -> DomainEnergy:
    if in_total == energy.in_total:
        return energy
    return energy._replace(in_total=in_total)


def _reason_missing(
    channel: Channel, span: Span | None, begin_s: float, end_s: float
) -> str | None:
    track = channel.track
    why = track.lost or track.last_gap
    if span is None:
        return why[1] if why is not None else "no reading was taken"
    duration_s = end_s - begin_s
    if _stuck(channel, span):
        if why is not None:
            return why[1]
        if duration_s >= max(STUCK_AFTER_S, STUCK_PERIODS * track.period_s):
            return f"the counter did not move in {format_duration(duration_s)}"
    if span.covered < WHOLE and duration_s > 0:
        unread_s = (1 - span.covered) * duration_s
        reason = why[1] if why is not None else "readings failed"
        return (
            f"not read for {format_duration(unread_s)} of {format_duration(duration_s)}: {reason}"
        )
    return None if isinstance(track, GaugeTrack) else unseen_wraps_reason(track, begin_s, end_s)


def unseen_wraps_reason(
    track: CounterTrack | ShapedCounter, begin_s: float, end_s: float
) -> str | None:
    """Why a counter does not show the energy of a time on its own; None when it does."""
    unread_s, wraps = track.unseen_wraps(begin_s, end_s)
    if not wraps:
        return None
    return (
        f"not read for {format_duration(unread_s)}, in which the counter can wrap unseen "
        f"({'once' if wraps == 1 else f'up to {wraps} times'}); "
        "the energy of that time is modelled from the power before it, see the uncertainty"
    )


def _stuck(channel: Channel, span: Span) -> bool:
    """A counter of a whole device that shows no change at all is not a zero.

    Parts inside a device (cores, an idle graphics unit) may truly use too little to count.
    """
    return not span.moved and channel.domain.inside is None


def _too_short(channels: Sequence[Channel], duration_s: float) -> str | None:
    slowest: Channel | None = None
    for channel in channels:
        if duration_s < TOO_SHORT_PERIODS * channel.track.period_s and (
            slowest is None or channel.track.period_s > slowest.track.period_s
        ):
            slowest = channel
    if slowest is None:
        return None
    return (
        f"window of {format_duration(max(duration_s, 1e-9))} is short for {slowest.domain.name}, "
        f"which changes every {format_duration(slowest.track.period_s)}; see its uncertainty"
    )
